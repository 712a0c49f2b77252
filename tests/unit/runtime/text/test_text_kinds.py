"""Text of a continuation, for every kind of tokenizer: that of all ids, less the prompt's.

The expected text is that of one call of the tokenizer over all ids, never of a window.
"""

from __future__ import annotations

import os
import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from draftrt.runtime.text.stream import StopStrings, TextStream

LETTERS = [chr(code) for code in range(33, 127)]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def build(words: list[str], decoder: object) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, words[0]))
    tokenizer.decoder = decoder  # type: ignore[assignment]
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("[tool]", special=False)])
    return tokenizer


def byte_letters() -> list[str]:
    """GPT-2's letters for the bytes 0 to 255."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def joined(*words: str) -> list[str]:
    return [*words, *(f"▁{word}" for word in words), "▁", "▁▁"]


def kinds() -> dict[str, Tokenizer]:
    replace, fuse = decoders.Replace("▁", " "), decoders.Fuse()
    fallback, words = decoders.ByteFallback(), joined("on", "the", "wall", ".", "日", "!")
    return {
        "metaspace": build(words, decoders.Metaspace()),
        "metaspace never": build(words, decoders.Metaspace(prepend_scheme="never")),
        "llama": build(
            [*BYTES, *words],
            decoders.Sequence([replace, fallback, fuse, decoders.Strip(" ", 1, 0)]),
        ),
        "gemma": build([*BYTES, *words], decoders.Sequence([replace, fallback, fuse])),
        "byte level": build(byte_letters(), decoders.ByteLevel()),
        "word piece": build(
            ["do", "##ing", "n't", ".", ",", "'", "'s", "a", "##b", "not", "?"],
            decoders.WordPiece(cleanup=True),
        ),
        "cleanup over tokens": build(
            joined("n't", "do", ".", "'s", "a"),
            decoders.Sequence(
                [replace, fuse, decoders.Replace(" n't", "n't"), decoders.Replace(" .", ".")]
            ),
        ),
        "end of word": build(["a</w>", "b", "c</w>", "d"], decoders.BPEDecoder("</w>")),
        "none": build(["one", "two", "three"], None),
    }


KINDS = kinds()


def ids_of(kind: str, names: list[str]) -> list[int]:
    found = [KINDS[kind].token_to_id(name) for name in names]
    return [token for token in found if token is not None]


def less(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> str:
    before, text = tokenizer.decode(prompt), tokenizer.decode(prompt + ids)
    return text[len(os.path.commonprefix([before, text])) :]  # noqa: RUF071


def drawn(tokenizer: Tokenizer, rng: random.Random, most: int) -> list[int]:
    ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(most + 1))]
    if rng.random() < 0.5:  # real characters, among them broken ones
        raw = "é日😀 x".encode()[: rng.randrange(1, 12)]
        for table in (BYTES, byte_letters()):
            found = [tokenizer.token_to_id(table[byte]) for byte in raw]
            ids += [token for token in found if token is not None]
    return ids


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_join_to_the_text_of_all_ids_less_that_of_the_prompt(kind: str) -> None:
    tokenizer, rng = KINDS[kind], random.Random(kind)
    for _ in range(300):
        prompt, ids = drawn(tokenizer, rng, 20), drawn(tokenizer, rng, 30)
        stream, pieces, at = TextStream(tokenizer, prompt), [], 0
        while at < len(ids):
            step = rng.randrange(1, 5)
            pieces.append(stream.push(ids[at : at + step]))
            at += step
        assert "".join([*pieces, stream.flush()]) == less(tokenizer, prompt, ids), (prompt, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_the_window_stays_small_and_the_text_comes_soon(kind: str) -> None:
    tokenizer, rng = KINDS[kind], random.Random(kind)
    plain = [t for t in range(tokenizer.get_vocab_size()) if tokenizer.id_to_token(t) not in BYTES]
    stream, given = TextStream(tokenizer, [plain[0]] * 1000), ""
    ids: list[int] = []
    for _ in range(300):
        ids.append(rng.choice(plain))
        given += stream.push(ids[-1:])
        assert len(stream._window) <= 40
        assert len(less(tokenizer, [plain[0]] * 1000, ids)) - len(given) <= 8
    assert given + stream.flush() == less(tokenizer, [plain[0]] * 1000, ids)


@pytest.mark.parametrize("kind", ["llama", "metaspace", "byte level", "word piece"])
def test_turn_behind_turn_joins_to_one_text(kind: str) -> None:
    tokenizer, rng = KINDS[kind], random.Random(7)
    plain = [t for t in range(tokenizer.get_vocab_size()) if tokenizer.id_to_token(t) not in BYTES]
    plain = [t for t in plain if "\ufffd" not in tokenizer.decode([t])]
    said, text = [plain[0]], tokenizer.decode([plain[0]])
    for _ in range(30):
        ids = [rng.choice(plain) for _ in range(rng.randrange(1, 6))]
        stream = TextStream(tokenizer, said)
        text += stream.push(ids) + stream.flush()
        said += ids
        assert text == tokenizer.decode(said)


def test_the_first_space_of_a_continuation_is_kept() -> None:
    for kind in ("llama", "metaspace"):
        ids = ids_of(kind, ["▁on", "▁the", "▁wall"])
        stream = TextStream(KINDS[kind], ids[:1])
        assert [stream.push([token]) for token in ids[1:]] == [" the", " wall"]
        special = TextStream(KINDS[kind], ids_of(kind, ["<s>"]) * 50)
        assert special.push(ids[:2]) == "on the"


def test_a_run_of_single_bytes_comes_when_it_can_no_longer_be_spoiled() -> None:
    tokenizer = KINDS["llama"]
    good = ids_of("llama", [BYTES[byte] for byte in "日本".encode()])
    [word] = ids_of("llama", ["▁on"])
    stream = TextStream(tokenizer, [word])
    assert [stream.push([token]) for token in [*good, word]] == [""] * 6 + ["日本 on"]
    broken = TextStream(tokenizer, [word])
    assert (
        broken.push(good[:4]) + broken.flush() == "\ufffd" * 4 == less(tokenizer, [word], good[:4])
    )


def test_half_a_code_point_of_the_prompt_is_completed() -> None:
    tokenizer = KINDS["byte level"]
    stream = TextStream(tokenizer, list("a😀".encode()[:3]))
    assert [stream.push([byte]) for byte in "😀b".encode()[2:]] == ["", "😀", "b"]


@pytest.mark.parametrize("stop", [" wall", "the wall", "日本", "n the"])
def test_stop_strings_are_found_across_tokens_and_pieces(stop: str) -> None:
    tokenizer = KINDS["llama"]
    names = ["▁on", "▁the", "▁wall", *(BYTES[byte] for byte in "日本".encode()), ".", "▁on"]
    ids = ids_of("llama", names)
    stream, stops, text = TextStream(tokenizer, ids[:1]), StopStrings([stop]), ""
    for token in ids:
        text += stops.push(stream.push([token]))
        if stops.found:
            break
    whole = " on the wall日本. on"
    assert (stops.found, text) == (stop, whole[: whole.index(stop)])
