"""Record and replay of trainings: nothing of a neighbour shows but noise, and what breaks that is found."""

from __future__ import annotations

import logging
import math
import warnings
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from dpsinkhorn.data import DataError, from_arrays, load_dataset
from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.training import TrainingError, records, run
from dpsinkhorn.training.auditing import (
    Neighbour,
    TrainingReplay,
    hostile_files,
    replay_plan,
    replay_training,
)
from dpsinkhorn.training.auditing.replay import first_units, neighbours_by_class, worst_neighbours
from dpsinkhorn.training.auditing.search import ExactSums
from support.reader_defects import types_by_all_values
from support.runs import tiny_data

KINDS = ("record", "moments", "batch", "image", "parameter")


def outcomes(kind, data, **options):
    base = first_units(data, 1000)
    game = TrainingReplay(replay_plan(base, kind, **options), base)
    return [game.own, *game.against(worst_neighbours(base, data))]


def violations(found):
    return [line for outcome in found for line in outcome.violations]


class TestClean:
    @pytest.mark.parametrize("kind", KINDS)
    def test_persons_and_released_class_frequencies(self, kind):
        found = outcomes(kind, tiny_data(records=60, persons=20), labels="released")
        assert violations(found) == []
        assert 0.99 < max(outcome.move for outcome in found) <= 1

    def test_unlabelled(self):
        assert violations(outcomes("record", tiny_data(records=60, labelled=False))) == []

    @pytest.mark.long
    def test_digits_with_all_files(self):
        assert [line for found in replay_training("digits", KINDS) for line in found.violations] == []


class TestNeighbours:
    def test_the_first_units(self):
        data = tiny_data(records=60, persons=20)
        base = first_units(data, 30)
        assert set(base.groups) == set(range(base.units))
        assert (np.isin(data.groups, base.groups).sum(), base.units < data.units) == (base.records, True)
        assert first_units(tiny_data(records=60), 1000).records == 59

    def test_each_has_one_unit_more(self):
        for persons in (None, 20):
            data = tiny_data(records=60, persons=persons)
            base = first_units(data, 1000)
            for neighbour in worst_neighbours(base, data):
                found = neighbour.read()
                assert found.units == base.units + 1
                assert np.array_equal(found.images[: base.records], base.images)

    def test_another_shape_is_refused(self):
        data = tiny_data(records=60)
        game = TrainingReplay(replay_plan(data, "record"), data)
        small = from_arrays(np.zeros((61, 3, 3), dtype=np.uint8), np.zeros(61, dtype=int), classes=3)
        (found,) = game.against([Neighbour("small", lambda: small)])
        assert found.refused
        assert found.violations == ()


class TestFound:
    """Ways to give a record away that pass by the barrier."""

    def white(self):
        base = first_units(tiny_data(records=60), 1000)
        return base, [next(iter(neighbours_by_class(base)))]

    @pytest.mark.parametrize("how", ["print", "warn", "log", "file"])
    def test_the_number_of_records(self, how, monkeypatch):
        class Telling(records.Records):
            def __init__(self, dataset, device):
                super().__init__(dataset, device)
                said = f"{dataset.records} records"
                if how == "print":
                    print(said)
                elif how == "warn":
                    warnings.warn(said, stacklevel=1)
                elif how == "log":
                    logging.getLogger("dpsinkhorn").warning(said)

        monkeypatch.setattr(records, "Records", Telling)
        if how == "file":
            note = run.Run._note

            def with_size(self, block, spent):
                note(self, replace(block, gradient_norm=block.gradient_norm + self.size), spent)

            train = run.Run.train

            def sized(self, dataset, **options):
                self.size = dataset.records
                return train(self, dataset, **options)

            monkeypatch.setattr(run.Run, "_note", with_size)
            monkeypatch.setattr(run.Run, "train", sized)
        base, white = self.white()
        (found,) = TrainingReplay(replay_plan(base, "record"), base).against(white)
        place = {"print": "output", "warn": "warnings", "log": "log", "file": "statistics.jsonl"}[how]
        assert found.differences == (f"{place} differs",)

    def test_an_error_that_only_some_records_bring_about(self, monkeypatch):
        base, white = self.white()
        game = TrainingReplay(replay_plan(base, "batch"), base)
        note = run.Run._note

        def failing(self, block, spent):
            note(self, block, spent)
            if block.step == 2:
                raise TrainingError("of the records")

        monkeypatch.setattr(run.Run, "_note", failing)
        (found,) = game.against(white)
        assert found.differences == ("ends with an error: of the records",)

    def test_seeded_and_declared_only(self):
        base, _ = self.white()
        plan = replay_plan(base, "record")
        with pytest.raises(ValueError, match="seeded"):
            TrainingReplay(replace(plan, seed=None), base)


def _across_chunks(*chunks):
    total = torch.zeros(2, dtype=torch.float64)
    for chunk in chunks:
        total[0] += _doubles(*chunk).sum()


def _doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


