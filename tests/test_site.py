"""The site of the documentation in a real browser: everyone can read it, on a phone, a desk, by night."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest

from support.browser import WINDOWS, problems, started_browser

pytest.importorskip("material", reason="pip install 'dpsinkhorn[docs]'")

ROOT = Path(__file__).parents[1]
# one of each kind: text with code, tables, a reference, a page from outside of docs/
SOURCES = ("index.md", "start/curator.md", "speed.md", "reference/data.md")
PAGES = ("start/curator/", "speed/", "reference/data/", "CONTRIBUTING/", "404.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of a server on this machine that has a few pages of the site."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    place = tmp_path_factory.mktemp("site")
    for name in (*SOURCES, "style.css", "scroll.js"):
        (place / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "docs" / name, place / "docs" / name)
    shutil.copytree(ROOT / "docs" / "images", place / "docs" / "images")
    settings = {"docs_dir": str(place / "docs"), "site_dir": str(place / "site")}
    build(load_config(str(ROOT / "mkdocs.yml"), **settings, strict=False))  # most links lead nowhere here
    serve = functools.partial(Quiet, directory=str(place / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and keeps no log."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def browser():
    with started_browser() as started:
        yield started


@pytest.mark.parametrize(("window", "colours"), [("desktop", "dark"), ("phone", "light")])
def test_everyone_can_read_it_and_nothing_is_fetched_elsewhere(browser, site, window, colours):
    width, height = WINDOWS[window]
    with browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours) as context:
        page, asked = context.new_page(), []
        page.on("request", lambda request: asked.append(request.url))
        for name in PAGES:
            page.goto(f"{site}/{name}")
            assert problems(page) == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways"
        assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []


@pytest.mark.parametrize("window", WINDOWS)
def test_long_commands_are_seen_whole(browser, site, window):
    width, height = WINDOWS[window]
    with browser.new_context(viewport={"width": width, "height": height}) as context:
        page = context.new_page()
        for name in ("start/curator/", "speed/"):  # with a command of 138 letters
            page.goto(f"{site}/{name}")
            hidden = page.eval_on_selector_all(
                "pre > code", "blocks => blocks.map(block => block.scrollWidth - block.clientWidth)"
            )
            assert hidden
            assert max(hidden) <= 0


def test_the_check_can_fail(browser, site):
    """What was found wrong once, and mended, is found again."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{site}/start/curator/")
        page.evaluate(
            "document.querySelectorAll('.md-code__nav').forEach(node => node.removeAttribute('role'))"
        )
        page.evaluate("document.querySelector('[role=dialog]').removeAttribute('aria-label')")
        page.evaluate("document.querySelector('article p').style.color = '#ddd'")
        found = " ".join(problems(page))
        for rule in ("landmark-unique", "aria-dialog-name", "color-contrast"):
            assert rule in found
