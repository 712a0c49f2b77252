"""Whatever weight files hold, reading them ends in an answer or an expected failure, and soon."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from draftrt.export.checkpoint.target import TargetCheckpoint
from tests.toys.models import Kind
from tests.unit.export.fuzz import DEEP, as_text, check, nested_text


def header_of(file: Path) -> tuple[dict[str, Any], bytes]:
    raw = file.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def with_header(header: Any, data: bytes) -> bytes:
    text = as_text(header).encode()
    return struct.pack("<Q", len(text)) + text + data


HEADER_JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    7,
    2.5,
    1 << 62,
    10**400,
    "F32",
    "F4",
    "\ud800",
    [],
    [3],
    [0, 1 << 62],
    [-4, 4],
    [1 << 62] * 400,
    [1.0, 2],
    {},
    {"dtype": "F32"},
    DEEP,
)


def test_a_damaged_safetensors_header_never_ends_in_a_traceback(
    toys: Mapping[Kind, Path], target: TargetCheckpoint, tmp_path: Path
) -> None:
    original = toys[Kind.SPECULATORS_DSPARK]
    (tmp_path / "config.json").write_bytes((original / "config.json").read_bytes())
    header, data = header_of(original / "model.safetensors")
    names = [name for name in header if name != "__metadata__"]
    for seed in range(400):
        rng = random.Random(seed)
        changed = copy.deepcopy(header)
        name, junk = rng.choice(names), copy.deepcopy(rng.choice(HEADER_JUNK))
        match rng.randrange(6):
            case 0:
                changed[name] = junk
            case 1:
                changed[name][rng.choice(("dtype", "shape", "data_offsets"))] = junk
            case 2:
                changed[rng.choice((f"{name}x", "", "\ud800", "d2t", "t2d", name))] = changed.pop(
                    rng.choice(names)
                )
            case 3:
                del changed[name]
            case 4:
                changed[name]["shape"] = changed[rng.choice([n for n in names if n in changed])][
                    "shape"
                ]
            case 5:
                entry = changed[rng.choice(("d2t", "t2d", "lm_head.weight"))]
                entry["shape"] = rng.choice(([], [0], [2, 48], [96, 1]))
        (tmp_path / "model.safetensors").write_bytes(with_header(changed, data))
        answered = check(tmp_path, target if seed % 2 else None, f"header, seed {seed}")
        # t2d is not needed for an answer; every other tensor is
        assert not answered or set(header) - {"t2d"} <= set(changed), f"seed {seed}"


def test_a_cut_or_garbled_safetensors_file_is_refused(
    toys: Mapping[Kind, Path], target: TargetCheckpoint, tmp_path: Path
) -> None:
    original = toys[Kind.ZLAB_DFLASH]
    (tmp_path / "config.json").write_bytes((original / "config.json").read_bytes())
    whole = (original / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    cuts = [whole[:size] for size in (0, 1, 7, 8, 9, 100, 8 + length - 1, 8 + length, -1)]
    lengths = [struct.pack("<Q", n) + whole[8:] for n in (0, 1, length - 1, length + 1, 1 << 63)]
    pointer = [b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n"]
    for number, content in enumerate(cuts + lengths + pointer):
        (tmp_path / "model.safetensors").write_bytes(content)
        assert not check(tmp_path, target, f"file {number}")
    for seed in range(300):
        rng, garbled = random.Random(seed), bytearray(whole)
        for _ in range(rng.choice((1, 2, 8))):
            garbled[rng.randrange(8 + length)] = rng.randrange(256)
        (tmp_path / "model.safetensors").write_bytes(garbled)
        check(tmp_path, target, f"garbled, seed {seed}")


@pytest.mark.parametrize(
    "index",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": null}',
        '{"weight_map": {"fc.weight": 3}}',
        '{"weight_map": {}}',
        '{"weight_map": {"fc.weight": ""}}',
        '{"weight_map": {"fc.weight": "."}}',
        '{"weight_map": {"fc.weight": ".."}}',
        '{"weight_map": {"fc.weight": "../../etc/passwd"}}',
        '{"weight_map": {"fc.weight": "/etc/passwd"}}',
        '{"weight_map": {"fc.weight": "a\\u0000b"}}',
        '{"weight_map": {"fc.weight": "\\ud800"}}',
        json.dumps({"weight_map": {"fc.weight": "x" * 4000}}),
        '{"weight_map": {"fc.weight": "model.safetensors", "gone": "model.safetensors"}}',
        '{"weight_map": ' + nested_text(600) + "}",
    ],
    ids=lambda index: index[:60],
)
def test_a_broken_index_is_refused(
    index: str, toys: Mapping[Kind, Path], target: TargetCheckpoint, tmp_path: Path
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((toys[Kind.ZLAB_DFLASH] / name).read_bytes())
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert not check(tmp_path, target, index[:80])


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_in_place_of_a_file_is_refused(
    name: str, toys: Mapping[Kind, Path], target: TargetCheckpoint, tmp_path: Path
) -> None:
    for other in ("config.json", "model.safetensors"):
        (tmp_path / other).write_bytes((toys[Kind.ZLAB_DFLASH] / other).read_bytes())
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert not check(tmp_path, target, name)
