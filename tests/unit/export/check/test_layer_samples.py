"""Drafts as draws: greedy without noise to the last bit, led by the noise where there is some."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftrt.errors import ExportError
from draftrt.export.check.compare import compare_outputs
from draftrt.export.check.feeds import empty_caches, round_feeds
from draftrt.export.check.reference import reference_module
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import TargetCheckpoint
from draftrt.export.models.drafter import Drafter
from draftrt.export.models.signature import EXTRA_OUTPUTS, SAMPLED_OUTPUTS, draft_signature
from draftrt.export.options import ExportOptions
from draftrt.export.weights.tensors import draft_tensors
from draftrt.export.write_graphs import write_draft_graph
from draftrt.spec import Precision, VocabMap
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter

CONTEXT = 32
TOYS: dict[str, ToyDrafter] = {
    "dflash": ToyDrafter(kind=Kind.ZLAB_DFLASH),
    "dflash2": ToyDrafter(kind=Kind.ZLAB_DFLASH2),
    "vanilla": ToyDrafter(kind=Kind.DEEPSPEC_DSPARK),
    "gated": ToyDrafter(kind=Kind.DEEPSPEC_DSPARK, markov_type="gated"),
    "rnn": ToyDrafter(kind=Kind.DEEPSPEC_DSPARK, markov_type="rnn"),
    "reduced": ToyDrafter(kind=Kind.SPECULATORS_DSPARK, draft_vocab_size=96),
    "reduced-dflash": ToyDrafter(kind=Kind.SPECULATORS_DFLASH, draft_vocab_size=96),
}
Outputs = Mapping[str, Tensor]


class Walker:
    """A toy drafter as a greedy and as a sampled module, fed the same round."""

    def __init__(self, folder: Path, toy: ToyDrafter, target: TargetCheckpoint) -> None:
        self.loaded = load_drafter(write_drafter(folder, toy), target)
        self.spec = self.loaded.spec
        tensors = draft_tensors(self.spec, self.loaded.tensors, Precision.FP32, CONTEXT)
        self.greedy, self.sampled = (
            reference_module(self.spec, tensors, extra_outputs=EXTRA_OUTPUTS, is_sampled=sampled)
            for sampled in (False, True)
        )
        self.feeds = {
            name: torch.from_numpy(array)
            for name, array in round_feeds(
                self.spec, np.random.default_rng(3), new_rows=5, context_length=0, walk="greedy"
            ).items()
        }

    def run(self, module: Drafter, **feeds: Tensor) -> dict[str, Tensor]:
        given = self.feeds | feeds
        caches = empty_caches(self.spec, Precision.FP32, CONTEXT)
        with torch.no_grad():
            out = module(*(given[name] for name in module.inputs), *caches)
        return dict(zip(module.outputs, out[: len(module.outputs)], strict=True))

    def target_ids(self, columns: Tensor) -> Tensor:
        """Map draft ids through d2t as the checkpoint has it, offsets."""
        if self.spec.vocab_map is VocabMap.IDENTITY:
            return columns
        return columns + self.loaded.tensors["d2t"].read()[columns]


@pytest.fixture(params=TOYS)
def walker(request: pytest.FixtureRequest, tmp_path: Path, target: TargetCheckpoint) -> Walker:
    return Walker(tmp_path / "draft", TOYS[request.param], target)


def test_a_default_graph_takes_no_noise_and_a_sampled_one_says_what_it_drew_from(
    walker: Walker,
) -> None:
    plain = draft_signature(walker.spec, Precision.FP32, CONTEXT)
    drawn = draft_signature(walker.spec, Precision.FP32, CONTEXT, is_sampled=True)
    added = [t for t in drawn.inputs if t not in plain.inputs]
    width = 5 if walker.spec.selector else walker.spec.draft_vocab_size
    assert [(t.name, t.shape) for t in added] == [
        ("noise", (1, walker.spec.num_draft_tokens, width)),
        ("inverse_temperature", (1,)),
    ]
    assert [t.name for t in drawn.inputs[3:5]] == ["noise", "inverse_temperature"]
    further = [t.name for t in drawn.outputs if t not in plain.outputs]
    expected = ["candidate_ids", "candidate_scores"] if walker.spec.selector else ["logits"]
    reduced = walker.spec.vocab_map is not VocabMap.IDENTITY
    assert further == expected + ["vocabulary_ids"] * reduced
    assert not set(SAMPLED_OUTPUTS) & set(plain.output_names())


def test_without_noise_every_output_is_the_greedy_one_to_the_last_bit(walker: Walker) -> None:
    want, got = walker.run(walker.greedy), walker.run(walker.sampled)
    assert set(want) <= set(got)
    for name in want:
        assert torch.equal(want[name], got[name]), name


def test_noise_leads_the_walk_and_each_draft_is_conditioned_on_the_one_that_was_taken(
    walker: Walker,
) -> None:
    """Noise too large to be overruled picks column k + 2 of draft k; scores are not changed by it
    but by the token that now comes before.
    """
    spec = walker.spec
    columns = torch.arange(spec.num_draft_tokens) + 2
    noise = torch.zeros_like(walker.feeds["noise"])
    noise[0, range(len(columns)), columns] = 1e6
    greedy, led = walker.run(walker.greedy), walker.run(walker.sampled, noise=noise)
    if spec.selector is not None:
        assert torch.equal(led["draft_ids"][0], led["candidate_ids"][0, range(3), columns])
        rows = "candidate_scores"
        want = torch.sort(walker.run(walker.sampled)["candidate_ids"], -1).values
        assert torch.equal(torch.sort(led["candidate_ids"], -1).values, want)
        assert torch.equal(want, led["candidates"])
        reference = walker.run(walker.sampled)[rows]
    else:
        assert torch.equal(led["draft_vocab_ids"][0], columns)
        assert torch.equal(led["draft_ids"][0], walker.target_ids(columns))
        rows, reference = "logits", greedy["logits"]
    assert torch.equal(led[rows][0, 0], reference[0, 0])
    is_sequential = spec.markov is not None or spec.selector is not None
    assert torch.equal(led[rows][0, 1:], reference[0, 1:]) is not is_sequential


def test_the_bias_of_a_drawn_path_is_that_of_its_tokens(
    tmp_path: Path, target: TargetCheckpoint
) -> None:
    """For the vanilla head: base logits plus W2 W1[previous token], by hand."""
    walker = Walker(tmp_path / "draft", TOYS["reduced"], target)
    noise = torch.from_numpy(np.random.default_rng(1).gumbel(size=(1, 4, 96)).astype(np.float32))
    out = walker.run(walker.sampled, noise=noise)
    w1, w2 = (walker.loaded.tensors[f"markov_head.markov_w{n}.weight"].read() for n in (1, 2))
    previous = torch.cat((walker.feeds["anchor"], out["draft_ids"][0, :-1]))
    expected = out["base_logits"][0] + w1[previous] @ w2.T
    assert torch.allclose(out["logits"][0], expected, atol=1e-5)
    assert torch.equal(out["vocabulary_ids"][0], walker.target_ids(torch.arange(96)))


def test_the_factor_is_applied_before_the_noise(walker: Walker) -> None:
    noise = torch.from_numpy(np.random.default_rng(5).gumbel(size=walker.feeds["noise"].shape))
    feeds = {"noise": noise.float(), "inverse_temperature": torch.tensor([0.25])}
    out = walker.run(walker.sampled, **feeds)
    if walker.spec.selector is not None:
        scores, ids = out["candidate_scores"], out["candidate_ids"]
    else:
        scores = out["logits"]
        ids = walker.target_ids(torch.arange(scores.shape[-1])).expand(scores.shape)
    chosen = (scores * 0.25 + feeds["noise"]).argmax(-1, keepdim=True)
    assert torch.equal(out["draft_ids"], ids.gather(-1, chosen)[..., 0])
    assert not torch.equal(out["draft_ids"], walker.run(walker.greedy)["draft_ids"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reduced", "dflash2"])
def test_the_exported_graph_draws_as_its_module(
    name: str, tmp_path: Path, target: TargetCheckpoint
) -> None:
    """The gate of every export feeds noise and compares ids, scores and the vocabulary."""
    loaded = load_drafter(write_drafter(tmp_path / "draft", TOYS[name]), target)
    lines: list[str] = []
    options = ExportOptions(sampled=True, max_context=CONTEXT)
    entry = write_draft_graph(loaded, tmp_path, options, lines.append)
    assert [t.name for t in entry.signature.inputs[3:5]] == ["noise", "inverse_temperature"]
    assert sum(line.startswith("check: fp32 graph") for line in lines) == 4


@pytest.mark.parametrize("name", ["vocabulary_ids", "logits", "candidate_scores"])
def test_the_gate_sees_a_graph_that_misstates_what_it_drew_from(name: str) -> None:
    right: dict[str, Any] = {
        "draft_ids": np.array([[1, 2]]),
        "vocabulary_ids": np.array([[4, 6, 8]]),
        "logits": np.array([[[1.0, 2.0, 3.0]]]),
        "candidate_ids": np.array([[[2, 0, 1]]]),
        "candidate_scores": np.array([[[1.0, 2.0, 3.0]]]),
    }
    compare_outputs("draft.onnx", right, right, (4, 1), Precision.FP32)
    wrong = right | {name: right[name] + 1}
    with pytest.raises(ExportError, match=f"new rows: {name} (differs|got)"):
        compare_outputs("draft.onnx", right, wrong, (4, 1), Precision.FP32)
    if name == "logits":  # behind a near tie that went the other way they may be others
        tied = {"draft_ids": np.array([[1, 3]]), "logits": np.array([[[0, 9.0], [2, 2]]])}
        other = {"draft_ids": np.array([[1, 2]]), "logits": np.array([[[0, 9.0], [7, 0]]])}
        compare_outputs("draft.onnx", tied, other, (4, 1), Precision.FP16)
