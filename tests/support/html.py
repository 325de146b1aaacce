"""A page as a tree, by the standard library, and what every page of ours must be."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str | None]
    children: list[Node | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        if self.tag == "style":
            return ""
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join(" ".join(parts).split())

    def all(self, *tags: str) -> list[Node]:
        """All nodes of these kinds below this one, in order."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                found += [child] if child.tag in tags else []
                found += child.all(*tags)
        return found

    def one(self, tag: str, **attributes: str) -> Node:
        (node,) = [
            node
            for node in self.all(tag)
            if all(node.attributes.get(name) == value for name, value in attributes.items())
        ]
        return node


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("document", {})
        self.path = [self.root]

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice"
        node = Node(tag, dict(attributes))
        self.path[-1].children.append(node)
        if tag not in VOID:
            self.path.append(node)

    def handle_startendtag(self, tag, attributes):
        self.path[-1].children.append(Node(tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.path[-1].tag == tag, f"</{tag}> closes <{self.path[-1].tag}>"
        self.path.pop()

    def handle_data(self, data):
        self.path[-1].children.append(data)


def read_page(page: bytes | str) -> Node:
    """The tree of a page, all of whose tags are closed in order."""
    reader = _Reader()
    reader.feed(page.decode() if isinstance(page, bytes) else page)
    reader.close()
    assert reader.path == [reader.root], "a tag is not closed"
    return reader.root


def rows(page: Node, caption: str) -> list[list[str]]:
    """The cells of the table with this caption."""
    (table,) = [table for table in page.all("table") if table.one("caption").text.startswith(caption)]
    return [[cell.text for cell in row.all("th", "td")] for row in table.all("tr")]


def check_page(page: Node) -> None:
    """Self-contained, without scripts, and made for everyone."""
    every = page.all(*{node.tag for node in _walk(page)})
    assert not page.all("script", "iframe", "object", "embed", "form", "base")
    for node in every:
        for name, value in node.attributes.items():
            assert not name.startswith("on"), f"{node.tag} has a handler {name}"
            if name in ("src", "href", "action", "data", "srcset", "xlink:href", "poster"):
                assert value is not None
                assert value.startswith(("data:image/png;base64,", "#")) or value == "data:,", value[:60]
    assert not re.search(r"url\(|@import", str(page.one("style").children))
    assert page.one("html").attributes["lang"] == "en"
    assert page.one("head").one("title").text
    ids = [node.attributes["id"] for node in every if "id" in node.attributes]
    assert len(set(ids)) == len(ids)
    for node in page.all("a"):
        assert node.attributes["href"][1:] in ids
    for picture in page.all("img"):
        assert picture.attributes["alt"]
        assert int(picture.attributes["width"]) > 0 < int(picture.attributes["height"])
    for drawing in page.all("svg"):
        assert drawing.attributes["role"] == "img"
        assert set(drawing.attributes["aria-labelledby"].split()) <= set(ids)
    for table in page.all("table"):
        assert table.one("caption").text
        assert all(cell.attributes.get("scope") in ("row", "col") for cell in table.all("th"))
    levels = [int(node.tag[1]) for node in page.all("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1 == levels[0]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def _walk(node: Node):
    yield node
    for child in node.children:
        if isinstance(child, Node):
            yield from _walk(child)
