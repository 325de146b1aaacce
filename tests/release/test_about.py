"""What a curator says of a release, and releases of before that could be said."""

from __future__ import annotations

import dataclasses
import json

import pytest
from markdown_it import MarkdownIt

from dpsinkhorn import load
from dpsinkhorn.release import About, ReleaseError
from dpsinkhorn.release.release import Release
from support.html import read_page
from support.releases import CONFIGS, statement, trained, write_small_release

SAID = About(
    "Chest X-rays", "Synthetic images of lungs.", "Teaching", "dpo@hospital.example", "Consent", "Students"
)


def card_of(folder):
    """The card as a browser would show it, and its text."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(card.split("---\n", 2)[2])
    return read_page(f"<html><body>{html}</body></html>".encode()), card


def test_it_is_in_the_release_and_on_the_card(tmp_path):
    write_small_release(tmp_path / "r", about=SAID, label_source="stated", value_range=(0, 4095))
    release = load(tmp_path / "r")
    assert release.about == SAID
    assert (release.label_source, release.value_range) == ("stated", (0.0, 4095.0))
    page, _ = card_of(tmp_path / "r")
    assert page.one("h1").text == "Chest X-rays"
    for words in (
        "Synthetic images of lungs.",
        "Purpose: Teaching",
        "Contact: dpo@hospital.example",
        "Legal basis: Consent",
        "Recipients: Students",
        "shares that the curator stated",
        "images / 255 * 4095",
        "Whoever trained it is trusted with the data",
    ):
        assert words in page.text


def test_a_release_of_version_1_is_read(tmp_path):
    write_small_release(tmp_path / "r")
    path = tmp_path / "r" / "config.json"
    config = json.loads(path.read_text())
    for name in set(config) & {
        *(field.name for field in dataclasses.fields(About) if field.name != "title"),
        *("label_source", "value_range"),
    }:
        del config[name]
    path.write_text(json.dumps({**config, "version": 1}))
    release = load(tmp_path / "r")
    assert release.about == About("Small digits")
    assert (release.label_source, release.value_range) == (None, None)
    assert release.labels_in_words == "classes in the shares that config.json has"
    # and the privacy statement has no other version yet
    privacy = tmp_path / "r" / "privacy.json"
    privacy.write_text(json.dumps({**json.loads(privacy.read_text()), "version": 2}))
    with pytest.raises(ReleaseError, match=r"privacy\.json has version 2"):
        load(tmp_path / "r")


def test_balanced_labels_are_said_to_be(tmp_path):
    write_small_release(tmp_path / "r", label_probabilities=None, label_source="uniform")
    page, card = card_of(tmp_path / "r")
    assert "synthetic labels are balanced" in page.text
    assert "| 0 | zero | 33.3 % |" in card
    even = dataclasses.replace(load(tmp_path / "r"), label_source=None)
    assert "balanced" in even.labels_in_words
    assert Release(trained(CONFIGS["unconditional"]), statement(), True).labels_in_words == "none"


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "</h1><img src=x onerror=alert(1)>",
        "[click](javascript:alert(1))",
        "![x](http://evil.example/x.png)",
        "<http://evil.example>",
        "`code` **bold** _it_ ~~no~~ # no | cell | $x$",
        "&lt;b&gt; \\[a\\](b)",
    ],
)
def test_text_stays_text_on_the_card(tmp_path, text):
    names = ["a", "b", text]
    write_small_release(tmp_path / "r", about=About(text, text, text, text, text, text), class_names=names)
    page, _ = card_of(tmp_path / "r")
    assert page.one("h1").text == text
    assert page.text.count(text) == 7
    assert [node.attributes["src"] for node in page.all("img")] == ["samples.png"]
    assert [node.attributes["href"] for node in page.all("a")] == ["https://pypi.org/project/dpsinkhorn/"]
    assert not page.all("script")


@pytest.mark.parametrize("name", ["title", "description", "purpose", "contact", "legal_basis", "recipients"])
@pytest.mark.parametrize("text", ["two\nlines", "\x1b[1m", "\u202e", "x" * 2001, 3])
def test_what_cannot_be_printed_on_a_line_is_refused(name, text):
    with pytest.raises(ReleaseError, match=f"the {name.replace('_', ' ')} must be one line"):
        About(**{name: text})
