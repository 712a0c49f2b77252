"""Text in, text out: prompts, streaming, stop strings, and what a completion says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftrt.errors import BundleError, FeedError
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.pair import Pair

LETTERS = "abcdefghijklmnopqrstuvw"  # token k of the toy language is letter k
PROMPT = "dbebf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(LETTERS)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def build(
    toy: SimpleNamespace,
    folder: Path,
    num_right: Sequence[int] = (2, 0, 9),
    stop_ids: frozenset[int] = frozenset(),
) -> tuple[Pair, Any, Any]:
    session = toy.session(toy.signature(4, 5, 200, confidence=False), num_right)
    target = toy.target()
    return Pair(target, DraftSession(toy.spec(), session), folder, stop_ids), target, session


def expected_text(toy: SimpleNamespace, num_tokens: int) -> str:
    ids = [LETTERS.index(letter) for letter in PROMPT]
    return "".join(LETTERS[token] for token in toy.greedy(ids, num_tokens))


def test_a_stream_gives_the_targets_text_round_by_round(toy: SimpleNamespace, folder: Path) -> None:
    pair, *_ = build(toy, folder)
    chunks = list(pair.stream(PROMPT, DecodeOptions(max_tokens=20, schedule="all")))
    assert "".join(str(chunk) for chunk in chunks) == expected_text(toy, 20)
    assert [len(chunk.token_ids) for chunk in chunks[:5]] == [1, 3, 1, 5, 3]
    assert [chunk.round.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_generating_equals_streaming_and_knows_its_acceptance(
    toy: SimpleNamespace, folder: Path
) -> None:
    pair, _, session = build(toy, folder)
    done = pair.generate(PROMPT, DecodeOptions(max_tokens=20, schedule="all"))
    assert done.text == expected_text(toy, 20)
    assert done.prompt_ids == (3, 1, 4, 1, 5)
    assert "".join(LETTERS[token] for token in done.token_ids) == done.text
    assert done.finish == "length"
    assert done.stats.accepted == session.offered
    assert done.stats.num_tokens == 20


def test_plain_decoding_gives_the_same_text_without_the_drafter(
    toy: SimpleNamespace, folder: Path
) -> None:
    pair, _, session = build(toy, folder)
    done = pair.generate(PROMPT, DecodeOptions(max_tokens=20), speculate=False)
    assert done.text == expected_text(toy, 20)
    assert session.offered == []
    assert pair.generate(PROMPT, DecodeOptions(max_tokens=20)).text == done.text


def test_the_bundles_end_tokens_hold_unless_others_are_given(
    toy: SimpleNamespace, folder: Path
) -> None:
    text = expected_text(toy, 40)
    pair, *_ = build(toy, folder, stop_ids=frozenset({LETTERS.index(text[11])}))
    done = pair.generate(PROMPT, DecodeOptions(max_tokens=40))
    assert (done.text, done.finish) == (text[: text.index(text[11]) + 1], "stop")
    options = DecodeOptions(max_tokens=40, stop_ids=frozenset())
    assert pair.generate(PROMPT, options).text == text


@pytest.mark.parametrize("num_right", [(0,), (9,), (1, 2)], ids=["none", "all", "mixed"])
def test_a_stop_string_ends_the_text_in_front_of_itself(
    toy: SimpleNamespace, folder: Path, num_right: tuple[int, ...]
) -> None:
    text = expected_text(toy, 40)
    stop = text[17:20]
    end = text.index(stop)
    pair, *_ = build(toy, folder, num_right)
    chunks = list(pair.stream(PROMPT, DecodeOptions(max_tokens=40), stop=[stop, "no such"]))
    assert "".join(chunk.text for chunk in chunks) == text[:end]
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert "".join(LETTERS[token] for token in ids) == text[: end + 3]
    assert chunks[-1].finish == "stop"
    done = pair.generate(PROMPT, DecodeOptions(max_tokens=40), stop=[stop])
    assert (done.text, done.finish) == (text[:end], "stop")


def test_a_stop_string_counts_only_behind_the_minimum(toy: SimpleNamespace, folder: Path) -> None:
    text = expected_text(toy, 60)
    stop = text[4]
    pair, *_ = build(toy, folder)
    done = pair.generate(PROMPT, DecodeOptions(max_tokens=60, min_tokens=12), stop=[stop])
    assert stop in text[12:]
    assert done.text == text[: text.index(stop, 12)]


@pytest.mark.parametrize("num_right", [(0,), (9,), (1, 2)], ids=["none", "all", "mixed"])
def test_the_first_token_behind_the_minimum_may_complete_a_stop_string_and_none_before(
    toy: SimpleNamespace, folder: Path, num_right: tuple[int, ...]
) -> None:
    text = expected_text(toy, 60)
    for least in range(1, 30):
        for stop in (text[least - 1], text[least]):
            pair, *_ = build(toy, folder, num_right)
            options = DecodeOptions(max_tokens=60, min_tokens=least)
            expected = text.find(stop, least)
            done = pair.generate(PROMPT, options, stop=[stop])
            assert done.text == (text if expected < 0 else text[:expected])


def test_what_may_become_a_stop_string_comes_in_the_end(toy: SimpleNamespace, folder: Path) -> None:
    text = expected_text(toy, 10)
    pair, *_ = build(toy, folder, (0,))
    chunks = list(pair.stream(PROMPT, DecodeOptions(max_tokens=10), stop=[text[8:] + "!"]))
    assert [chunk.text for chunk in chunks[-2:]] == ["", text[8:]]
    assert "".join(chunk.text for chunk in chunks) == text


def test_a_closed_stream_leaves_the_pair_usable(toy: SimpleNamespace, folder: Path) -> None:
    pair, target, _ = build(toy, folder)
    for num_chunks in (1, 2, 5):
        stream = pair.stream(PROMPT, DecodeOptions(max_tokens=60))
        for _ in range(num_chunks):
            next(stream)
        stream.close()
        assert pair.generate(PROMPT, DecodeOptions(max_tokens=30)).text == expected_text(toy, 30)
    num_calls = len(target.calls)
    pair.stream(PROMPT, DecodeOptions(max_tokens=60))
    assert len(target.calls) == num_calls, "a stream that nobody reads runs nothing"


def test_a_prompt_may_be_ids_or_messages(toy: SimpleNamespace, folder: Path) -> None:
    pair, *_ = build(toy, folder)
    options = DecodeOptions(max_tokens=9)
    expected = pair.generate(PROMPT, options)
    assert pair.generate([3, 1, 4, 1, 5], options).token_ids == expected.token_ids
    assert pair.generate(np.array([3, 1, 4, 1, 5]), options).token_ids == expected.token_ids
    with pytest.raises(BundleError, match="has no chat template"):
        pair.generate([{"role": "user", "content": "ebf"}], options)
    (folder / "chat_template.jinja").write_text("db{{ messages[0].content }}{{ tail }}")
    pair, *_ = build(toy, folder)
    messages = [{"role": "user", "content": "ebf"}]
    assert pair.generate(messages, options).token_ids == expected.token_ids
    assert pair.encode(messages, {"tail": "a"}) == (3, 1, 4, 1, 5, 0)
    done = pair.generate(messages, options, template_variables={"tail": "a"})
    assert done.prompt_ids == (3, 1, 4, 1, 5, 0)
    streamed = pair.stream(messages, options, template_variables={"tail": "a"})
    assert "".join(map(str, streamed)) == done.text
    for other in (PROMPT, [3, 1]):
        with pytest.raises(FeedError, match="template variables tail for a prompt"):
            pair.stream(other, options, template_variables={"tail": "a"})
    with pytest.raises(FeedError, match="the prompt mixes messages with 3"):
        pair.stream([*messages, 3])  # type: ignore[arg-type]


def test_a_prompt_that_does_not_fit_is_refused_at_once(toy: SimpleNamespace, folder: Path) -> None:
    pair, *_ = build(toy, folder)
    with pytest.raises(FeedError, match="expected at most 192 more"):
        pair.stream(PROMPT, DecodeOptions(max_tokens=193))


def test_leaving_the_context_frees_both_models(toy: SimpleNamespace, folder: Path) -> None:
    pair, _, session = build(toy, folder)
    with pair as entered:
        assert entered is pair
    assert session.closed
