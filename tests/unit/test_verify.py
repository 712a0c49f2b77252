"""A bundle whose content changed is noticed, when it is opened and by ``draftrt verify``."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftrt import bundle_files, files
from draftrt.bundle import Bundle, hash_files, write_manifest
from draftrt.bundle_files import SMALL_BYTES, Verify, read_manifest
from draftrt.cli import group
from draftrt.errors import BundleError, DraftrtError
from draftrt.export.options import ExportOptions, WeightMode
from draftrt.export.pipeline import export_bundle
from draftrt.files import sample_sha256, sha256_of
from draftrt.manifest import PlanEntry
from draftrt.quantization import parse_quantization

NUM_BUNDLES = 3


@pytest.fixture(scope="module")
def bundles(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The shipped pair with its weights copied, linked and quantised, a plan in the first."""
    folder = tmp_path_factory.mktemp("verify")
    for name in ("tiny-target", "tiny-dflash"):
        shutil.copytree(assets / name, folder / name)
    choices = {
        "copied": ExportOptions(),
        "linked": ExportOptions(weights=WeightMode.LINK),
        "quantised": ExportOptions(quantization=parse_quantization(["int8"]), target_graph=False),
    }
    made = [
        export_bundle(folder / "tiny-dflash", folder / "tiny-target", folder / name, options)
        for name, options in choices.items()
    ]
    add_plan(made[0])
    assert len(made) == NUM_BUNDLES
    return made


def add_plan(bundle: Path) -> None:
    """Put a file in the place of a plan, with its log: TensorRT is not needed to notice changes."""
    (bundle / "plans").mkdir()
    (bundle / "plans" / "a.plan").write_bytes(random.Random(1).randbytes(5000))
    (bundle / "plans" / "a.log").write_text("built")
    manifest = read_manifest(bundle)
    plan = PlanEntry(
        file="plans/a.plan",
        log="plans/a.log",
        graph="draft",
        graph_sha256=manifest.files["draft.onnx"].sha256,
        backend="tensorrt-rtx",
        backend_version="1",
        sms=(86,),
        options={"tf32": "off"},
        build_seconds=1.5,
        peak_rss_bytes=1,
        size_bytes=5000,
        sha256=sha256_of(bundle / "plans" / "a.plan"),
        log_sha256=sha256_of(bundle / "plans" / "a.log"),
    )
    write_manifest(bundle, replace(manifest, plans={plan.file: plan}))


@pytest.fixture
def bundle(bundles: list[Path], tmp_path: Path) -> Path:
    """A copy of the first."""
    return Path(shutil.copytree(bundles[0], tmp_path / "bundle"))


def run(*words: object) -> Result:
    return CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)


def flip(path: Path, place: int, bit: int = 64) -> None:
    """Change a bit in place, as a bad disk or a bad copy does."""
    with path.open("r+b") as stream:
        stream.seek(place)
        old = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([old ^ bit]))


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of files that are read whole from now on."""
    names: list[str] = []
    real = sha256_of

    def record(path: Path, *rest: object) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(bundle_files, "sha256_of", record)
    return names


def large_files(bundle: Path) -> set[str]:
    return {one.name for one in bundle.rglob("*") if one.stat().st_size > SMALL_BYTES}


def test_an_export_counts_as_a_verification(
    bundles: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any other test touches those files."""
    names = hashed(monkeypatch)
    for bundle in bundles:
        names.clear()
        Bundle.open(bundle)
        assert large_files(bundle).isdisjoint(names)


def damage(content: bytearray, draw: random.Random) -> str:
    """Change a file's content and keep its size; return how."""
    size = len(content)
    kind = draw.choice(["bit", "exponent", "zeros", "cut and padded"])
    place = draw.randrange(size)
    if kind == "bit":
        content[place] ^= 1 << draw.randrange(8)
    elif kind == "exponent":
        content[min(place | 3, size - 1)] ^= 64
    elif kind == "zeros":
        place = min(place, max(0, size - 4096))
        content[place : place + 4096] = bytes(len(content[place : place + 4096]))
    else:
        content[place:] = bytes(size - place)
    return f"{kind} at {place}"


