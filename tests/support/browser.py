"""A headless browser for the tests of pages: Chromium, wherever it is installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
MISSING = (
    "NO BROWSER: the report is not looked at. `make browser` installs one where it may; else "
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
