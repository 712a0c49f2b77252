"""Odd prompts, options and stop strings: each an error, none taken for something else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftrt.errors import BundleError, DraftrtError, FeedError, OptionError
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.pair import Pair
from draftrt.runtime.text.token_ids import is_messages

IDS = (3, 1, 4, 1, 5)


@pytest.fixture
def pair(toy: SimpleNamespace, tmp_path: Path) -> Pair:
    vocab = {chr(97 + i): i for i in range(toy.vocab)} | {"x": 30}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    session = toy.session(toy.signature(4, 5, 200, confidence=False), (2, 0, 9))
    drafter = DraftSession(toy.spec(), session)
    return Pair(toy.target(), drafter, tmp_path, frozenset(), num_ids=toy.vocab)


MESSAGE = {"role": "user", "content": "abc"}
PROMPTS: dict[str, tuple[Any, str]] = {
    "negative": ([3, -1], r"got -1 at position 1, expected whole numbers of at least 0 and below"),
    "too large": ([3, 23], "got 23 at position 1"),
    "huge": ([2**70], "expected whole numbers"),
    "fractional": ([3, 1.7], "got 1.7 at position 1"),
    "whole but no int": ([3.0], "got 3.0 at position 0"),
    "bool": ([True], "got True at position 0"),
    "numpy bool": (np.array([True]), "got True"),
    "numpy float": (np.array([1.5]), "got 1.5"),
    "not a number": ([float("nan")], "got nan"),
    "two rows": (np.ones((1, 3), np.int64), r"the shape \[1, 3\], expected one dimension"),
    "no dimension": (np.array(3), "expected a text, a list of messages"),
    "nested": ([[1, 2]], "a list at position 0"),
    "texts": (["a", "b"], r"a str \('a'\) at position 0"),
    "none in ids": ([None], "got None at position 0"),
    "bytes": (b"abc", "the prompt is a bytes, expected a text"),
    "bytearray": (bytearray(b"abc"), "the prompt is a bytearray"),
    "memoryview": (memoryview(b"abc"), "the prompt is a memoryview"),
    "none": (None, "the prompt is None"),
    "a number": (3, "the prompt is 3"),
    "a numpy number": (np.int64(3), "the prompt is np.int64"),
    "a set": ({1, 2}, "the prompt is a set"),
    "an iterator": (iter([1, 2]), "the prompt is a list_iterator"),
    "one message": (MESSAGE, "the prompt is a dict"),
    "no ids": ([], "the prompt has no tokens"),
    "no text": ("", "the prompt has no tokens"),
    "empty array": (np.zeros(0, np.int64), "the prompt has no tokens"),
    "mixed": ([MESSAGE, 3], "mixes messages with 3"),
    "no role": ([{"content": "a"}], "message 1: role is missing, expected a text"),
    "no content": ([MESSAGE, {"role": "user"}], "message 2: content is missing"),
    "content none": ([{"role": "user", "content": None}], "content is None, expected a text"),
    "role a number": ([{"role": 1, "content": "a"}], "role is 1, expected a text"),
    "empty message": ([{}], "role is missing, expected a text; message 1: content is missing"),
    "surrogate": ("a\udce9", r"no valid text: '\\udce9' at character 1"),
}


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("call", ["generate", "stream"])
def test_an_odd_prompt_is_refused_before_anything_runs(pair: Pair, name: str, call: str) -> None:
    prompt, says = PROMPTS[name]
    with pytest.raises(FeedError, match=says):
        getattr(pair, call)(prompt, DecodeOptions(max_tokens=4))
    target: Any = pair.target
    assert target.calls == []


@pytest.mark.parametrize("ids", [[-1], [23], [1.5], [True], b"ab", None, "ab"], ids=repr)
def test_rounds_take_ids_alone(pair: Pair, ids: Any) -> None:
    with pytest.raises(FeedError):
        pair.rounds(ids, DecodeOptions(max_tokens=4))


@pytest.mark.parametrize("messages", [None, 3, b"ab", [], {"role": "user"}, ["a"], [3]], ids=repr)
def test_encode_takes_a_text_or_messages(pair: Pair, messages: Any) -> None:
    with pytest.raises(DraftrtError):
        pair.encode(messages)


def test_ids_of_numpy_and_of_other_sequences_are_taken(pair: Pair) -> None:
    options = DecodeOptions(max_tokens=9)
    expected = pair.generate(list(IDS), options)
    others: list[Any] = [
        IDS,
        np.array(IDS),
        np.array(IDS, np.uint8),
        [np.int32(token) for token in IDS],
        [np.array(token) for token in IDS],
    ]
    for same in others:
        assert pair.generate(same, options).token_ids == expected.token_ids
    assert expected.prompt_ids == IDS
    assert {type(token) for token in pair.generate(np.array(IDS), options).prompt_ids} == {int}
    assert pair.generate(range(3), options).prompt_ids == (0, 1, 2)


def test_a_call_of_tools_needs_no_content() -> None:
    assert is_messages([MESSAGE, {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}])


def test_a_token_that_the_target_has_not_is_named(pair: Pair) -> None:
    with pytest.raises(BundleError, match=r"gives id 30 \('x'\), expected ids below 23"):
        pair.generate("abx")


OPTIONS: dict[str, dict[str, Any]] = {
    "nan": {"temperature": float("nan")},
    "inf": {"temperature": float("inf")},
    "beyond float": {"temperature": 10**400},
    "text": {"temperature": "0.5"},
    "none": {"temperature": None},
    "bool temperature": {"temperature": True},
    "negative": {"temperature": -1e-40},
    "array": {"temperature": np.array([0.5])},
    "fractional count": {"max_tokens": 4.5},
    "bool count": {"max_tokens": True},
    "zero": {"max_tokens": 0},
    "count a text": {"max_tokens": "4"},
    "min above max": {"max_tokens": 4, "min_tokens": 5},
    "min none": {"min_tokens": None},
    "top_k fraction": {"top_k": 1.5},
    "top_p": {"top_p": 0},
    "top_p nan": {"top_p": float("nan")},
    "min_p": {"min_p": 1},
    "penalty inf": {"repetition_penalty": float("inf")},
    "penalty zero": {"repetition_penalty": 0},
    "penalty tiny": {"repetition_penalty": 1e-320},
    "seed": {"seed": -1},
    "seed fraction": {"seed": 1.5},
    "stop id": {"stop_ids": 5},
    "stop ids a text": {"stop_ids": "5"},
    "stop ids negative": {"stop_ids": [-1]},
    "stop ids bool": {"stop_ids": {True}},
    "schedule": {"schedule": "never"},
    "schedule list": {"schedule": ["all"]},
    "proposal": {"proposal": None},
    "threshold": {"confidence_threshold": 1.1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_odd_option_is_refused_by_name(name: str) -> None:
    key = list(OPTIONS[name])[-1]
    with pytest.raises(OptionError, match=rf"{key} is .*, expected ") as refusal:
        DecodeOptions(**OPTIONS[name])
    assert isinstance(refusal.value, ValueError)
    assert isinstance(refusal.value, DraftrtError)
    assert refusal.value.exit_code == 2


def test_all_odd_options_are_named_at_once() -> None:
    with pytest.raises(OptionError, match=r"temperature is nan.*; top_k is -1, expected"):
        DecodeOptions(temperature=float("nan"), top_k=-1)


def test_numbers_of_numpy_become_pythons_own() -> None:
    given: dict[str, Any] = {
        "max_tokens": np.int64(5),
        "temperature": np.float32(0.5),
        "stop_ids": np.array([3, 4]),
    }
    options = DecodeOptions(**given)
    assert options == DecodeOptions(max_tokens=5, temperature=0.5, stop_ids=frozenset({3, 4}))
    assert [type(options.max_tokens), type(options.temperature)] == [int, float]


@pytest.mark.parametrize(
    "stop", ["wall", b"wall", None, 3, [""], [b"x"], [None], {"a": 1}], ids=repr
)
def test_odd_stop_strings_are_refused(pair: Pair, stop: Any) -> None:
    with pytest.raises(OptionError, match="stop"):
        pair.generate("abc", DecodeOptions(max_tokens=4), stop=stop)


def test_arguments_of_another_kind_are_refused(pair: Pair) -> None:
    options: Any = {"max_tokens": 4}
    with pytest.raises(OptionError, match="options are"):
        pair.generate("abc", options)
    speculate: Any = "no"
    with pytest.raises(OptionError, match="speculate is 'no'"):
        pair.generate("abc", speculate=speculate)
    with pytest.raises(OptionError, match="stop_ids has 23, expected ids below 23"):
        pair.generate("abc", DecodeOptions(stop_ids=frozenset({23})))
    with pytest.raises(FeedError, match="expected at most"):
        pair.generate("abc", DecodeOptions(max_tokens=10**30))


@pytest.mark.parametrize("temperature", [1e-40, 5e-324, 1e-5, 1e-3])
def test_a_temperature_near_zero_gives_the_greedy_text(
    toy: SimpleNamespace, pair: Pair, temperature: float
) -> None:
    done = pair.generate(IDS, DecodeOptions(max_tokens=30, temperature=temperature, seed=1))
    assert list(done.token_ids) == toy.greedy(IDS, 30)


def test_the_tokens_of_a_cut_round_are_counted_once(toy: SimpleNamespace, pair: Pair) -> None:
    text = "".join(chr(97 + token) for token in toy.greedy(IDS, 40))
    for at in range(3, 30):
        done = pair.generate(IDS, DecodeOptions(max_tokens=40), stop=[text[at : at + 2]])
        assert done.stats.num_tokens == len(done.token_ids)
        assert done.text == text[: text.index(text[at : at + 2])]
