"""Links between the documents lead somewhere: to files that exist, and to headings that are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def prose(text: str) -> str:
    """Return the text without blocks and spans of code, in which brackets are no links."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def links(text: str) -> list[str]:
    """Return the targets of links and pictures that are not on the web.

    >>> links("[a](b.md#c), ![d](e.png), `f[0](1)`, [g](https://example.org)")
    ['b.md#c', 'e.png']
    """
    found = re.findall(r"\]\(([^()\s]+)\)", prose(text))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading.

    >>> anchor("The published ε of `image`: what's new?")
    'the-published-ε-of-image-whats-new'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page; equal headings are numbered."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        name = anchor(heading)
        same = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", other) is not None for other in found)
        found.append(f"{name}-{same}" if same else name)
    return frozenset(found)


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    wrong = []
    for target in links(page.read_text(encoding="utf-8")):
        path, _, place = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (place and place not in anchors(file)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_links(page: Path):
    assert not broken(page)


def test_broken_links_are_noticed(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`\n## A b\n[1](#a-b) [2](#a-b-1) [3](#a-b-2) [4](no.md) [5](page.md#c)", encoding="utf-8"
    )
    assert broken(page) == ["#a-b-2", "no.md", "page.md#c"]


def test_every_guide_is_in_the_readme():
    named = set(links((ROOT / "README.md").read_text(encoding="utf-8")))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= named


def test_every_page_has_a_place_in_the_menu_of_the_site():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    assert [page for page in docs.rglob("*.md") if page.relative_to(docs).as_posix() not in menu] == []
