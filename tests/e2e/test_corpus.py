"""Damaged bundles, configs, templates and prompts: each ends in the right text or in a sentence."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draftrt.cli import group

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.e2e, pytest.mark.extended, pytest.mark.xdist_group("corpus")]

CASES = 300
SONG = "A song of 20 green bags:"
DRAFT, TARGET = "tests/assets/tiny-dflash", "tests/assets/tiny-target"
LOST = "@lost"  # the entry is removed
ODD: list[Any] = [
    *[None, True, -1, 0, 1.5, 1e400, 10**12, 10**400, "", "x" * 5000, "\ud800", "/dev/zero"],
    *["../x", [], {}, [[]], LOST],
]
FILES = {
    "draft": ["config.json"],
    "target": ["config.json", "generation_config.json"],
    "tokenizer": ["tokenizer.json", "tokenizer_config.json"],
}
KINDS = ["manifest"] * 5 + ["bytes"] * 4 + ["prompt"] * 3 + ["template"] * 2 + list(FILES) * 2
WANTED = ["--max-tokens", "8"]
TEMPLATES = [
    *["{% for m in messages %}", "{{", "{% endif %}", "{{ nothing.at.all }}", "{{ 1 / 0 }}"],
    *["{{ messages[99].content }}", "{{ ''.__class__.__mro__ }}", "{{ raise_exception('no') }}"],
    *["{% for i in range(10**12) %}x{% endfor %}", "{{ 'a' * 10**10 }}", "{{ 9 ** 9 ** 9 }}"],
    *["{% include '/etc/passwd' %}", "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "", "\x00"],
    *["{{ messages | tojson }}", "{{ messages[0]['content'] }}", "{{ odd }}", "(" * 9999],
]
PROMPTS = [
    *[b"", b"\n", b"caf\xe9", b"\xff\xfe\x00a", b"\x00\x01\x1b[31m", b"\xed\xa0\x80", b"a" * 10**6],
    *["\u202e\U0001f600 \u0301".encode(), b"A song of 20 green bags:", b"\xef\xbb\xbfa", b"\r\r\n"],
]
LINES = [
    *[b"{", b"[]", b"1", b'{"prompt": 1}', b'{"messages": []}', b'{"messages": [{"role": 1}]}'],
    *[b'{"prompt": "a"}', b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "\\ud800"}', b"null"],
    *[b'{"messages": [{"role": "user", "content": "a"}]}', b'{"prompt": "a"}\n{', b"\xff"],
    *[b'{"messages": [{"role": "user", "content": null}]}', b"[" * 10**5, b'{"nothing": 1}'],
]


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each entry of JSON data; of a list to its first ones."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value[:4]))
    for key, entry in inner:
        yield (*above, key)
        yield from places(entry, (*above, key))


def damage(path: Path, draw: random.Random) -> str:
    """Put something odd at one place of a JSON file; return what and where."""
    data = json.loads(path.read_text(encoding="utf-8"))
    place, odd = draw.choice(list(places(data))), draw.choice(ODD)
    holder = data
    for key in place[:-1]:
        holder = holder[key]
    if odd == LOST:
        del holder[place[-1]]
    else:
        holder[place[-1]] = odd
    path.write_text(json.dumps(data), encoding="utf-8")
    return f"{path.name} {place}: {odd!r:.40}"


def damage_bytes(folder: Path, draw: random.Random) -> str:
    """Flip a bit, cut or blank a part of a graph or its weights; return what and where."""
    path = draw.choice(sorted(f for f in folder.iterdir() if f.suffix in (".onnx", ".data")))
    content = bytearray(path.read_bytes())
    at, how = draw.randrange(len(content)), draw.choice(["bit", "cut", "zeros", "noise"])
    count = min(4096, len(content) - at)
    if how == "bit":
        content[at] ^= 1 << draw.randrange(8)
    elif how == "cut":
        del content[at:]
    else:
        content[at : at + count] = bytes(count) if how == "zeros" else draw.randbytes(count)
    path.write_bytes(content)
    return f"{path.name}: {how} at {at}"


def set_template(folder: Path, template: Any) -> str:
    """Give a bundle a chat template and manifest entries that suit; return it."""
    name = "tokenizer/tokenizer_config.json"
    config = json.loads((folder / name).read_text(encoding="utf-8"))
    content = json.dumps(config | {"chat_template": template}).encode()
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (folder / "tokenizer/chat_template.jinja").unlink()  # it would come before the config's
    del manifest["files"]["tokenizer/chat_template.jinja"]
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"][name] = {"bytes": len(content), "sha256": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return f"chat template {template!r:.60}"


def case(
    kind: str, draw: random.Random, copy: Path, pair: dict[str, Path]
) -> tuple[str, list[str]]:
    """Make one damaged input of a copy; return what it is, and the command line that meets it."""
    run = ["run", str(copy), *WANTED, "--prompt", SONG]
    if kind in FILES:
        what = damage(copy / draw.choice(FILES[kind]), draw)
        both = [str(copy if kind == "draft" else pair["draft"]), "--target"]
        both.append(str(pair["target"] if kind == "draft" else copy))
        export = ["export", *both, "-o", str(copy.parent / "out"), "--max-context", "64"]
        return what, draw.choice([["inspect", *both], ["plan", *both], ["plan", *both], export])
    if kind == "manifest":
        what = damage(copy / "manifest.json", draw)
        return what, draw.choice([["inspect", str(copy)], ["plan", str(copy)], run, run])
    if kind == "bytes":
        what = damage_bytes(copy, draw)
        checks = [["validate", name, str(copy)] for name in ("parity", "bisect")]
        build = ["build", str(copy), "--sm", "86"]
        return what, draw.choice([run, run, run, *checks, build, ["verify", str(copy)]])
    if kind == "template":
        what = set_template(copy, draw.choice([*TEMPLATES, *ODD[:-1]]))
        odd = draw.choice(["odd=1", "odd", "=", "messages=[]", "odd=" + "[" * 5000])
        return what, [*run, *draw.choice([["--chat"], ["--chat"], ["--template-var", odd]])]
    option, texts = draw.choice([("--prompt-file", PROMPTS), ("--prompts", LINES)])
    content = draw.choice(texts)
    (copy / "prompt.txt").write_bytes(content)
    return f"{option} {content!r:.40}", [*run[:2], *WANTED, option, str(copy / "prompt.txt")]


@pytest.fixture(scope="module")
def bundle(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus") / "bundle"
    line = ["export", str(root / DRAFT), "--target", str(root / TARGET), "-o", str(out)]
    done = CliRunner().invoke(group, [*line, "--max-context", "256"])
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.parametrize("part", range(12))
def test_a_damaged_input_ends_in_the_right_text_or_a_sentence(
    part: int, root: Path, bundle: Path, tmp_path: Path
) -> None:
    pair = {"draft": root / DRAFT, "target": root / TARGET, "tokenizer": root / TARGET}
    right = CliRunner().invoke(group, ["run", str(bundle), *WANTED, "--prompt", SONG]).stdout
    wrong = []
    for seed in range(part, CASES, 12):
        draw = random.Random(seed)
        kind = draw.choice(KINDS)
        copy = Path(shutil.copytree(pair.get(kind, bundle), tmp_path / "copy"))
        what, line = case(kind, draw, copy, pair)
        done = CliRunner().invoke(group, line)
        told = f"seed {seed}: {line[0]} with {what}: {done.exit_code} {done.stderr[-600:]}"
        is_told = done.exit_code == 0 or "Error: " in done.stderr
        is_clean = "a defect of draftrt" not in done.stderr and "Traceback" not in done.output
        if done.exit_code not in (0, 1, 2, 3) or not is_told or not is_clean:
            wrong.append(told)
        if done.exit_code == 0 and line[0] == "run":
            if kind == "prompt":
                right_one = CliRunner().invoke(group, [*line, "--plain"]).stdout
            elif kind == "template":
                right_one = done.stdout
            else:
                right_one = right
            if done.stdout != right_one:
                wrong.append(f"{told}: got {done.stdout!r}, expected {right_one!r}")
        if kind == "bytes" and done.exit_code == 0:
            wrong.append(told)
        shutil.rmtree(copy)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        if left := [path.name for path in tmp_path.iterdir()]:
            wrong.append(f"{told}: left {left}")
    assert not wrong, "\n".join(wrong)


BOMB = (
    "{% set x = namespace(a='a') %}{% for i in range(99999) %}{% set x.a = x.a + x.a %}{% endfor %}"
)
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from draftrt.cli import group
try:
    group(sys.argv[1:])
finally:
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


@pytest.mark.parametrize(
    "line",
    [
        ["run", "{bundle}", "--prompt-file", "/dev/zero"],
        ["run", "{bundle}", "--prompts", "/dev/zero"],
        ["run", "{bundle}", "--chat", "--prompt", "a"],
        ["validate", "parity", "{bundle}", "--rounds", "999999999"],
        ["export", DRAFT, "--target", TARGET, "--max-context", "16000000", "-o", "{bundle}-b"],
    ],
    ids=lambda line: line[0] + line[2].strip("-").replace(DRAFT, ""),
)
def test_an_endless_input_ends_soon_and_in_little_memory(
    line: list[str], root: Path, bundle: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    set_template(
        copy,
        BOMB,
    )
    words = [word.format(bundle=copy) for word in line]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *words],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (1, 2), done.stderr
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert all(int(row.split()[1]) < 2e9 for row in done.stdout.splitlines() if "peak" in row)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
