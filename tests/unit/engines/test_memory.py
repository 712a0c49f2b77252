"""Devices, what graphs take on them, and builds that are refused for want of memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftrt.bundle import Bundle, write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.cli import group
from draftrt.engines.capabilities import Backend
from draftrt.engines.devices import DEVICES, find_device
from draftrt.engines.memory import check_fits, graph_memory
from draftrt.errors import BuildError, ChoiceError
from draftrt.signature import DimRange, Signature, TensorSpec
from draftrt.spec import Precision

CACHE = (1, 2, 100, 16)
TABLE = Signature(
    inputs=(
        TensorSpec(name="ids", dtype="int64", shape=(1, "R")),
        TensorSpec(name="past_key_0", dtype="float16", shape=CACHE),
        TensorSpec(name="past_value_0", dtype="float16", shape=CACHE),
    ),
    outputs=(
        TensorSpec(name="logits", dtype="float32", shape=(1, "R", 50)),
        TensorSpec(name="present_key_0", dtype="float16", shape=CACHE, alias="past_key_0"),
        TensorSpec(name="present_value_0", dtype="float16", shape=CACHE, alias="past_value_0"),
    ),
    dimensions={"R": DimRange(min=1, opt=2, max=8)},
)


def test_caches_and_scratch_are_counted_from_the_signature() -> None:
    whole = graph_memory(10**9, 9 * 10**8, TABLE, 100)
    assert whole.caches == 2 * 2 * 100 * 16 * 2
    assert whole.scratch == 64 * 2**20 + 2 * (8 * 8 + 4 * 8 * 50)
    assert graph_memory(10**9, 9 * 10**8, TABLE, 100, 25).caches == whole.caches // 4
    assert whole.device == whole.plan + whole.caches + whole.scratch
    assert whole.plan > whole.weights


@pytest.mark.parametrize(
    ("name", "sm", "builders"),
    [
        ("Orin Nano 8GB", 87, ["tensorrt"]),
        ("thor", 110, ["tensorrt"]),
        ("h200", 90, ["tensorrt"]),
        ("RTX_4090", 89, ["tensorrt-rtx", "tensorrt"]),
        ("dgx-spark", 121, ["tensorrt-rtx", "tensorrt"]),
    ],
)
def test_a_device_names_its_sm_and_the_builders_that_reach_it(
    name: str, sm: int, builders: list[str]
) -> None:
    device = find_device(name)
    assert device.sm == sm
    for precision in Precision:
        assert [backend.value for backend in device.builders(precision)] == builders
    assert 0 < device.usable_bytes < device.memory_bytes


def test_turing_has_no_bf16_and_float32_products_with_classic_tensorrt_alone() -> None:
    assert find_device("t4").builders(Precision.FP16) == (Backend.TENSORRT,)
    assert find_device("t4").builders(Precision.BF16) == ()


def test_an_unknown_device_is_refused_with_the_list() -> None:
    with pytest.raises(ChoiceError, match="'rtx-9090' is not known, expected one of orin"):
        find_device("rtx-9090")
    result = CliRunner().invoke(group, ["build", "nowhere", "--device", "l4", "--sm", "80,86"])
    assert result.exit_code == 2
    assert "--device l4 has SM89: got --sm 80,86, expected 89 among them" in result.stderr
    result = CliRunner().invoke(group, ["build", "nowhere", "--device", "rtx-9090"])
    assert result.exit_code == 2
    assert all(name in result.stderr for name in DEVICES)


def test_what_does_not_fit_a_device_is_refused_with_the_numbers(
    make_bundle: Callable[..., Path],
) -> None:
    folder = make_bundle(Precision.FP16)
    board = find_device("orin-nano-8gb")
    check_fits(Bundle.open(folder), ["draft"], board)
    small = dataclasses.replace(board, memory_bytes=2 * 2**30 + 10**6)
    with pytest.raises(BuildError, match=r"orin-nano-8gb has 0\.0 GB of its 2\.1 GB") as caught:
        check_fits(Bundle.open(folder), ["draft"], small)
    assert "--ignore-memory" in caught.value.hint


def test_a_build_that_cannot_fit_is_refused_before_it_begins_unless_told(
    make_bundle: Callable[..., Path],
) -> None:
    folder = make_bundle(Precision.FP16)
    manifest = read_manifest(folder)
    huge = dataclasses.replace(manifest.graphs["draft"], weight_bytes=9 * 10**12)
    write_manifest(folder, dataclasses.replace(manifest, graphs={"draft": huge}))
    line = ["build", str(folder), "--device", "rtx-4090"]
    refused = CliRunner().invoke(group, line)
    assert refused.exit_code == 1
    for text in (
        "the build of draft takes about",
        "the disk has",
        "rtx-4090 has 25.0 GB of its 25.8 GB",
    ):
        assert text in refused.stderr
    assert not (folder / "plans").exists()
    told = CliRunner().invoke(group, [*line, "--ignore-memory"], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    assert "SM 89" in told.stdout
