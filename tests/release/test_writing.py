"""Nothing half-written, nothing overwritten, nothing unsound written; what the curator says of a release."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt

from dpsinkhorn.release import About, ReleaseError, folder, load, write_release
from dpsinkhorn.release.folder import FILES
from dpsinkhorn.release.release import Release
from support.html import read_page
from support.releases import CONFIGS, EPSILON, statement, trained, write_small_release


@pytest.fixture(scope="module")
def generator():
    return trained(CONFIGS["mlp"])


def write(path, generator, **changes):
    arguments = {"label_probabilities": None, "privacy": statement(), "releasable": True}
    write_release(path, generator, **{**arguments, **changes})


class TestAtomic:
    @pytest.mark.parametrize("failing", FILES)
    @pytest.mark.parametrize("existing", [False, True])
    def test_a_write_that_fails(self, tmp_path, generator, monkeypatch, failing, existing):
        target = tmp_path / "release"
        if existing:
            write(target, generator, about=About(title="the old one"))
        real = folder.write_synced

        def write_synced(path, data, *, new):
            if path.name == failing:
                real(path, data[: len(data) // 2])
                raise OSError(28, "No space left on device")
            real(path, data, new=new)

        monkeypatch.setattr(folder, "write_synced", write_synced)
        with pytest.raises(ReleaseError, match="No space left on device") as error:
            write(target, generator, overwrite=True)
        assert "\n" not in str(error.value)
        assert [path.name for path in tmp_path.iterdir()] == (["release"] if existing else [])
        if existing:
            assert load(target).title == "the old one"

    @pytest.mark.skipif(os.name != "posix", reason="limits of processes are POSIX")
    def test_a_disk_that_is_full(self, tmp_path):
        """The system itself refuses to write more than a few bytes."""
        code = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.releases import CONFIGS, statement, trained
from dpsinkhorn.release import ReleaseError, write_release
generator, privacy = trained(CONFIGS["mlp"]), statement()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
try:
    write_release("release", generator, label_probabilities=None, privacy=privacy, releasable=True)
except ReleaseError as error:
    print(error)
"""
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert "File too large" in ran.stdout
        assert list(tmp_path.iterdir()) == []

    def test_interrupted(self, tmp_path, generator, monkeypatch):
        """Ctrl-C leaves nothing behind either."""

        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(folder, "write_synced", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "release", generator)
        assert list(tmp_path.iterdir()) == []

    def test_permissions_are_ordinary(self, tmp_path, generator):
        write(tmp_path / "release", generator)
        (tmp_path / "plain").mkdir()
        (tmp_path / "plain" / "file").write_bytes(b"")
        assert (tmp_path / "release").stat().st_mode == (tmp_path / "plain").stat().st_mode
        for path in (tmp_path / "release").iterdir():
            assert path.stat().st_mode == (tmp_path / "plain" / "file").stat().st_mode


class TestExisting:
    def test_not_overwritten_unless_asked(self, tmp_path, generator):
        target = tmp_path / "release"
        write(target, generator, about=About(title="first"))
        with pytest.raises(ReleaseError, match="exists already"):
            write(target, generator, about=About(title="second"))
        assert load(target).title == "first"
        write(target, generator, about=About(title="second"), overwrite=True)
        assert load(target).title == "second"
        assert [path.name for path in tmp_path.iterdir()] == ["release"]

    def test_an_empty_folder_will_do(self, tmp_path, generator):
        (tmp_path / "release").mkdir()
        write(tmp_path / "release", generator)
        assert load(tmp_path / "release").classes == 3

    def test_parents_are_created(self, tmp_path, generator):
        write(tmp_path / "a" / "b" / "release", generator)
        assert load(tmp_path / "a" / "b").classes == 3

    @pytest.mark.parametrize("what", ["folder", "release and more", "file", "link"])
    def test_other_things_are_never_overwritten(self, tmp_path, generator, what):
        target = tmp_path / "release"
        if what == "file":
            target.write_text("thesis")
        elif what == "link":
            (tmp_path / "elsewhere").mkdir()
            target.symlink_to(tmp_path / "elsewhere")
        else:
            if what == "folder":
                target.mkdir()
            else:
                write(target, generator)
            (target / "thesis.txt").write_text("thesis")
        before = sorted(path.name for path in tmp_path.rglob("*"))
        with pytest.raises(ReleaseError):
            write(target, generator, overwrite=True)
        assert sorted(path.name for path in tmp_path.rglob("*")) == before


class TestRefused:
    def test_an_epsilon_below_its_charges(self, tmp_path, generator):
        with pytest.raises(ReleaseError, match="charges cost"):
            write(tmp_path / "release", generator, privacy=statement(epsilon=0.99 * EPSILON))
        assert list(tmp_path.iterdir()) == []

    def test_an_epsilon_above_its_charges_is_fine(self, tmp_path, generator):
        write(tmp_path / "release", generator, privacy=statement(epsilon=10.0))
        assert load(tmp_path / "release").privacy.epsilon == 10

    @pytest.mark.parametrize(
        "changes",
        [
            {"label_probabilities": [0.5, 0.5]},
            {"label_probabilities": [0.5, 0.4, 0.2]},
            {"class_names": ["a", "b"]},
            {"class_names": ["a", "b", "b"]},
            {"class_names": ["a", "b\nc", "b\0c"]},
            {"value_range": (1, 0)},
            {"label_source": "guessed"},
        ],
        ids=str,
    )
    def test_bad_arguments(self, tmp_path, generator, changes):
        with pytest.raises(ReleaseError) as error:
            write(tmp_path / "release", generator, **changes)
        assert "\n" not in str(error.value)
        assert list(tmp_path.iterdir()) == []

    def test_odd_class_names_are_made_printable(self, tmp_path, generator):
        write(tmp_path / "release", generator, class_names=["a\nb", "\udcff", "long" * 100])
        assert load(tmp_path / "release").class_names == ("a?b", "?", "long" * 50)

    def test_weights_that_are_not_finite(self, tmp_path):
        generator = trained(CONFIGS["mlp"])
        with torch.no_grad():
            next(generator.parameters())[0, 0] = float("nan")
        with pytest.raises(ReleaseError, match="not finite"):
            write(tmp_path / "release", generator)
        assert list(tmp_path.iterdir()) == []

    def test_probabilities_without_classes(self, tmp_path):
        with pytest.raises(ReleaseError, match="without classes"):
            write(tmp_path / "release", trained(CONFIGS["unconditional"]), label_probabilities=[1.0])


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
