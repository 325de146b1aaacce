"""Nothing of the curator's is on the page: it follows from the release, the plan and the ledger's totals."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from dpsinkhorn import load
from dpsinkhorn.evaluation import beside_picture, nearest_neighbours, neighbours_picture
from dpsinkhorn.privacy import Budget, Ledger, epsilon, read_ledger
from dpsinkhorn.report import write_report
from dpsinkhorn.report.findings import Picture
from dpsinkhorn.training import Run, Saving
from support.html import read_page
from support.runs import DATA, EVERY_BLOCK, IMAGES, LABELS, bits, finished, tiny_data, tiny_plan

DAY = datetime.date(2030, 5, 4)
PICTURES = Saving(checkpoint_seconds=0.0, picture_steps=2)

# what a page may be made from, and what Python itself opens
ALLOWED = {
    "run.json",
    "ledger.jsonl",
    "ledger.jsonl.head",
    "release/config.json",
    "release/privacy.json",
    "release/generator.safetensors",
    "report.html.partial",
}

WATCHED = """
import os, sys
from pathlib import Path
import dpsinkhorn.report
folder, opened = Path(sys.argv[1]).resolve(), []
def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        opened.append(os.path.abspath(os.fsdecode(arguments[0])))
sys.addaudithook(watch)
dpsinkhorn.report.write_report(folder / "run")
sys.stdout.write("\\n".join(path for path in opened if path.startswith(str(folder) + os.sep)))
"""


@pytest.fixture
def place(tmp_path):
    """A run on a file, with everything beside it that a run can have."""
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=LABELS)
    source = {"data": str(tmp_path / "data.npz"), "label": "labels"}
    run = Run.create(tmp_path / "run", tiny_plan(DATA, seed=None), source=source)
    assert run.train(DATA, saving=PICTURES)
    assert (run.folder / "checkpoint.safetensors").exists()
    assert list((run.folder / "samples").iterdir())
    return tmp_path


def test_only_these_files_are_opened(place):
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(place)], capture_output=True, text=True, check=True
    )
    opened = {path.removeprefix(f"{place.resolve()}/run/") for path in done.stdout.splitlines()}
    opened -= {str(place.resolve() / "run")}  # the folder, to flush it
    assert opened == ALLOWED


def test_all_else_in_the_folder_does_not_matter(place):
    """Statistics, pictures, checkpoint, data, recipe: changed or gone, the page is the same to the byte."""
    run = place / "run"
    before = write_report(run, made=DAY).report.read_bytes()
    lines = [{"step": 5, "epsilon": 1.0, "gradient_norm": 1e9, "steps_per_second": 3.3, "loss": 0.125}]
    (run / "statistics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(run / "samples")
    (run / "checkpoint.safetensors").write_bytes(b"private gradients")
    (place / "data.npz").unlink()
    (run / "release" / "README.md").write_text("other")
    settings = json.loads((run / "run.json").read_text())
    settings["source"] = {"data": "/home/ann/hiv-clinic.npz", "groups": "patient", "label": "status"}
    settings["plan"]["recipe"]["name"] = "hiv-recipe"
    settings["plan"]["recipe"]["description"] = "for the clinic"
    (run / "run.json").write_text(json.dumps(settings))
    after = write_report(run, made=DAY).report.read_bytes()
    changed = re.sub(rb"<td>digits: [^<]*</td>", b"<td>the curator&#39;s own</td>", before)
    assert after == changed


def test_not_even_in_which_blocks_steps_were_charged(tmp_path):
    """How many steps a block has follows the clock, and so the private samples."""
    plan = tiny_plan(DATA, seed=3, steps=60)
    whole = finished(tmp_path / "whole", plan, DATA)
    parts = Run.create(tmp_path / "parts", plan)
    for _ in range(2):
        assert not Run.resume(parts.folder).train(DATA, saving=EVERY_BLOCK, watch=lambda _: True)
    assert Run.resume(parts.folder).train(DATA)
    assert bits(whole.folder)["release"] == bits(parts.folder)["release"]
    blocks = [[spend.steps for spend in read_ledger(run.ledger_path).spends] for run in (whole, parts)]
    assert blocks[0] != blocks[1]
    pages = [write_report(run.folder, made=DAY).report.read_text() for run in (whole, parts)]
    digests = [read_ledger(run.ledger_path).digest for run in (whole, parts)]
    assert pages[0].replace(digests[0], digests[1]) == pages[1]


def test_names_of_the_curators(tmp_path):
    secret = tmp_path / "Klinik-Geheim"
    secret.mkdir()
    data, ledger = tiny_data(persons=20), secret / "Hauptbuch.jsonl"
    plan = tiny_plan(data, seed=None)
    Ledger.open(ledger, epsilon, budget=Budget(100.0, plan.delta)).close()
    source = {"data": str(secret / "Aids.npz"), "groups": "Patientenname", "label": "Befund"}
    for name in ("Erster", "Zweiter"):
        run = Run.create(secret / name, plan, source=source, ledger=ledger)
        assert run.train(data, saving=PICTURES)
    written = write_report(secret / "Zweiter", curator_page=True)
    assert written.findings.data_name is None
    for page in (written.report, written.curator_page):
        text = page.read_text()
        for word in (
            "Geheim",
            "Hauptbuch",
            "Aids",
            "Patientenname",
            "Befund",
            "Erster",
            "Zweiter",
            str(tmp_path),
        ):
            assert word not in text


def test_the_log_is_for_the_curator(place):
    log = place / "run" / "statistics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for number, line in enumerate(lines):  # told from all other numbers of a page
        line |= {"gradient_norm": 8317.0 + number, "steps_per_second": 0.09143 + number / 1e5}
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    written = write_report(place / "run", curator_page=True)
    assert written.curator_page.name == "report-CURATOR-ONLY.html"
    page = read_page(written.curator_page.read_bytes())
    assert "must not leave" in page.text.lower()
    assert f"{lines[-1]['gradient_norm']:.4g}" in page.text
    assert len(page.all("img")) == len(list((place / "run" / "samples").iterdir()))
    # what is drawn has many numbers of its own
    main = re.sub(
        r"base64,[^\"]*|[0-9a-f]{64}|<style>.*?</style>|<svg.*?</svg>",
        "",
        written.report.read_text(),
        flags=re.DOTALL,
    )
    for line in lines:
        for name in ("gradient_norm", "steps_per_second"):
            assert not re.search(rf"(?<![\d.,]){re.escape(f'{line[name]:.4g}')}(?![\d.,])", main)


def test_a_torn_log_does_no_harm(place):
    with open(place / "run" / "statistics.jsonl", "a") as file:
        file.write('{"step": 1')
    (place / "run" / "samples" / "step-0000009.png").write_bytes(b"\x89PNG torn")
    (place / "run" / "samples" / "step-x.png").write_bytes(b"")
    assert write_report(place / "run", curator_page=True).curator_page.exists()


def test_real_images_are_for_the_curator_alone(place):
    """Neither they nor the name of their file get onto the page that may be shown, whatever is stated."""
    drawn = beside_picture(IMAGES, LABELS, IMAGES, LABELS, ["Geheim"], place / "both.png")
    near = nearest_neighbours(IMAGES[:3], IMAGES)
    nearest = neighbours_picture(IMAGES[:3], IMAGES, near, place / "near.png")
    found = place / "evaluation.json"
    shown = {"beside": "/elsewhere/both-CURATOR-ONLY.png", "neighbours": str(nearest)}  # one was moved
    release = load(place / "run")
    score = {"name": "cnn", "mean": 81.0, "spread": None, "per_class": [90.0] * 10}
    score |= dict.fromkeys(("balanced_accuracy", "roc_auc"), 0.5)
    score |= dict.fromkeys(("balanced_accuracy_spread", "roc_auc_spread"))
    figures = {
        "title": release.title,
        "epsilon": release.privacy.epsilon,
        "delta": release.privacy.delta,
        "protocol": {"name": "quick", "summary": "short"},
        "utility": {"trained_on": 9, "tested_by_class": [5] * 10, "classifiers": [score]},
        "likeness": None,
        "real": None,
        "count": 9,
        "sets": 1,
        "varied": False,
        "public": False,
        "data": "x",
        "class_names": [],
        **shown,
    }
    found.write_text(json.dumps(figures))
    for public in (False, True):
        written = write_report(place / "run", evaluation=found, public_evaluation=public, curator_page=True)
        for picture in (drawn, nearest):
            with Image.open(picture) as file:
                data = Picture.of(file.convert("RGB")).uri
            assert data in written.curator_page.read_text()
            assert data not in written.report.read_text()
            assert picture.name not in written.report.read_text()
