"""Relative links in the documentation point to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.joinpath("docs").rglob("*.md"),
        *(page for folder in ("examples", "tests") for page in ROOT.joinpath(folder).rglob("README.md")),
    ]
)
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def read_prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return FENCE.sub("", page.read_text("utf-8"))


def slug(heading: str) -> str:
    """Return the anchor that GitHub derives from a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def read_anchors(page: Path) -> set[str]:
    text = read_prose(page)
    headings = {slug(each) for each in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    return headings | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_point_to_existing_files_and_headings(page: Path) -> None:
    for link in LINK.findall(read_prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}: no such file"
        if anchor:
            assert anchor in read_anchors(target), f"{page.name}: {link}: no such heading"
