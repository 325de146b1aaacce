"""Runs of `dpsinkhorn train` in the folder `run` of a place: how to begin one, and how far it got."""

from __future__ import annotations

import json

from dpsinkhorn.privacy import read_ledger

TINY = "--accountant rdp --checkpoint-every 0.1 --picture-every 0 --anyway"


def begin(place, *options):
    """Arguments of a run of 500 steps, some of a second, in the folder `run`."""
    files = ["--data", place / "data.npz", "--recipe", place / "long.toml", "--out", place / "run"]
    return ["train", *files, *TINY.split(), *(part for option in options for part in option.split())]


def done(place):
    """Whether the release is there."""
    return (place / "run" / "release").exists()


def lines_so_far(place):
    """The statistics of a run that may be writing them."""
    path = place / "run" / "statistics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def steps_on_record(folder):
    """How many steps the ledger of a run names, of whatever charge."""
    return sum(spend.steps for spend in read_ledger(folder / "ledger.jsonl").spends)


def snapshot(folder):
    """All that is in a folder, with content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
