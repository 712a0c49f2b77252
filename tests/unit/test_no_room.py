"""A disk that is full at any write of any command: one sentence that names what, nothing left."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftrt import provenance
from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.cli_options import OutputFile, OutputFolder
from draftrt.errors import DraftrtError
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.files import naming, temporary_folder, write_atomically
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target
from tests.unit.test_odd_arguments import of_kind

pytest.importorskip("onnxruntime")
EXPORT = ["export", "{draft}", "--target", "{target}", "-o", "{out}/new"]
BENCH = ["bench", "{bundle}", "--num-prompts", "1", "--max-tokens", "8", "--repeats", "1"]
TABLES = ["{out}/table.json", "--prompts", "{prompts}", "--num-prompts", "1", "--max-tokens", "8"]
# Every command that writes a file of its own, or temporary ones. {out} is empty before.
LINES = {
    "export": EXPORT,
    "export link": [
        "export",
        "{draft}",
        "--target",
        "{target}",
        "-o",
        "{out}/new",
        "--weights=link",
    ],
    "export bf16": [
        "export",
        "{draft}",
        "--target",
        "{target}",
        "-o",
        "{out}/new",
        "--precision=bf16",
    ],
    "bench": [*BENCH, "--json", "{out}/bench.json", "--svg", "{out}/bench.svg"],
    "bench --calibrate": [*BENCH, "--calibrate"],
    "report": [
        *["report", "{bundle}", "-o", "{out}/r.html", "--markdown", "{out}/r.md"],
        *["--json", "{out}/r.json", "--no-parity"],
    ],
    "record": ["validate", "record", "{draft}", "--target", "{target}", "-o", "{out}/case"],
    "record target": [
        *["validate", "record", "--target", "{target}", "-o", "{out}/case"],
        *["--prompts", "{prompts}", "--taps", "0,2", "--rounds", "1"],
    ],
    "record-trajectories": [
        *["validate", "record-trajectories", "{draft}", "--target", "{target}", "-o", *TABLES],
    ],
    "golden": ["validate", "golden", "{root}/tests/golden/zlab-dflash"],
    "matrix": ["validate", "matrix", "--draft", "{draft}", "--target", "{target}"],
    "parity": ["validate", "parity", "{bundle}"],
    "bisect": ["validate", "bisect", "{bundle}"],
    "verify": ["verify", "{bundle}"],
    "run": ["run", "{bundle}", "--prompt", "a", "--max-tokens", "4"],
    "build": ["build", "{bundle}", "--sm", "86", "--graph", "draft"],
    "engine": [
        *["engine", "{draft}", "--target", "{target}", "-o", "{out}/new", "--sm", "86"],
        *["--graph", "draft"],
    ],
}
PLANS = {"build", "engine"}  # what builds one
NO_ROOM = ("File too large", "No space left on device", "no room", "temporary files: No usable")
Line = Callable[[str, Path], list[str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("no_room")
    draft = write_drafter(folder / "draft", ToyDrafter(kind=Kind.ZLAB_DFLASH))
    target = write_target(folder / "target")
    export_bundle(draft, target, folder / "bundle", ExportOptions(max_context=512))
    (folder / "prompts.txt").write_text("a song\n")
    return folder


@pytest.fixture
def line(made: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    """Fills in a command line of `LINES` for a folder to write in, all of it fresh."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def fill(name: str, out: Path) -> list[str]:
        shutil.rmtree(tmp_path / "bundle", ignore_errors=True)
        shutil.copytree(made / "bundle", tmp_path / "bundle")
        values = {"root": root, "out": out, "bundle": tmp_path / "bundle"}
        values |= {one: made / one for one in ("draft", "target")}
        return [word.format(**values, prompts=made / "prompts.txt") for word in LINES[name]]

    return fill


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write files of that many bytes alone, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def judge(done: Result, case: tuple[str, int], folder: Path, out: Path) -> bool:
    """Check how a command ended and what it left; return whether there was room."""
    names = sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))
    assert not [one for one in names if "partial" in one or "scratch/draftrt" in one], (case, names)
    assert "Traceback" not in done.output, (case, done.output)
    Bundle.open(folder / "bundle")
    if done.exit_code == 0:
        return True
    assert done.exit_code == 1, (case, done.output)
    told = done.stderr[done.stderr.rindex("Error: ") :]
    assert "defect" not in told, (case, told)
    assert any(why in told for why in NO_ROOM), (case, told)
    assert "/" in told, (case, told)  # the name of a file or folder
    assert "Hint: make room" in told, (case, told)
    for one in out.iterdir():  # what has its final name is whole
        assert not one.is_dir(), (case, names)
        assert one.read_text(encoding="utf-8").rstrip().endswith(("}", "</html>", "</svg>", "|"))
    return False


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("export", 0, "/new: cannot be written: File too large"),
        ("export", 100_000, "/new: cannot be written: File too large"),
        ("bench", 3000, "/bench.svg: cannot be written: File too large"),
        ("report", 0, "/r.html: cannot be written: File too large"),
        ("record", 3000, "/case: cannot be written: File too large"),
        ("golden", 3000, ": temporary files cannot be written: File too large"),
        ("bisect", 0, ": temporary files cannot be written: File too large"),
    ],
)
def test_no_room_is_told_with_the_name_and_leaves_nothing(
    line: Line, tmp_path: Path, name: str, size: int, says: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    words = line(name, out)
    with largest_file(size):
        done = CliRunner().invoke(group, words)
    assert not judge(done, (name, size), tmp_path, out)
    assert says in done.stderr


def test_a_bundle_is_read_where_nothing_can_be_remembered(line: Line, tmp_path: Path) -> None:
    words = line("verify", tmp_path)
    with largest_file(0):
        done = CliRunner().invoke(group, words)
    assert done.exit_code == 0
    assert "cache/draftrt cannot be written (File too large)" in done.stderr


def test_models_that_there_is_no_memory_for_are_refused_before_they_are_loaded(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal: 1000 kB\nMemAvailable: 500 kB\n")
    monkeypatch.setattr(provenance, "MACHINE", memory)
    (tmp_path / "out").mkdir()
    for name in ("export", "run", "bench"):
        done = CliRunner().invoke(group, line(name, tmp_path / "out"))
        assert done.exit_code == 1, name
        assert re.search(r"not enough memory: .* takes about \d\.\d GB, this", done.stderr), name
    done = CliRunner().invoke(group, [*line("run", tmp_path), "--ignore-memory"])
    assert done.exit_code == 0, done.output


@pytest.mark.extended
@pytest.mark.parametrize("name", LINES)
def test_no_room_at_any_write(line: Line, tmp_path: Path, name: str) -> None:
    ends = {}
    sizes = (0, 1000, 30_000, 10**9) if name in PLANS else (0, 4096, 60_000, 300_000, 10**9)
    for size in sizes:
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        words = line(name, out)
        with largest_file(size):
            done = CliRunner().invoke(group, words)
        ends[size] = judge(done, (name, size), tmp_path, out)
    assert ends[10**9], ends
    assert name in ("run", "verify") or not ends[0], ends


@pytest.mark.extended
@pytest.mark.needs("to mount")
@pytest.mark.parametrize("name", ["export", "bench", "report", "record", "golden", "bisect"])
def test_a_small_disk(
    line: Line, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    ends = {}
    for size in (16, 64, 400, 800, 1 << 16):
        words = line(name, disk / "out")
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", disk], check=True)
        try:
            for one in ("out", "scratch"):
                (disk / one).mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(disk / "scratch"))
            monkeypatch.setenv("XDG_CACHE_HOME", str(disk / "cache"))
            done = CliRunner().invoke(group, words)
            ends[size] = judge(done, (name, size), tmp_path, disk / "out")
        finally:
            subprocess.run(["umount", disk], check=True)
    assert ends[1 << 16], ends


def test_every_command_that_writes_files_is_tried() -> None:
    tried = [" ".join(words) for words in LINES.values()]
    for words, _ in of_kind(OutputFile, OutputFolder):
        assert any(one.startswith(" ".join(words)) for one in tried), words


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_write_without_room_is_named(tmp_path: Path, code: int) -> None:
    full = OSError(code, os.strerror(code))
    with pytest.raises(OSError, match=r"place") as named, naming(tmp_path / "place"):
        raise full
    assert named.value.errno == code
    said = r"draftrt-it-.*: temporary files cannot be written: "
    with pytest.raises(DraftrtError, match=said), temporary_folder("it") as folder:
        raise full
    assert not folder.exists()


def test_other_failures_of_writes_stay_as_they_are(tmp_path: Path) -> None:
    gone = FileNotFoundError(errno.ENOENT, "No such file", "a")
    with pytest.raises(FileNotFoundError) as told, temporary_folder("it"), naming(tmp_path):
        raise gone
    assert told.value is gone
    with pytest.raises(OSError, match="Not a directory"):
        write_atomically(Path("/dev/null/a"), b"")


def test_no_folder_for_temporary_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    said = r"temporary files: .*\n.*set TMPDIR"
    with pytest.raises(DraftrtError, match=said), temporary_folder("it"):
        pass
