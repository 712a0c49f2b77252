"""Whole texts on the GPU: greedy output is the target's, with and without a drafter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draftrt.cli import group
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import load

pytestmark = [pytest.mark.gpu, pytest.mark.trt, pytest.mark.slow]

PROMPTS = ("The quick brown fox", "def main():", "Once upon a time", "1, 2, 3, 4,")
GREEDY = DecodeOptions(max_tokens=96, stop_ids=frozenset(), schedule="all")


@pytest.mark.parametrize("name", ["tiny-dflash", "tiny-dspark"])
def test_greedy_text_is_that_of_the_target_alone_and_of_onnx_runtime(
    name: str, pair_bundle: Callable[..., Path], gpu: Any
) -> None:
    bundle = pair_bundle(name)
    with load(bundle, backend=gpu.backend.value) as pair, load(bundle) as onnxruntime:
        accepted = 0
        for prompt in PROMPTS:
            drafted = pair.generate(prompt, GREEDY)
            plain = pair.generate(prompt, GREEDY, speculate=False)
            assert drafted.token_ids == plain.token_ids
            assert drafted.token_ids == onnxruntime.generate(prompt, GREEDY).token_ids
            accepted += len(drafted.token_ids) - drafted.stats.num_rounds
        assert accepted > 0, "no draft was ever accepted"


def test_a_cancelled_text_leaves_the_caches_usable(
    pair_bundle: Callable[..., Path], gpu: Any
) -> None:
    with load(pair_bundle("tiny-dspark"), backend=gpu.backend.value) as pair:
        want = pair.generate(PROMPTS[0], GREEDY).token_ids
        for rounds in (1, 2, 5):
            running = pair.stream(PROMPTS[1], GREEDY)
            for _ in range(rounds):
                next(running)
            running.close()
            assert pair.generate(PROMPTS[0], GREEDY).token_ids == want


def test_the_command_line_runs_a_plan(pair_bundle: Callable[..., Path], gpu: Any) -> None:
    bundle = str(pair_bundle("tiny-dflash"))
    line = ["run", bundle, "--prompt", PROMPTS[0], "--max-tokens", "24", "--json", "--ignore-eos"]
    texts = []
    for backend in ("onnxruntime", gpu.backend.value):
        result = CliRunner().invoke(group, [*line, "--backend", backend], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        texts.append(json.loads(result.stdout)["token_ids"])
    assert texts[0] == texts[1]
