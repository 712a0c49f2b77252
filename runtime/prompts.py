"""Several prompts: a file's lines, or a few that every model has something to say to.

Those that do not fit are found before the first one is decoded, all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftrt.errors import FeedError

if TYPE_CHECKING:
    from draftrt.runtime.decode import Decoder

DEFAULT = (
    "Here is how to bake a loaf of bread, step by step:",
    "The three most important inventions of the nineteenth century were",
    "def fibonacci(n):",
    "Q: Why is the sky blue?\nA:",
    "Dear Anna, thank you for your letter. Last week",
    "1, 2, 4, 8, 16,",
    "Once upon a time, in a village by the sea,",
    "SELECT name, count(*) FROM orders",
)
ONE_A_LINE = "give a text file with a prompt a line"


def read_prompts(path: Path | None, most: int) -> list[str]:
    """Return the first ``most`` prompts, one a line of a UTF-8 file; None: the built-in ones.

    Raises:
        FeedError: the file cannot be read or holds no prompt.
    """
    if path is None:
        return list(DEFAULT[:most])
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FeedError(f"{path}: no such file", hint=ONE_A_LINE) from error
    except (OSError, UnicodeDecodeError) as error:
        raise FeedError(
            f"{path}: cannot be read as UTF-8 text: {error}", hint=ONE_A_LINE
        ) from error
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise FeedError(f"{path}: holds no prompts, expected one a line", hint=ONE_A_LINE)
    return prompts[:most]


def room_problem(
    decoder: Decoder,
    texts: Sequence[str],
    ids: Sequence[Sequence[int]],
    max_tokens: int,
    form: str = "",
) -> FeedError | None:
    """Return which prompts do not fit a decoder with ``max_tokens`` behind each; None: all fit.

    Args:
        decoder: it has run nothing yet.
        texts: the prompts, as in the file.
        ids: the tokens of each.
        max_tokens: new tokens wanted.
        form: what was done to the texts, in words.
    """
    why = f"{max_tokens} are wanted behind each, and {decoder.held}"
    return length_problem(texts, ids, decoder.most_tokens - max_tokens, why, form=form)


def length_problem(
    texts: Sequence[str], ids: Sequence[Sequence[int]], most: int, why: str, *, form: str = ""
) -> FeedError | None:
    """Return what is wrong with the lengths of prompts, all of them in one error; None: nothing.

    Args:
        texts: the prompts, as in the file.
        ids: the tokens of each.
        most: tokens that each may have.
        why: what limits them, in words.
        form: what was done to the texts, in words.
    """
    wrong = [
        f"\n  prompt {number}, {text[:40]!r}: {len(one)} tokens"
        for number, (text, one) in enumerate(zip(texts, ids, strict=True), start=1)
        if not 0 < len(one) <= most
    ]
    if not wrong:
        return None
    return FeedError(
        f"{len(wrong)} of {len(texts)} prompts{f' ({form})' if form else ''} do not fit, expected "
        f"{f'1 to {most} tokens each' if most > 0 else 'larger caches'}: {why}" + "".join(wrong),
        hint="shorten them, ask for fewer tokens or rounds, or export with a larger --max-context",
    )
