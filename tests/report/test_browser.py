"""The report in a real browser: on a phone and a desk, without scripts or network, for everyone, on paper."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import pytest

from dpsinkhorn import load
from dpsinkhorn.report import write_report
from dpsinkhorn.training import Run, Saving
from support.browser import WINDOWS, problems, started_browser
from support.runs import EVERY_BLOCK, finished, tiny_data, tiny_plan

PAGES = ("private", "not-for-release", "persons-image", "not-private", "unfinished", "curator")


@pytest.fixture(scope="module")
def browser():
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Every kind of page, by name; with names that are long and cannot be broken at a space."""
    place = tmp_path_factory.mktemp("pages")
    data, persons = tiny_data(records=120, classes=12), tiny_data(persons=20)
    private = finished(place / "private", tiny_plan(data, seed=None), data, saving=Saving(0.0, 4))
    config = private.folder / "release" / "config.json"
    settings = json.loads(config.read_text())
    settings["class_names"] = [f"Unaussprechlich{k}" + "lang" * 20 for k in range(12)]
    config.write_text(json.dumps(settings))
    evaluation = place / "evaluation.json"
    evaluation.write_text(json.dumps(figures(private)))
    finished(place / "not-for-release", tiny_plan(data, seed=4), data)
    config = place / "not-for-release" / "release" / "config.json"
    said = {"description": "lang" * 500, "purpose": "lang" * 125, "contact": "lang" * 50}
    config.write_text(json.dumps({**json.loads(config.read_text()), **said}))
    finished(place / "persons-image", tiny_plan(persons, "image", seed=None, steps=400), persons)
    finished(place / "not-private", tiny_plan(data, "none", seed=None), data)
    stopped = Run.create(place / "unfinished", tiny_plan(data, seed=None, steps=300))
    assert not stopped.train(data, saving=EVERY_BLOCK, watch=lambda now: now.block.step > 10)
    found = {name: write_report(place / name).report for name in PAGES if name != "curator"}
    found["private"] = write_report(private.folder, evaluation=evaluation, public_evaluation=True).report
    found["curator"] = write_report(
        private.folder, output=place / "c.html", evaluation=evaluation
    ).curator_page
    return found


def figures(run):
    """An evaluation in the form of `dpsinkhorn evaluate`; its figures are not what is tested here."""
    release = load(run.folder)
    score = {"mean": 81.25, "spread": 1.5, "worst_class": 3, "worst_class_accuracy": 40.0}
    for name in ("balanced_accuracy", "roc_auc"):
        score |= {name: 0.875, f"{name}_spread": 0.125}
    names = ("logistic", "forest", "mlp", "cnn")
    classifiers = [{"name": name, "per_class": [90.0] * 12, **score} for name in names]
    utility = {"trained_on": 60000, "tested_by_class": [100] * 12, "classifiers": classifiers}
    likeness = {"name": "frechet-efficientnet-lite0", "frechet": 12.5, "floor": 1.5, "floor_from": "half"}
    return {
        "title": release.title,
        "epsilon": release.privacy.epsilon,
        "delta": release.privacy.delta,
        "count": 60000,
        "data": "digits",
        "class_names": [str(k) for k in range(12)],
        "public": True,
        "protocol": {"name": "quick", "summary": "short trainings"},
        "sets": 5,
        "varied": False,
        "utility": utility,
        "real": utility,
        "likeness": {
            **likeness,
            "precision": 0.5,
            "recall": 0.25,
            "real_precision": 0.75,
            "real_recall": 0.75,
        },
    }


class Visit:
    """A page, opened, with all that it asked for and all that went wrong."""

    def __init__(self, browser, path: Path, size, *, scripts=True, colours="light"):
        width, height = size
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, java_script_enabled=scripts, color_scheme=colours
        )
        self.requests, self.complaints = [], []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", PAGES)
def test_it_fits_asks_for_nothing_and_is_accessible(browser, pages, name, window):
    with Visit(browser, pages[name], WINDOWS[window]) as visit:
        wide = visit.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide[0] <= wide[1], "it scrolls sideways"
        # nothing that is cut off at the side either
        outside = visit.page.evaluate(
            """() => [...document.querySelectorAll("main *, header *")]
                .filter(node => node.getBoundingClientRect().right > innerWidth + 0.5)
                .map(node => node.outerHTML.slice(0, 80))"""
        )
        assert outside == []
        broken = visit.page.evaluate("[...document.images].filter(image => !image.naturalWidth).length")
        assert broken == 0
        assert problems(visit.page) == []
        assert [url for url in visit.requests if not url.startswith("data:")] == [pages[name].as_uri()]
        assert visit.complaints == []


