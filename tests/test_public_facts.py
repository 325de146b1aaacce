"""What counts as public is one list: in the code, in every release, and in the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpsinkhorn.privacy import PUBLIC_FACTS
from dpsinkhorn.release import load
from dpsinkhorn.report import write_report
from support.html import read_page
from support.runs import DATA, finished, tiny_plan

ROOT = Path(__file__).parents[1]


def words(text: str) -> str:
    return " ".join(text.replace("`", "").split())


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md", "docs/data.md"])
def test_documents(page):
    text = words((ROOT / page).read_text(encoding="utf-8"))
    as_bullets, in_a_sentence = "- " + "; - ".join(PUBLIC_FACTS) + ".", "; ".join(PUBLIC_FACTS) + "."
    assert words(as_bullets) in text or words(in_a_sentence) in text


def test_releases_and_reports(tmp_path):
    run = finished(tmp_path / "run", tiny_plan(DATA), DATA)
    report = write_report(run.folder).report
    pages = {
        "privacy.json": " ".join(load(run.release_folder).privacy.notes),
        "README.md": (run.release_folder / "README.md").read_text(encoding="utf-8"),
        "report": read_page(report.read_bytes()).text,
    }
    for name, text in pages.items():
        assert all(words(fact) in words(text) for fact in PUBLIC_FACTS), name
