"""A headless browser for the tests of pages, Chromium, wherever it is installed; and what axe-core says."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest

WINDOWS = {"phone": (360, 740), "desktop": (1280, 900)}
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "NO BROWSER: report and site are not looked at. `make browser` installs one where it may; else "
    "`apt-get install chromium-headless-shell`, or `playwright install --only-shell chromium`"
)


def find_browser(playwright) -> str | None:
    """The program of a Chromium; `None` where there is none."""
    own = playwright.chromium.executable_path
    found = (shutil.which(name) for name in NAMES)
    return next((path for path in (*found, own) if path and Path(path).exists()), None)


def launch(playwright, program: str):
    """Start it. A sandbox is not to be had as root; the pages are our own."""
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=program, args=arguments)


@contextmanager
def started_browser():
    """Start one for a test; where there is none, skip it, and say so."""
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with api.sync_playwright() as playwright:
        program = find_browser(playwright)
        if program is None:
            pytest.skip(MISSING)
        try:
            browser = launch(playwright, program)
        except api.Error as error:
            pytest.skip(f"{MISSING}. {program} does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


def problems(page) -> list[str]:
    """Return what axe-core finds in a page by all of its rules: WCAG 2, and best practice."""
    script = resources.files("axe_playwright_python") / "axe.min.js"
    page.evaluate(script.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")
    assert {"color-contrast", "document-title", "landmark-unique"} <= {rule["id"] for rule in found["passes"]}
    return [
        f"{finding['id']}: {node['html'][:120]} {node.get('failureSummary', '')}"
        for finding in found["violations"]
        for node in finding["nodes"]
    ]
