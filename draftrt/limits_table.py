"""The table of limits as Markdown, for docs/accuracy.md; run as a module it rewrites the page."""

from __future__ import annotations

import sys
from pathlib import Path

from draftrt.spec import Precision
from draftrt.tolerances import IDS, LIMITS, LOGITS, Limit

BEGIN, END = "<!-- limits -->\n", "<!-- /limits -->"
HEAD = ("backend", "precision", "output", "limit", "why")


def as_markdown() -> str:
    """Return a line for each backend, precision and kind of output."""
    rows = [HEAD, ("---",) * len(HEAD)]
    for backends in _alike():
        for precision in Precision:
            kinds = {"ids": IDS[0], "logits": LOGITS[0], "values": "hidden"}
            for kind, name in kinds.items():
                limit = LIMITS.get((backends[0], precision, name))
                if limit is not None:
                    backend = ", ".join(backends)
                    what = (
                        _ids(limit) if kind == "ids" else _values(limit, is_logits=kind != "values")
                    )
                    rows.append((backend, precision.value, kind, what, limit.reason))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def updated(page: str) -> str:
    """Return a page with the table between its two marks replaced.

    Raises:
        ValueError: the page lacks a mark.
    """
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:start] + as_markdown() + page[end:]


def _alike() -> list[list[str]]:
    """Return the backends of the table, those with the same limits together."""
    groups: dict[str, list[str]] = {}
    for backend in dict.fromkeys(backend for backend, _, _ in LIMITS):
        own = [(*key[1:], limit) for key, limit in LIMITS.items() if key[0] == backend]
        groups.setdefault(repr(own), []).append(backend)
    return list(groups.values())


def _ids(limit: Limit) -> str:
    return "all equal" if limit.agreement == 1 else f"{limit.agreement:.0%} equal over all rounds"


def _values(limit: Limit, *, is_logits: bool) -> str:
    parts = [f"atol {limit.atol:g}", *([f"rtol {limit.rtol:g}"] if limit.rtol else [])]
    if is_logits:
        parts.append(f"top-1 {limit.agreement:.0%}")
        parts.append(f"top-10 {limit.overlap:.0%}")
        parts.append(f"KL {limit.divergence:g}")
    parts.append(f"cosine 1 − {1 - limit.cosine:.0e}")
    parts.append(f"norm {limit.norm:g}")
    return ", ".join(parts)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
