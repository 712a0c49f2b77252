"""Every relative link in every Markdown file leads to a file, and every anchor to a heading."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|^\s*\[[^\]]+\]:\s*<?([^\s>]+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
HAS_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def anchors_of(text: str) -> set[str]:
    """The anchors that a Markdown page's headings get on a code host."""
    fenced = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    anchors: set[str] = set()
    for heading in HEADING.findall(fenced):
        base = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        repeats = 0
        while (anchor := f"{base}-{repeats}" if repeats else base) in anchors:
            repeats += 1
        anchors.add(anchor)
    return anchors


def broken_links(page: Path, root: Path) -> list[str]:
    """The links of a page that lead nowhere inside the repository."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in (first or second for first, second in LINK.findall(text)):
        if HAS_SCHEME.match(link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(root) or not target.exists():
            broken.append(f"{link}: no such file in the repository")
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target.read_text()):
            broken.append(f"{link}: no such heading")
    return broken


def test_every_relative_link_resolves(root: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    pages = [page for name in listed.splitlines() if (page := root / name).is_file()]
    assert root / "CONTRIBUTING.md" in pages
    broken = {str(page.relative_to(root)): broken_links(page, root) for page in pages}
    assert not any(broken.values()), {page: links for page, links in broken.items() if links}


@pytest.mark.parametrize(
    ("text", "num_broken"),
    [
        ("[a](other.md) [b](other.md#two-words) [c](#here)\n# Here", 0),
        ("![picture](missing.png)", 1),
        ("[a]: missing.md", 1),
        ("[a](other.md#absent)", 1),
        ("[a](../outside.md)", 1),
        ("`[a](missing.md)`\n```\n[b](missing.md)\n```\n", 0),
        ("[a](scheme:anything)", 0),
    ],
)
def test_the_link_check_tells_right_from_wrong(tmp_path: Path, text: str, num_broken: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside.md").write_text("# Outside")
    (root / "other.md").write_text("# Two words")
    page = root / "page.md"
    page.write_text(text)
    assert len(broken_links(page, root)) == num_broken
