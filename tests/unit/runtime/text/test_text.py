"""Streaming text: whole code points only, and nothing behind a stop string."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftrt.errors import BundleError, OptionError
from draftrt.runtime.text.stream import StopStrings, TextStream, load_tokenizer

SPECIAL = 256


@pytest.fixture(scope="module")
def bytewise() -> Tokenizer:
    """Every byte is a token, its id the byte; one special token behind them."""
    alphabet = byte_letters()
    vocab = {alphabet[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def byte_letters() -> dict[int, str]:
    """GPT-2's letters for bytes: printable ones stand for themselves, others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    return letters | {byte: chr(256 + index) for index, byte in enumerate(others)}


def stream(tokenizer: Tokenizer, chunks: list[list[int]]) -> list[str]:
    text = TextStream(tokenizer)
    return [*(text.push(chunk) for chunk in chunks), text.flush()]


def test_the_fixtures_ids_are_bytes(bytewise: Tokenizer) -> None:
    assert bytewise.encode("é€").ids == list("é€".encode())


@pytest.mark.parametrize(
    "text", ["plain", "naïve façade", "日本語と한국어", "a😀b👩‍👩‍👧c", "\ufffd x \ufffd"]
)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_piece_ever_holds_a_part_of_a_code_point(
    bytewise: Tokenizer, text: str, size: int
) -> None:
    ids = list(text.encode())
    pieces = stream(bytewise, [ids[at : at + size] for at in range(0, len(ids), size)])
    assert "".join(pieces) == text


def test_a_code_point_comes_as_soon_as_its_last_byte(bytewise: Tokenizer) -> None:
    assert stream(bytewise, [[byte] for byte in "a😀b".encode()]) == [
        "a",
        "",
        "",
        "",
        "😀",
        "b",
        "",
    ]


def test_bytes_that_are_no_text_stay_readable_and_hold_nothing_up(bytewise: Tokenizer) -> None:
    rng = random.Random(3)
    ids = [rng.choice([0xFF, 0xC3, 0xE2, 0x82, 0xAC, 0x41]) for _ in range(400)]
    text, given = TextStream(bytewise), ""
    for index, token in enumerate(ids, start=1):
        given += text.push([token])
        behind = len(bytes(ids[:index])) - len(given.encode("utf-8", "replace"))
        assert behind <= 4
        assert len(text._window) <= 12, "the window would make streaming quadratic"
    assert given + text.flush() == bytes(ids).decode("utf-8", "replace")


def test_an_unfinished_code_point_at_the_end_is_shown_as_such(bytewise: Tokenizer) -> None:
    assert stream(bytewise, [[0x41, 0xF0, 0x9F]]) == ["A", "\ufffd"]


def test_special_tokens_give_no_text(bytewise: Tokenizer) -> None:
    assert stream(bytewise, [[0x41], [SPECIAL], [0x42, SPECIAL]]) == ["A", "", "B", ""]


def test_words_joined_by_their_neighbours_keep_their_spaces() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "!": 2}, unk_token="!"))
    tokenizer.decoder = decoders.Metaspace()
    assert stream(tokenizer, [[0], [1], [2], [0, 1]]) == ["one", " two", "!", " one two", ""]


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"tokenizer\.json: no such file"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"{}", b"\xff\xfe"], ids=["cut", "empty", "no text"])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(
        BundleError, match=r"tokenizer\.json: the tokenizers package cannot read it"
    ):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("chunks", "stops", "pieces", "found"),
    [
        (["ab", "cd"], [], ["ab", "cd", ""], None),
        (["ab", "cd"], ["x"], ["ab", "cd", ""], None),
        (["ab", "STOP", "cd"], ["STOP"], ["ab", ""], "STOP"),
        (["abS", "TO", "Pcd"], ["STOP"], ["ab", "", ""], "STOP"),
        (["abS", "TO", "ne"], ["STOP"], ["ab", "", "STOne", ""], None),
        (["abS", "T"], ["STOP"], ["ab", "", "ST"], None),
        (["aab", "ac"], ["abac", "ab"], ["a"], "ab"),
        (["x\n", "\ny"], ["\n\n"], ["x", ""], "\n\n"),
        (["aaab"], ["aab"], ["a"], "aab"),
        (["SSTOP"], ["STOP"], ["S"], "STOP"),
    ],
    ids=[
        "no stops",
        "absent",
        "whole",
        "in parts",
        "broken off",
        "cut short",
        "earliest",
        "newlines",
        "overlap",
        "false start",
    ],
)
def test_nothing_of_a_stop_string_is_given_out(
    chunks: list[str], stops: list[str], pieces: list[str], found: str | None
) -> None:
    watch, given = StopStrings(stops), []
    for chunk in chunks:
        given.append(watch.push(chunk))
        if watch.found:
            break
    else:
        given.append(watch.flush())
    assert (given, watch.found) == (pieces, found)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(OptionError, match=r"stop has \[''\], expected texts of at least one"):
        StopStrings(["a", ""])
