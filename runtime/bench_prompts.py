"""The prompts of a bench: a file's lines, or a few that every model has something to say to."""

from __future__ import annotations

from pathlib import Path

from draftrt.errors import FeedError

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


def read_prompts(path: Path | None, most: int) -> list[str]:
    """Return the first ``most`` prompts, one a line of a UTF-8 file; None: the built-in ones.

    Raises:
        FeedError: the file cannot be read or holds no prompt.
    """
    if path is None:
        return list(DEFAULT[:most])
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FeedError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise FeedError(f"{path}: holds no prompts, expected one a line")
    return prompts[:most]
