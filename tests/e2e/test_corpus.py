"""Damaged bundles, configs and tokenizers: each ends in an answer or in a sentence."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draftrt.cli import group

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.e2e, pytest.mark.extended, pytest.mark.xdist_group("corpus")]

CASES = 300
DRAFT, TARGET = "tests/assets/tiny-dflash", "tests/assets/tiny-target"
LOST = "@lost"  # the entry is removed
ODD: list[Any] = [
    *[None, True, -1, 0, 1.5, 1e400, 10**12, 10**400, "", "x" * 5000, "\ud800", "/dev/zero"],
    *["../x", [], {}, [[]], LOST],
]
FILES = {
    "bundle": ["manifest.json"],
    "draft": ["config.json"],
    "target": ["config.json"],
    "tokenizer": ["tokenizer.json", "tokenizer_config.json"],
}


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


@pytest.fixture(scope="module")
def bundle(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus") / "bundle"
    line = ["export", str(root / DRAFT), "--target", str(root / TARGET), "-o", str(out)]
    done = CliRunner().invoke(group, [*line, "--max-context", "256"])
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.parametrize("part", range(6))
def test_a_damaged_file_ends_in_an_answer_or_a_sentence(
    part: int, root: Path, bundle: Path, tmp_path: Path
) -> None:
    for seed in range(part, CASES, 6):
        draw = random.Random(seed)
        kind = draw.choice(["bundle", *FILES])
        source = {"bundle": bundle, "draft": root / DRAFT}.get(kind, root / TARGET)
        copy = Path(shutil.copytree(source, tmp_path / "copy"))
        what = damage(copy / draw.choice(FILES[kind]), draw)
        if kind == "bundle":
            run = ["run", str(copy), "--prompt", "a", "--max-tokens", "4"]
            line = draw.choice([["inspect", str(copy)], ["plan", str(copy)], run])
        else:
            pair = [copy if kind == "draft" else root / DRAFT, "--target"]
            pair.append(root / TARGET if kind == "draft" else copy)
            line = [draw.choice(["inspect", "plan"]), *map(str, pair)]
        done = CliRunner().invoke(group, line)
        told = f"seed {seed}: {line[0]} with {what}: {done.exit_code} {done.stderr}"
        assert done.exit_code in (0, 1, 2, 3), told
        assert "a defect of draftrt" not in done.stderr, told
        assert "Traceback" not in done.output, told
        assert done.exit_code == 0 or "Error: " in done.stderr, told
        shutil.rmtree(copy)
