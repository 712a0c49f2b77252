"""A token's logits do not depend on how many tokens are verified with it, bit for bit.

Decoding with a drafter verifies several rows at once, plain decoding one: where the two are
computed in different ways, near ties become other texts.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import draftrt
from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.errors import BackendError
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import open_graph
from draftrt.runtime.targets.base import TargetRows
from draftrt.runtime.targets.graph import GraphTarget

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("one row")]
CONTEXT, PROMPT = 64, 9
KINDS = {
    "fp32": ["--precision", "fp32"],
    "fp16": ["--precision", "fp16"],
    "int8": ["--precision", "fp32", "--quantize", "int8"],
    "int4": ["--precision", "fp16", "--quantize", "int4"],
    "linked": ["--precision", "fp32", "--weights", "link"],
}


@pytest.fixture(scope="module", params=KINDS)
def bundle(
    request: pytest.FixtureRequest, assets: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for name in ("tiny-dflash", "tiny-target"):  # links need one file system
        shutil.copytree(assets / name, folder / name)
    line = ["export", str(folder / "tiny-dflash"), "--target", str(folder / "tiny-target")]
    line += ["-o", str(folder / "out"), "--max-context", str(CONTEXT), *KINDS[request.param]]
    done = CliRunner().invoke(group, line, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return folder / "out"


def logits_of(rows: TargetRows) -> NDArray[np.float32]:
    assert rows.logits is not None
    return rows.logits


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("map_weights", [False, True], ids=["packed", "mapped"])
def test_rows_verified_together_have_the_logits_of_rows_verified_alone(
    bundle: Path, map_weights: bool, threads: int
) -> None:
    with draftrt.load(bundle, map_weights=map_weights, threads=threads) as pair:
        target = pair.target
        ids = np.random.default_rng(1).integers(3, 60, PROMPT + 16)
        target.rollback(0)
        target.prefill(ids[:PROMPT])
        alone = []
        for at in range(PROMPT, len(ids)):
            alone.append(target.verify(ids[at : at + 1], want_logits=True))
            assert target.length == at + 1
        for count in (2, 3, 4, 5, 8):
            for at in range(PROMPT, len(ids) - count, count):
                target.rollback(at)
                rows = target.verify(ids[at : at + count], want_logits=True)
                expected = alone[at - PROMPT : at - PROMPT + count]
                logits = np.concatenate([logits_of(one) for one in expected])
                np.testing.assert_array_equal(logits_of(rows), logits)
                features = np.concatenate([one.features for one in expected], axis=1)
                np.testing.assert_array_equal(rows.features, features)
                assert rows.token_ids.tolist() == [one.token_ids[0] for one in expected]


def test_mapped_weights_give_one_text_with_and_without_the_drafter_to_the_last_row(
    bundle: Path,
) -> None:
    with draftrt.load(bundle, map_weights=True) as pair:
        assert pair.target.max_context == CONTEXT - 1  # one row is kept for the repeated token
        most = pair.decoder.most_tokens - PROMPT
        options = DecodeOptions(max_tokens=most, stop_ids=frozenset())
        for seed in range(4):
            prompt = np.random.default_rng(seed).integers(3, 60, PROMPT)
            drafted = pair.generate(prompt, options)
            plain = pair.generate(prompt, options, speculate=False)
            assert drafted.token_ids == plain.token_ids
        rest = DecodeOptions(stop_ids=frozenset())
        assert len(pair.generate(prompt, rest, speculate=False).token_ids) == CONTEXT - PROMPT


def test_more_threads_than_share_the_rows_of_a_call_are_refused_with_mapped_weights(
    bundle: Path,
) -> None:
    with pytest.raises(BackendError, match="mapped weights on 33 threads") as refusal:
        draftrt.load(bundle, map_weights=True, threads=33)
    assert "use at most" in refusal.value.hint


def test_without_the_repeated_token_mapped_weights_would_not_be_lossless(bundle: Path) -> None:
    """What the rule guards against; where it no longer holds, it can go."""
    with open_graph(Bundle.open(bundle), "target", map_weights=True) as session:
        target = GraphTarget(session, CONTEXT)
        ids = np.random.default_rng(1).integers(3, 60, PROMPT + 8)
        target.prefill(ids[:PROMPT])
        together = logits_of(target.verify(ids[PROMPT:], want_logits=True))
        target.rollback(PROMPT)
        alone = [
            target.verify(ids[at : at + 1], want_logits=True) for at in range(PROMPT, len(ids))
        ]
    pairs = zip(alone, together, strict=True)
    assert any((logits_of(one)[0] != row).any() for one, row in pairs)