def check_flips(bundles: list[Path], seed: int, count: int) -> None:
    """Damage a file drawn by chance, ``count`` times: neither `verify` nor an open passes it."""
    draw, passed = random.Random(seed), []
    for _ in range(count):
        bundle = draw.choice(bundles)
        path = draw.choice([one for one in sorted(bundle.rglob("*")) if one.is_file()])
        before = path.read_bytes()
        content = bytearray(before)
        told = damage(content, draw)
        if content == before:
            continue
        os.utime(path, None)
        path.write_bytes(content)
        try:
            verdict = run("verify", bundle)
            opened = run("run", bundle, "--prompt", "a")
            if verdict.exit_code not in (1, 3) or opened.exit_code != 1:
                passed.append(f"{path}: {told}: {verdict.exit_code}, {opened.exit_code}")
            assert opened.stderr.startswith("Error: ")
            assert path.name in verdict.stderr
        finally:
            path.write_bytes(before)
    assert passed == []
    assert [run("verify", bundle).exit_code for bundle in bundles] == [0] * NUM_BUNDLES


def test_no_flip_passes(bundles: list[Path]) -> None:
    check_flips(bundles, seed=1, count=24)


@pytest.mark.extended
@pytest.mark.parametrize("seed", [2, 3])
def test_none_of_many_flips_passes(bundles: list[Path], seed: int) -> None:
    check_flips(bundles, seed, count=200)


def test_every_bit_of_a_manifest_counts(bundle: Path) -> None:
    path = bundle / "manifest.json"
    text = path.read_bytes()
    draw = random.Random(4)
    for place in [*range(10), *draw.sample(range(len(text)), 25)]:
        for bit in range(8):
            content = bytearray(text)
            content[place] ^= 1 << bit
            path.write_bytes(content)
            with pytest.raises(DraftrtError):
                Bundle.open(bundle)


