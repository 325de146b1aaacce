"""Runs on the same data without a common ledger are noticed, by a note that only the curator has."""

from __future__ import annotations

import json
import stat
import warnings

import numpy as np
import pytest

from dpsinkhorn import DPSinkhorn
from dpsinkhorn.data import from_arrays, write_shards
from dpsinkhorn.training.used_data import note_use
from support.runs import DATA, IMAGES, LABELS, tiny_arrays, tiny_data, tiny_plan

BEFORE = "these data were trained on before"


@pytest.fixture(autouse=True)
def note(tmp_path, monkeypatch):
    path = tmp_path / "state" / "used.jsonl"
    monkeypatch.setenv("DPSINKHORN_USED_DATA", str(path))
    return path


@pytest.fixture
def plan():
    return tiny_plan(tiny_data(), seed=None)


def model(**options):
    settings = {"privacy": {"steps": 2, "sampling_rate": 0.3, "noise_multiplier": 5.0}}
    return DPSinkhorn(None, mechanism="record", settings=settings, accountant="rdp", anyway=True, **options)


class TestNotice:
    def test_a_second_run_on_another_ledger(self, plan, tmp_path):
        assert note_use(DATA, plan, "first", tmp_path / "a") is None
        said = note_use(DATA, plan, "second", tmp_path / "b")
        assert said.startswith(f"{BEFORE} (first, epsilon ")
        assert "Give all runs on the same data one ledger (--ledger)" in said
        third = note_use(DATA, plan, "third", None)
        assert "(second, epsilon" in third
        assert "and 1 more), on another ledger" in third
        assert float(third.split("up to epsilon ")[1].split()[0]) == pytest.approx(3 * plan.epsilon, rel=1e-3)

    def test_a_common_ledger_or_the_same_run(self, plan, tmp_path):
        for run in ("first", "second", "second"):
            assert note_use(DATA, plan, run, tmp_path / "all.jsonl") is None

    def test_other_data(self, plan):
        assert note_use(tiny_data(), plan, "first", None) is None
        assert note_use(tiny_data(seed=1), plan, "second", None) is None

    @pytest.mark.parametrize("how", ["order", "labels", "floats", "16 bits", "persons"])
    def test_the_same_images_in_another_form(self, plan, how):
        images, labels, groups = tiny_arrays(persons=9)
        other = {
            "order": (images[::-1], labels[::-1]),
            "labels": (images,),
            "floats": ((images / 255).astype(np.float32), labels),
            "16 bits": (images.astype(np.uint16) * 257, labels),
            "persons": (images, labels),
        }[how]
        assert note_use(from_arrays(images, labels), plan, "first", None) is None
        again = from_arrays(*other, groups=groups if how == "persons" else None)
        assert BEFORE in note_use(again, plan, "second", None)

    def test_the_same_images_in_shards(self, plan, tmp_path):
        """However they are cut, and of whatever files they were made."""
        data = tiny_data(persons=9)
        halves = [
            from_arrays(data.images[rows], data.labels[rows], classes=data.classes)
            for rows in (slice(40), slice(40, None))
        ]
        shards = [
            write_shards(parts, tmp_path / str(size), size) for size, parts in ((7, halves), (30, data))
        ]
        assert note_use(data, plan, "first", None) is None
        for number, again in enumerate(shards):
            assert BEFORE in note_use(again, plan, f"{number}", None)
        other = write_shards(halves[0], tmp_path / "half", 7)
        assert note_use(other, plan, "other", None) is None

    def test_one_record_more_is_other_data(self, plan):
        images = tiny_arrays()[0]
        assert note_use(from_arrays(images), plan, "first", None) is None
        assert note_use(from_arrays(np.concatenate([images, images[:1]])), plan, "second", None) is None

    def test_what_is_not_for_release_is_not_counted(self):
        for options in ({"seed": 1}, {"mechanism": "none", "seed": None}):
            for run in "ab":
                assert note_use(DATA, tiny_plan(DATA, **options), run, None) is None

    def test_looking_notes_nothing(self, plan):
        assert note_use(tiny_data(), plan, None, None) is None
        assert note_use(tiny_data(), plan, "first", None) is None


class TestNote:
    def test_nobody_else_may_read_it(self, plan, note):
        note_use(tiny_data(), plan, "first", None)
        assert stat.S_IMODE(note.stat().st_mode) == 0o600
        assert stat.S_IMODE(note.parent.stat().st_mode) == 0o700

    def test_its_key_is_its_own(self, plan, note):
        lines = []
        for _ in range(2):
            note_use(tiny_data(), plan, "first", None)
            lines.append([json.loads(line) for line in note.read_text().splitlines()])
            note.unlink()
        assert lines[0][0]["key"] != lines[1][0]["key"]
        assert lines[0][1]["digest"] != lines[1][1]["digest"]

    def test_off(self, plan, note, monkeypatch):
        monkeypatch.setenv("DPSINKHORN_USED_DATA", "off")
        assert note_use(tiny_data(), plan, "first", None) is None
        assert note_use(tiny_data(), plan, "second", None) is None
        assert not note.exists()

    def test_one_that_is_damaged(self, plan, note):
        note_use(tiny_data(), plan, "first", None)
        whole = note.read_text()
        note.write_text(whole + '{"digest": "ab')  # torn
        assert BEFORE in note_use(tiny_data(), plan, None, None)
        note.write_text("nonsense\n")
        said = note_use(tiny_data(), plan, "second", None)
        assert "is not known, since" in said
        assert len(said.splitlines()) == 1

    def test_nothing_of_it_is_in_a_run_folder(self, note, tmp_path):
        model().fit(*tiny_arrays()[:2], folder=tmp_path / "run")
        key, line = (json.loads(text) for text in note.read_text().splitlines())
        written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
        assert line["run"].encode() in written
        assert key["key"].encode() not in written
        assert line["digest"].encode() not in written


def test_fit_warns_once_before_it_trains(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(ledger=tmp_path / "all.jsonl", budget=50).fit(IMAGES, LABELS)
        model(ledger=tmp_path / "all.jsonl").fit(IMAGES, LABELS)
    seen = []
    with pytest.warns(UserWarning, match=BEFORE) as caught:
        model().fit(IMAGES, LABELS, watch=lambda _: seen.append(len(caught)))
    assert seen[0] == len(caught) == 1
    assert caught[0].filename == __file__
