"""The shipped pairs on 200 prompts: the target's own tokens, whatever is drafted or cancelled.

The expected tokens are the target's without any drafter, and for some prompts those of
transformers, which shares no code with the graphs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import load
from draftrt.runtime.pair import Pair
from tests.assets.pair_text import documents

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.e2e, pytest.mark.extended, pytest.mark.xdist_group("lossless")]

NUM_PROMPTS, MAX_TOKENS = 200, 128
OPTIONS = DecodeOptions(max_tokens=MAX_TOKENS, stop_ids=frozenset(), schedule="all")


@pytest.fixture(scope="module", params=["tiny-dflash", "tiny-dspark"])
def pair(
    request: pytest.FixtureRequest, assets: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    out = tmp_path_factory.mktemp("lossless") / "bundle"
    options = ExportOptions(max_context=512)
    export_bundle(assets / request.param, assets / "tiny-target", out, options)
    with load(out) as opened:
        yield opened


@pytest.fixture(scope="module")
def prompts(pair: Pair) -> list[tuple[int, ...]]:
    """Headers that were kept out of training, each a prompt once."""
    headers: dict[str, None] = {}
    for header, _ in documents(20261129, held_out=True):
        headers[header] = None
        if len(headers) == NUM_PROMPTS:
            break
    return [pair.encode(header) for header in headers]


@pytest.fixture(scope="module")
def alone(pair: Pair, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    """What the target says without a drafter."""
    return [decode(pair, prompt, speculate=False)[0] for prompt in prompts]


def decode(
    pair: Pair, prompt: Sequence[int], *, speculate: bool = True
) -> tuple[list[int], list[int]]:
    """Return the new tokens, and how many drafts each round kept."""
    rounds = list(pair.rounds(prompt, OPTIONS, speculate=speculate))
    return [token for one in rounds for token in one.token_ids], [
        one.num_accepted for one in rounds[1:]
    ]


class Forced:
    """Replaces a drafter's answers by so many right drafts and wrong ones behind them."""

    def __init__(self, pair: Pair, monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
        assert pair.drafter is not None
        self.drafter, self.rng = pair.drafter, rng
        self.text: list[int] = []  # prompt, text, and one token behind for every draft
        self.pattern = "none"
        self._draft = pair.drafter.draft
        monkeypatch.setattr(pair.drafter, "draft", self.draft)

    def draft(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        outputs = dict(self._draft(*arguments, **options))
        count = outputs["draft_ids"].shape[1]
        start = self.drafter.context_length + 1  # the anchor's position is the context length
        right = np.array((self.text + [0] * count)[start : start + count])
        kept = {"none": 0, "all": count, "some": self.rng.randint(0, count)}[self.pattern]
        wrong = (right + 1) % self.drafter.spec.input_vocab_size
        outputs["draft_ids"] = np.where(np.arange(count) < kept, right, wrong)[None]
        return outputs


def test_the_target_alone_is_what_transformers_decodes(
    pair: Pair, prompts: list[tuple[int, ...]], alone: list[list[int]], assets: Path
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(assets / "tiny-target"), dtype="float32"
    ).eval()
    model.generation_config.eos_token_id = None
    for prompt, expected in zip(prompts[:12], alone, strict=False):
        ids = torch.tensor([prompt])
        out = model.generate(ids, max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0)
        assert out[0, len(prompt) :].tolist() == expected


def test_every_prompt_gets_the_targets_own_tokens(
    pair: Pair, prompts: list[tuple[int, ...]], alone: list[list[int]]
) -> None:
    kept: list[int] = []
    for prompt, expected in zip(prompts, alone, strict=True):
        found, accepted = decode(pair, prompt)
        assert found == expected
        kept += accepted
    assert 1 + sum(kept) / len(kept) > 3  # the drafter did take part


@pytest.mark.parametrize("pattern", ["none", "some", "all"])
def test_forced_rejections_leave_the_targets_own_tokens(
    pair: Pair,
    prompts: list[tuple[int, ...]],
    alone: list[list[int]],
    pattern: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pair.drafter is not None
    count = pair.drafter.spec.num_draft_tokens
    forced = Forced(pair, monkeypatch, random.Random(1))
    forced.pattern = pattern
    for prompt, expected in zip(prompts, alone, strict=True):
        forced.text = [*prompt, *expected]
        found, accepted = decode(pair, prompt)
        assert found == expected
        whole = accepted[:-1]  # past the wanted length the forced drafts are not the target's
        if pattern != "some":
            assert set(whole) == {0 if pattern == "none" else count}


def test_after_fifty_random_cancels_the_tokens_are_still_the_targets(
    pair: Pair,
    prompts: list[tuple[int, ...]],
    alone: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between rounds by closing, inside a round by an interrupt before or behind a model's call."""
    assert pair.drafter is not None
    rng = random.Random(2)
    for index in range(50):
        prompt, expected = prompts[index], alone[index]
        rounds = pair.rounds(prompt, OPTIONS)
        found: list[int] = []
        for _ in range(rng.randint(1, 12)):
            found += next(rounds).token_ids
        assert found == expected[: len(found)]
        where = rng.choice(["between", "draft", "verify"])
        if where == "between":
            rounds.close()
        else:
            owner: Any = pair.drafter if where == "draft" else pair.target
            call, is_late = getattr(owner, where), rng.random() < 0.5

            def interrupted(*a: Any, call: Any = call, is_late: bool = is_late, **k: Any) -> None:
                if is_late:
                    call(*a, **k)
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(owner, where, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    next(rounds)
        assert decode(pair, prompts[index + 50])[0] == alone[index + 50]