@pytest.mark.parametrize("name", ["private", "not-for-release"])
def test_dark_colours_can_be_read_too(browser, pages, name):
    with Visit(browser, pages[name], WINDOWS["desktop"], colours="dark") as visit:
        back = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == "rgb(20, 24, 28)"
        assert problems(visit.page) == []


def test_without_scripts(browser, pages):
    with Visit(browser, pages["private"], WINDOWS["phone"], scripts=False) as visit:
        for words in ("What is guaranteed", "Privacy loss, ε (epsilon)", "Using the release"):
            assert visit.page.get_by_text(words, exact=True).first.is_visible()
        assert visit.page.get_by_role("img").count() == 2 * 12 + 1
        assert visit.complaints == []


def test_the_guarantee_is_seen_without_scrolling(browser, pages):
    """The verdict and all four figures on a small desk; on a phone the verdict and what is protected."""
    with Visit(browser, pages["private"], (1280, 800)) as visit:
        for figure in visit.page.locator(".figures > div").all():
            box = figure.bounding_box()
            assert box["y"] + box["height"] <= 800
    with Visit(browser, pages["private"], WINDOWS["phone"]) as visit:
        box = visit.page.locator(".figures > div").first.bounding_box()
        assert box["y"] + box["height"] <= 740


def test_a_warning_is_loud(browser, pages):
    with Visit(browser, pages["not-for-release"], WINDOWS["phone"]) as visit:
        title = visit.page.locator(".banner .title")
        assert title.bounding_box()["y"] < 400
        assert float(title.evaluate("node => parseFloat(getComputedStyle(node).fontSize)")) >= 24


def test_on_paper(browser, pages, tmp_path):
    with Visit(browser, pages["private"], WINDOWS["desktop"], colours="dark") as visit:
        visit.page.emulate_media(media="print", color_scheme="dark")
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not visit.page.locator("nav").is_visible()
        visit.page.pdf(path=tmp_path / "page.pdf", prefer_css_page_size=True)
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_the_summary_to_sign_is_one_page(browser, pages, tmp_path):
    """In the width of a page of A4 it is no higher, whatever the mechanism, with texts of usual lengths."""
    long = "What a hospital writes here takes two or three lines of a page, rarely more than that. " * 2
    folder = pages["private"].parent
    page = write_report(
        folder, output=tmp_path / "r.html", responsible=long, contact=long, legal_basis=long, recipients=long
    ).report
    wide, high = (mm / 25.4 * 96 for mm in (210 - 2 * 16, 297 - 2 * 18))
    for path in (page, pages["persons-image"]):
        with Visit(browser, path, (int(wide), 900)) as visit:
            visit.page.emulate_media(media="print")
            assert visit.page.locator("#decision").bounding_box()["height"] <= high


@pytest.fixture
def server():
    """A server on this machine, and what it was asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()


def test_the_checks_can_fail(browser, pages, tmp_path, server):
    """And the page's own policy keeps out what someone might have smuggled in."""
    address, asked = server
    bad = pages["private"].read_text().replace(' alt="4 generated images', ' data-x="', 1)
    smuggled = f'<p style="width: 2000px; color: #ddd">pale</p><img src="{address}/x.png">'
    bad = bad.replace(
        "<main>", f"<main>{smuggled}<script>document.title = 'owned'; console.error('loud')</script>"
    )
    (tmp_path / "kept.html").write_text(bad)
    with Visit(browser, tmp_path / "kept.html", WINDOWS["phone"]) as visit:
        assert asked == []
        assert visit.page.title() != "owned"
    (tmp_path / "bad.html").write_text(bad.replace("Content-Security-Policy", "X-Nothing"))
    with Visit(browser, tmp_path / "bad.html", WINDOWS["phone"]) as visit:
        assert asked == ["/x.png"]
        assert visit.page.title() == "owned"
        assert f"{address}/x.png" in visit.requests
        assert visit.page.evaluate("document.documentElement.scrollWidth") > 360
        found = " ".join(problems(visit.page))
        assert "image-alt" in found
        assert "color-contrast" in found
        assert "loud" in visit.complaints
