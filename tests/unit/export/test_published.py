"""Published drafters at their own dimensions: read from headers alone, right, and at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import read_target
from draftrt.spec import RopeLayout, TableSource, VocabMap
from tests.unit.export.published import DFLASH2, ROWS, Published
from tests.unit.export.published_files import shapes_of, write_its_target, write_published


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_drafter_of_published_dimensions_is_read_from_its_headers(
    row: Published, tmp_path: Path
) -> None:
    folder = write_published(tmp_path / "draft", row)
    target = read_target(write_its_target(tmp_path / "target", row))
    start = time.process_time()
    loaded = load_drafter(folder, target)
    assert time.process_time() - start < 1.0
    spec = loaded.spec
    assert spec.target_layer_ids == row.taps
    assert spec.mask_token_id == row.mask
    assert spec.rope.theta == row.theta
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == row.heads
    wider = 1 if "Muse" in row.architecture else 0  # its far edge is inside the window
    for rule, kind in zip(spec.layers, row.layer_types, strict=True):
        slides = kind == "sliding_attention"
        assert rule.window == ((row.window or 0) + wider if slides else None)
    anchored = "DSpark" in row.architecture
    assert spec.num_draft_tokens == (row.block if anchored else row.block - 1)
    own = TableSource.DRAFT if row.ships_tables else TableSource.TARGET
    assert (spec.embed_source, spec.head_source) == (own, own)
    interleaved = "LiquidAI" in next(name for name, other in ROWS.items() if other is row)
    assert (spec.rope.layout is RopeLayout.INTERLEAVED) == interleaved
    assert spec.num_padded_rows == row.vocab - row.target[2]
    assert spec.vocab_map is VocabMap.IDENTITY
    assert not spec.is_reduced
    assert {loaded.original_names[name] for name in loaded.original_names} == set(shapes_of(row))
    if row.architecture == DFLASH2:
        assert spec.selector is not None
        assert spec.selector.top_k == 16


def test_a_drafter_of_a_deeper_target_is_refused(
    tmp_path: Path, inspect: Callable[..., Result]
) -> None:
    """Four of five features used to be enough to run, and nothing was accepted."""
    row = ROWS["z-lab/Qwen3-4B-DFlash-b16"]
    folder = write_published(tmp_path / "draft", row)
    shallow = write_its_target(tmp_path / "target", row, num_hidden_layers=32, vocab_size=151_936)
    result = inspect(folder, "--target", shallow)
    assert result.exit_code == 1
    assert "[1, 9, 17, 25, 33]: got layers [33], expected at most 31" in result.stderr
    assert "num_target_layers: got 36, expected 32" in result.stderr
    assert "trained for another target" in result.stderr


def test_the_layout_is_the_drafts_own_whatever_the_target_rotates(tmp_path: Path) -> None:
    row = ROWS["incoai/Qwen3.8-27B-DFlash2"]
    folder = write_published(tmp_path / "draft", row)
    kinds: list[dict[str, Any]] = [
        {"rope_interleave": True},
        {"is_neox_style": False},
        {"no_rope_layers": [0] * 64},
    ]
    for number, keys in enumerate(kinds):
        target = read_target(write_its_target(tmp_path / str(number), row, **keys))
        assert load_drafter(folder, target).spec.rope.layout is RopeLayout.NEOX


def test_inspect_takes_little_processor_time_and_loads_no_framework(
    root: Path, tmp_path: Path
) -> None:
    row = ROWS["deepseek-ai/dspark_qwen3_14b_block7"]
    folder = write_published(tmp_path / "draft", row)
    target = write_its_target(tmp_path / "target", row)
    assert (folder / "model.safetensors").stat().st_size > 5e9
    probe = (
        "import sys, time, json\n"
        "from click.testing import CliRunner\n"
        "from draftrt.cli import group\n"
        "start = time.process_time()\n"
        "result = CliRunner().invoke(group, ['inspect', *sys.argv[1:]])\n"
        "assert result.exit_code == 0, result.output\n"
        "print(json.dumps([time.process_time() - start, sorted(sys.modules), result.stdout]))"
    )
    command = [sys.executable, "-c", probe, str(folder), "--target", str(target)]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    seconds, modules, table = json.loads(run.stdout)
    assert seconds < 5.0  # of the processor; weights of 5 GB read whole would take more
    assert not {"torch", "onnx", "transformers", "safetensors"} & set(modules)
    for text in ("num_draft_tokens", "markov", "1, 10, 19, 28, 37", "parameters", "embed_source"):
        assert text in table
