"""Output that obeys a grammar: the target's own choice under the mask, whatever is drafted."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from draftrt.errors import OptionError
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.grammar import Grammar
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.pair import Pair
from tests.unit.runtime.decoding.test_sampled_exact import chi_square

pytest.importorskip("llguidance")

END = 22
PIECES = [*"abcde()[]+", "ab", "bc", "de", "cde", "aa", "()", "[]", "+a", "abc", "ee", "d(", "bb"]
# Languages with few words, and all of these.
WORDS = {
    r"(ab|ba|aab)c[de]{1,2}": {
        f"{one}c{end}" for one in ("ab", "ba", "aab") for end in ("d", "e", "dd", "de", "ed", "ee")
    },
    r"(a\+)?abcde(\(\)|\[\])?": {
        f"{one}abcde{end}" for one in ("", "a+") for end in ("", "()", "[]")
    },
}
SCRIPTS = {"all wrong": (0,), "some right": (2, 0, 9, 1), "all right": (9,)}
LANGUAGES = {
    "a finite one": r"(ab|ba|aab)c[de]{1,3}",
    "brackets": r"(\(\)|\[\]|a\+a){2,5}",
    "one text": r"abcde\(\)\[\]",
    "endless": r"(a|bc|d\()+",
}


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer whose ids are those of `PIECES`, and `END`."""
    merges = [(one[0], one[1:]) for one in PIECES if len(one) == 2]
    merges += [("c", "de"), ("ab", "c")]
    model = models.BPE(vocab={piece: at for at, piece in enumerate(PIECES)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    assert tokenizer.token_to_id("<end>") == END
    tokenizer.save(str(folder / "tokenizer.json"))


def toy_pair(toy: SimpleNamespace, folder: Path, session: Any = None) -> Pair:
    save_tokenizer(folder)
    session = session or toy.session(toy.signature(4, 5, 200, confidence=False), (2, 0, 9))
    drafter = DraftSession(toy.spec(), session)
    return Pair(toy.target(), drafter, folder, frozenset({END}), num_ids=toy.vocab)


def fresh_mask(folder: Path, language: str, ids: Sequence[int]) -> set[int]:
    """Ids that llguidance allows behind others, asked from the start, one after the other."""
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer((folder / "tokenizer.json").read_text(), eos_token=END)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(language))
    for token in ids:
        assert matcher.consume_token(token)
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return set(np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist())


def may_follow(words: set[str], text: str, mask: set[int]) -> list[int]:
    """Ids that may come behind a text: with them it still begins a word, or has ended one.

    Where but one character may follow, a mask has but one of the ids that begin with it.
    """
    behind = {word[len(text) :] for word in words if word.startswith(text)}
    ids = {at for at, one in enumerate(PIECES) if any(w.startswith(one) for w in behind)}
    ids |= {END} if "" in behind else set()
    if len({rest[:1] for rest in behind}) == 1 and len(mask) == 1:
        assert mask <= ids
        return sorted(mask)
    assert mask == ids
    return sorted(ids)


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
@pytest.mark.parametrize(
    ("script", "options"),
    [
        (SCRIPTS["all wrong"], DecodeOptions(max_tokens=12)),
        (SCRIPTS["some right"], DecodeOptions(max_tokens=12)),
        (SCRIPTS["all right"], DecodeOptions(max_tokens=12)),
        (SCRIPTS["some right"], DecodeOptions(max_tokens=12, repetition_penalty=1.5)),
        (SCRIPTS["some right"], DecodeOptions(max_tokens=12, min_tokens=4)),
        (SCRIPTS["some right"], DecodeOptions(max_tokens=12, stop_ids=frozenset())),
    ],
    ids=[*SCRIPTS, "penalty", "min tokens", "no stop token"],
)
def test_greedy_ids_are_those_of_masked_steps(
    toy: SimpleNamespace,
    tmp_path: Path,
    script: Sequence[int],
    language: str,
    options: DecodeOptions,
) -> None:
    """The reference begins a new matcher for each token."""
    session = toy.session(toy.signature(4, 5, 200, confidence=False), script)
    pair = toy_pair(toy, tmp_path, session)
    stop_ids = {END} if options.stop_ids is None else set()
    for prompt in ((3, 1, 4), (6,), (9, 9, 2)):
        text: list[int] = []
        while len(text) < 12:
            allowed = fresh_mask(tmp_path, language, text)
            if allowed == {END}:
                break
            scores = toy.logits([*prompt, *text]).astype(float)
            for token in {*prompt, *text} if options.repetition_penalty > 1 else ():
                scores[token] *= 1 / 1.5 if scores[token] > 0 else 1.5
            may = [token for token in allowed if token != END or END in stop_ids]
            later = [token for token in may if token != END]
            may = later if len(text) < options.min_tokens and later else may
            text.append(max(may, key=lambda token: (scores[token], -token)))
            if text[-1] in stop_ids:
                break
        for speculate in (True, False):
            done = pair.generate(
                prompt, options, grammar=Grammar.regex(language), speculate=speculate
            )
            assert list(done.token_ids) == text
            is_end = done.finish == "stop"
            assert is_end == (re.fullmatch(language, done.text) is not None and is_end)


class Drawing:
    """A drafter whose drafts are draws from scores that depend on the draft's place alone."""

    def __init__(self, toy: SimpleNamespace) -> None:
        from draftrt.signature import Signature, TensorSpec

        base: Signature = toy.signature(4, 5, 60, confidence=False)
        more = (
            TensorSpec(name="noise", dtype="float32", shape=(1, 4, toy.vocab)),
            TensorSpec(name="inverse_temperature", dtype="float32", shape=(1,)),
        )
        logits = TensorSpec(name="logits", dtype="float32", shape=(1, 4, toy.vocab))
        self.signature = Signature(
            inputs=base.inputs[:3] + more + base.inputs[3:],
            outputs=(base.outputs[0], logits, *base.outputs[1:]),
            dimensions=base.dimensions,
        )
        self._scores = np.random.default_rng(5).normal(size=(4, toy.vocab)).astype(np.float32)

    def run(self, feeds: Any, **_: Any) -> dict[str, NDArray[Any]]:
        drawn = self._scores * feeds["inverse_temperature"] + feeds["noise"][0]
        return {"draft_ids": drawn.argmax(-1)[None], "logits": self._scores[None]}

    def close(self) -> None: ...


def shares_of(
    toy: SimpleNamespace, folder: Path, prompt: Sequence[int], language: str, temperature: float
) -> dict[tuple[int, ...], float]:
    """The probability of each output, token after token, under a mask that is found by words."""
    words = WORDS[language]
    assert all(re.fullmatch(language, word) for word in words)
    shares: dict[tuple[int, ...], float] = {}
    open_texts: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while open_texts:
        ids, share = open_texts.pop()
        text = "".join(PIECES[token] for token in ids)
        may = may_follow(words, text, fresh_mask(folder, language, ids))
        logits = toy.logits([*prompt, *ids])
        weights = [math.exp(float(logits[token]) / temperature) for token in may]
        for token, weight in zip(may, weights, strict=True):
            new = text if token == END else text + PIECES[token]
            is_end = token == END or not any(w != new and w.startswith(new) for w in words)
            found = ((*ids, token), share * weight / sum(weights))
            if is_end:
                shares[found[0]] = found[1]
            else:
                open_texts.append(found)
    return shares


@pytest.mark.parametrize(
    "num_draws", [300, pytest.param(50_000, marks=[pytest.mark.extended, pytest.mark.slow])]
)
@pytest.mark.parametrize("proposal", ["argmax", "sampled"])
@pytest.mark.parametrize("language", WORDS)
def test_draws_have_the_distribution_of_masked_steps(
    toy: SimpleNamespace, tmp_path: Path, language: str, proposal: Any, num_draws: int
) -> None:
    """Chi-square at 0.001; the seeds are fixed. The second language forces long texts."""
    pair = toy_pair(toy, tmp_path, Drawing(toy))
    prompt, grammar = (3, 1, 4), Grammar.regex(language)
    shares = shares_of(toy, tmp_path, prompt, language, 0.8)
    assert abs(sum(shares.values()) - 1) < 1e-9
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(num_draws):
        options = DecodeOptions(max_tokens=16, temperature=0.8, seed=seed, proposal=proposal)
        counts[pair.generate(prompt, options, grammar=grammar).token_ids] += 1
    assert counts.keys() <= shares.keys()
    every = sorted(shares)
    found, limit = chi_square(
        np.array([counts[one] for one in every]), np.array([shares[one] for one in every])
    )
    assert found < limit


def test_forced_tokens_take_no_call_of_the_drafter(toy: SimpleNamespace, tmp_path: Path) -> None:
    session = toy.session(toy.signature(4, 5, 200, confidence=False), (0,))
    pair = toy_pair(toy, tmp_path, session)
    grammar = Grammar.regex(r"abcde\(\)\[\]\+aabcde\(\)\[\](a|b|c)+")
    done = pair.generate((3, 1, 4), DecodeOptions(max_tokens=24), grammar=grammar)
    assert max(done.stats.accepted) >= 3  # of a drafter that is never right
    # The context of the rows behind such a round came with the next call: the session counts them.
    assert len(session.offered) < done.stats.num_rounds
    plain = pair.generate((3, 1, 4), DecodeOptions(max_tokens=24), grammar=grammar, speculate=False)
    assert done.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Grammar.regex("a("), "unclosed group"),
        (lambda: Grammar.regex(""), "expected a text"),
        (lambda: Grammar.lark("start: foo"), "unknown name"),
        (lambda: Grammar.json_schema({"type": "objekt"}), "objekt"),
        (lambda: Grammar.json_schema({"type": "string", "not": {}}), "not"),
        (lambda: Grammar.json_schema({"$ref": "https://example.org/x"}), "example.org"),
        (lambda: Grammar.json_schema("{"), "JSON"),
        (lambda: Grammar.json_schema([1]), "expected an object"),
        (lambda: Grammar.json_schema({"const": float("nan")}), "JSON"),
        (lambda: Grammar("yaml", "a"), "yaml"),  # type: ignore[arg-type]
        (lambda: Grammar.regex("a\udc80"), "UTF-8"),
        (lambda: Grammar.regex("a" * (1 << 21)), "at most"),
        (lambda: "a+", "draftrt.Grammar"),
    ],
)
def test_what_is_no_grammar_is_refused(
    toy: SimpleNamespace, tmp_path: Path, make: Any, told: str
) -> None:
    pair = toy_pair(toy, tmp_path)
    with pytest.raises(OptionError, match=re.escape(told)):
        pair.generate((3,), grammar=make())