def test_all_is_hashed_at_the_first_open_and_large_files_are_remembered(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = hashed(monkeypatch)
    Bundle.open(bundle)
    assert large_files(bundle) <= set(names)
    names.clear()
    Bundle.open(bundle)
    assert large_files(bundle)
    assert large_files(bundle).isdisjoint(names)
    assert "tokenizer.json" in names  # a small file is read each time
    names.clear()
    Bundle.open(bundle, verify=Verify.NONE)
    assert names == []
    assert run("verify", bundle).exit_code == 0
    assert large_files(bundle) <= set(names)


def test_a_change_after_a_good_verification_is_noticed(bundle: Path) -> None:
    """Between two samples and of the old size: the stamp alone tells that it was touched."""
    Bundle.open(bundle)
    path = bundle / "target.onnx.data"
    place = 300_000
    sample = files.read_known(bundle)["target.onnx.data"].sample_sha256
    flip(path, place)
    assert sample_sha256(path) == sample
    with pytest.raises(BundleError, match=r"target\.onnx\.data got sha256 \w+…, expected"):
        Bundle.open(bundle)
    flip(path, place)
    Bundle.open(bundle)


def test_a_change_without_a_trace_is_noticed_in_the_samples(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a disk that rots: times, place and size stay."""
    Bundle.open(bundle)
    path = bundle / "target.onnx.data"
    stamp = files.stamp_of(path)
    flip(path, 100)
    real = files.stamp_of
    monkeypatch.setattr(
        bundle_files, "stamp_of", lambda one: stamp if one.name == path.name else real(one)
    )
    with pytest.raises(BundleError, match=r"target\.onnx\.data got sha256"):
        Bundle.open(bundle)


def test_a_record_that_is_damaged_means_that_nothing_is_remembered(
    bundle: Path, own_cache: Path
) -> None:
    Bundle.open(bundle)
    for path in (own_cache / "draftrt" / "verified").iterdir():
        path.write_text('{"files": {"target.onnx.data": 5}}')
    assert files.read_known(bundle) == {}
    flip(bundle / "target.onnx.data", 300_000)
    with pytest.raises(BundleError, match="got sha256"):
        Bundle.open(bundle)


@pytest.fixture
def full_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that nobody can write to."""
    place = tmp_path / "cache"
    place.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    monkeypatch.setattr(files, "_told", set())
    return place


def test_it_is_said_once_where_nothing_can_be_remembered(
    bundle: Path, full_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Bundle.open(bundle)
    Bundle.open(bundle)
    told = capsys.readouterr().err
    assert told.count(f"note: {full_cache / 'draftrt'} cannot be written (Not a directory)") == 1
    assert "--no-verify" in told
    flip(bundle / "target.onnx.data", 300_000)
    with pytest.raises(BundleError, match="got sha256"):
        Bundle.open(bundle)


def test_verify_names_every_file_with_what_it_got(bundle: Path) -> None:
    good = run("verify", bundle)
    count = len(hash_files(bundle)) + 2  # a plan and its log
    assert good.exit_code == 0
    assert good.stdout.startswith(f"{bundle}: {count} files, ")
    assert good.stdout.endswith("MB, all as written\n")
    flip(bundle / "draft.onnx.data", 5)
    (bundle / "plans" / "a.log").write_text("other")
    (bundle / "tokenizer" / "tokenizer.json").unlink()
    bad = run("verify", bundle, "--json")
    assert bad.exit_code == 3
    found = json.loads(bad.stdout)
    assert (found["ok"], found["files"]) == (False, count)
    assert sorted(found["problems"]) == [
        *("draft.onnx.data", "plans/a.log", "tokenizer/tokenizer.json"),
    ]
    assert f"3 of {count} files are not as they were written" in bad.stderr
    assert run("verify", bundle / "plans").exit_code == 1


def test_a_bundle_of_an_older_build_opens_and_lacks_are_told(bundle: Path) -> None:
    """Without the manifest's checksum and the hashes of plans."""
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    for name in ("sha256", "log_sha256"):
        del content["plans"]["plans/a.plan"][name]
    path.write_text(json.dumps(content))
    done = run("verify", bundle)
    assert done.exit_code == 0
    assert "of plans/a.plan the manifest has no hash of every byte" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--prompt", "a", "--max-tokens", 2),
        ("inspect",),
        ("plan",),
        ("validate", "parity"),
        ("validate", "bisect"),
        ("doctor", "acceptance", "--prompts", Path(__file__)),
        ("build", "--sm", 86),
        ("report", "--no-parity", "-o", "/dev/null/x"),
        ("bench",),
        ("validate", "ranges"),
        ("validate", "reuse"),
    ],
    ids=lambda words: " ".join(map(str, words[:2])),
)
def test_every_command_refuses_a_bundle_with_a_changed_byte(
    words: tuple[object, ...], bundle: Path, tmp_path: Path
) -> None:
    flip(bundle / "target.onnx.data", 300_000)
    at = 2 if words[0] in ("validate", "doctor") else 1
    rest = [str(tmp_path / "r.html") if str(one) == "/dev/null/x" else one for one in words[at:]]
    done = run(*words[:at], bundle, *rest)
    assert done.exit_code == 1, done.output
    assert "target.onnx.data got sha256" in done.stderr


def test_without_verification_sizes_are_compared_alone(bundle: Path) -> None:
    flip(bundle / "target.onnx.data", 300_000)
    for words in (("inspect",), ("plan",), ("run", "--prompt", "a", "--max-tokens", 2)):
        done = run(words[0], bundle, *words[1:], "--no-verify")
        assert done.exit_code == 0, done.output
    (bundle / "target.onnx.data").write_bytes(b"")
    done = run("inspect", bundle, "--no-verify")
    assert (done.exit_code, "has 0 bytes, expected" in done.stderr) == (1, True)


@pytest.mark.parametrize("size", [4999, 5001])
def test_the_size_of_a_plan_is_compared_too(bundle: Path, size: int) -> None:
    (bundle / "plans" / "a.plan").write_bytes(bytes(size))
    with pytest.raises(BundleError, match=f"plans/a.plan.* has {size} bytes, expected 5000"):
        Bundle.open(bundle, verify=Verify.NONE)
    assert Bundle.open(bundle, verify=Verify.NONE, needs_plans=False).manifest.plans == {}