class TestExactSums:
    @pytest.mark.parametrize(
        ("add", "rounded"),
        [
            (lambda: _doubles(2.0**50, 0.5, 2.0**50).sum(), []),
            (lambda: _doubles(2.0**51, 0.5, 2.0**51).sum(), ["sum"]),  # it comes to 2^52 as computed
            (lambda: _doubles(2.0**52, 0.5, 2.0**52).sum(), ["sum"]),
            (lambda: _doubles(0.5, 1024.0)[None] @ _doubles(0.25, 3.0)[:, None], []),
            (lambda: _doubles(0.1, 1024.0)[None] @ _doubles(0.25, 3.0)[:, None], ["mm"]),
            (lambda: _doubles(1.0).index_add_(0, torch.tensor([0]), _doubles(math.nan)), ["index_add_"]),
            (lambda: torch.tensor([2**62, 2**62]).sum(), []),
            (lambda: _across_chunks([2.0**50, 0.5], [2.0**50]), []),
            (lambda: _across_chunks([2.0**52], [0.5, 0.5], [2.0**52]), ["add_"]),
            (lambda: _doubles(0.1).add_(3), []),
        ],
    )
    def test_what_is_noted(self, add, rounded):
        with ExactSums() as sums:
            add()
        assert sums.rounded == rounded


class TestEveryStepIsMeasured:
    def test_a_defect_of_the_largest_sample_alone(self, monkeypatch):
        """Where the new record is left out, nothing may move; elsewhere no more than it may: turn by turn."""
        base = first_units(tiny_data(records=60), 1000)
        game = TrainingReplay(replay_plan(base, "record"), base)
        largest = max(len(entry.taken) for entry in game._recording.entries if hasattr(entry, "taken"))
        sums = Record.clipped_sums

        def wrong(self, points, labels, sample):
            total, own = sums(self, points, labels, sample)
            return (50 * total if len(sample.points) > largest else total), own

        monkeypatch.setattr(Record, "clipped_sums", wrong)
        found = list(game.against(worst_neighbours(base, tiny_data(records=60))))
        assert max(outcome.move for outcome in found) > 10


class TestReaders:
    """Both breaks that were found in a reader of tables, planted again."""

    def replayed(self, kind, hostile, folder, **options):
        base = replace(first_units(load_dataset("digits"), 400), **options)
        case = next(iter(hostile_files.made_up_cases(base, folder)))
        data = case.read()
        chosen = [neighbour for neighbour in case.neighbours if hostile in neighbour.name]
        (found,) = TrainingReplay(replay_plan(data, kind), data).against(chosen)
        return found

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_pixel_that_makes_floats_of_all_others(self, kind, tmp_path, monkeypatch):
        types_by_all_values(monkeypatch)
        found = self.replayed(kind, "0.5 as pixel0", tmp_path)
        assert found.violations
        if kind in ("record", "moments"):  # the others clip a batch as a whole
            assert found.move > 20
        if kind != "moments":
            assert any("where no sample has it" in line for line in found.differences)

    def test_an_id_that_makes_one_person_of_many(self, tmp_path, monkeypatch):
        types_by_all_values(monkeypatch)
        persons = np.arange(400) // 2
        found = self.replayed("record", "12345678901234567890 as groups", tmp_path, groups=persons)
        assert found.move > 10
        assert found.violations


class TestOwnData:
    @pytest.mark.parametrize("kind", [".csv", ".tsv", ".npz", ".npy", ".parquet", "folder"])
    def test_every_format_is_tried(self, kind, tmp_path):
        data = tiny_data(records=40, persons=20)
        images, labels, groups = data.images[..., 0], data.labels, data.groups
        path, options = tmp_path / f"own{kind}", {"label": "label", "groups": "groups"}
        flat = images.reshape(len(images), -1)
        if kind in (".csv", ".tsv"):
            mark = "," if kind == ".csv" else "\t"
            lines = [[*(f"pixel{k}" for k in range(16)), "label", "groups"]]
            lines += [[*row, label, f"p{who}"] for row, label, who in zip(flat, labels, groups, strict=True)]
            path.write_text("\n".join(mark.join(map(str, line)) for line in lines))
        elif kind == ".npz":
            np.savez(path, images=images, label=labels, groups=groups)
        elif kind == ".npy":
            for name, array in (("own", images), ("labels", labels), ("persons", groups)):
                np.save(tmp_path / f"{name}.npy", array)
            options = {"label": str(tmp_path / "labels.npy"), "groups": str(tmp_path / "persons.npy")}
        elif kind == ".parquet":
            columns = {f"pixel{k}": flat[:, k] for k in range(16)} | {"label": labels, "groups": groups}
            pyarrow.parquet.write_table(pyarrow.table(columns), path)
        else:
            path, options = hostile_files._written_pictures(data.images, labels, tmp_path / "own"), {}
        (tmp_path / "work").mkdir()
        (case,) = hostile_files.own_cases(path, 30, tmp_path / "work", options)
        base = case.read()
        assert base.records == 30
        accepted = []
        for neighbour in case.neighbours:
            with suppress(DataError):
                found = neighbour.read()
                accepted += [neighbour] if found.records == 31 else []
        assert 0 < len(accepted) < len(case.neighbours)
        (outcome,) = TrainingReplay(replay_plan(base, "record"), base).against(accepted[:1])
        assert outcome.violations == ()
