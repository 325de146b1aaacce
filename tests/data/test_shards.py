"""Folders of shards: what was written is read, a little at a time, and nothing else is."""

from __future__ import annotations

import json
import os
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch

from dpsinkhorn.data import (
    DataError,
    ShardedDataset,
    from_arrays,
    load_dataset,
    load_parts,
    shards,
    write_shards,
)
from dpsinkhorn.training.records import Records, records_of
from support.readers import write_idx
from support.runs import IMAGES, LABELS, bits, finished, small_plan, tiny_data

CPU = torch.device("cpu")


def written(tmp_path, records=7, **options):
    data = tiny_data(**options)
    return data, write_shards(data, tmp_path / "shards", records)


class TestWhatIsRead:
    @pytest.mark.parametrize("options", [{}, {"labelled": False}, {"shape": (3, 5)}])
    def test_is_what_was_written(self, tmp_path, options):
        data, shards = written(tmp_path, **options)
        found = load_dataset(tmp_path / "shards")
        assert isinstance(found, ShardedDataset)
        assert len(shards.shards) == 13
        assert np.array_equal(found.images[:], data.images)
        assert torch.equal(found.points([80, 3, 80]), data.points([80, 3, 80]))
        assert (found.records, found.units, found.classes) == (data.records, data.units, data.classes)
        assert (found.value_range, found.class_names) == (data.value_range, data.class_names)
        assert found.found_counts() == data.found_counts()
        assert found.found_range() == data.found_range()
        if data.labels is not None:
            assert np.array_equal(found.labels[:], data.labels)

    def test_a_few_rows_of_a_large_file(self, tmp_path):
        """They are read one by one, without a map of the file."""
        data, shards = written(tmp_path, records=90, persons=60)
        order = np.argsort(data.groups, kind="stable")
        rows = np.array([70, 3, 70])
        assert len(shards.shards) == 1
        assert torch.equal(shards.points(rows), data.points(order[rows]))
        assert np.array_equal(shards.labels[rows], data.labels[order[rows]])
        assert np.array_equal(shards.groups[rows], data.groups[order[rows]])
        path = tmp_path / "shards" / "00000.images.npy"
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(DataError, match=r"00000.images.npy is shorter than the index says"):
            shards.points(np.array([89]))

    @pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system is not asked")
    def test_files_are_asked_for_before_any_of_them_is_waited_for(self, tmp_path, monkeypatch):
        """So that the disk has all of it to do at once; some files at a time, since few may be open."""
        data, files = written(tmp_path, records=30)
        rows, done, ask, read = np.array([88, 3, 35]), [], os.posix_fadvise, shards._read_at
        monkeypatch.setattr(os, "posix_fadvise", lambda *asked: (done.append("ask"), ask(*asked)))
        monkeypatch.setattr(shards, "_read_at", lambda *asked: (done.append("read"), read(*asked))[1])
        for most, expected in ((128, "ask ask ask read read read"), (2, "ask ask read read ask read")):
            done.clear()
            monkeypatch.setattr(shards, "_OPEN", most)
            assert torch.equal(files.points(rows), data.points(rows))
            assert " ".join(done) == expected

    def test_persons_are_whole_and_in_order(self, tmp_path):
        data, found = written(tmp_path, persons=15)
        order = np.argsort(data.groups, kind="stable")
        assert np.array_equal(found.groups[:], data.groups[order])
        assert np.array_equal(found.images[:], data.images[order])
        assert np.array_equal(found.labels[:], data.labels[order])
        assert sum(shard.units for shard in found.shards) == found.units == data.units
        starts = np.cumsum([0, *(shard.records for shard in found.shards)])
        for start, end in pairwise(starts):
            assert set(found.groups[start:end]).isdisjoint({*found.groups[:start], *found.groups[end:]})

    def test_classes_keep_their_names(self, tmp_path):
        data = from_arrays(IMAGES, np.array(["a", "b", "c"])[LABELS], classes=["a", "c", "b"])
        write_shards(data, tmp_path / "shards")
        found = load_dataset(tmp_path / "shards")
        assert found.public_names == ("a", "c", "b")

    def parts(self, tmp_path, groups, labels=("0", "1", "0", "1")):
        """Two .npz files of two records each."""
        (tmp_path / "parts").mkdir()
        images = np.arange(16, dtype=np.uint8).reshape(4, 2, 2)
        for name, rows in (("a", slice(0, 2)), ("b", slice(2, 4))):
            arrays = {
                "images": images[rows],
                "labels": np.array(labels)[rows],
                "groups": np.array(groups)[rows],
            }
            np.savez(tmp_path / "parts" / f"{name}.npz", **arrays)
        return images, tmp_path / "parts"

    def test_a_folder_of_files_is_read_one_by_one(self, tmp_path):
        images, parts = self.parts(tmp_path, groups=[5, 5, 7, 6])
        with pytest.raises(DataError, match=r"2 files like a.npz; .* dpsinkhorn data shard"):
            load_dataset(parts)
        found = write_shards(load_parts(parts, classes=2), tmp_path / "shards", records=2)
        assert np.array_equal(found.images[:][..., 0], images)
        assert found.labels[:].tolist() == [0, 1, 0, 1]
        assert found.groups[:].tolist() == [0, 0, 1, 2]
        assert found.found_counts() == (2, 2)
        assert found.found_range() == (0, 15)

    def test_a_person_in_two_files_is_refused(self, tmp_path):
        _, parts = self.parts(tmp_path, groups=[5, 6, 6, 7])
        with pytest.raises(DataError, match=r"records in a.npz and in b.npz; all records of a person belong"):
            write_shards(load_parts(parts, classes=2), tmp_path / "shards")
        assert not (tmp_path / "shards" / "index.json").exists()

    def test_classes_of_several_files_are_stated(self, tmp_path):
        _, parts = self.parts(tmp_path, groups=[5, 6, 7, 8], labels=("cat", "dog", "owl", "dog"))
        with pytest.raises(DataError, match="each could number its classes otherwise; state them"):
            write_shards(load_parts(parts), tmp_path / "shards")
        found = write_shards(load_parts(parts, classes=["cat", "dog", "owl"]), tmp_path / "again")
        assert found.labels[:].tolist() == [0, 1, 2, 1]

    def test_files_of_another_shape_are_refused(self, tmp_path):
        _, parts = self.parts(tmp_path, groups=[5, 6, 7, 8])
        np.savez(parts / "c.npz", images=np.zeros((2, 3, 3), np.uint8), labels=[0, 1], groups=[9, 9])
        with pytest.raises(DataError, match=r"c.npz differs from the files before it: shape \[3, 3, 1\]"):
            write_shards(load_parts(parts, classes=2), tmp_path / "shards")

    def test_several_idx_files(self, tmp_path):
        for number in range(2):
            values = np.full((3, 2, 2), number, np.uint8)
            write_idx(tmp_path / f"{number}-train-images-idx3-ubyte", values)
            write_idx(tmp_path / f"{number}-train-labels-idx1-ubyte", values[:, 0, 0].copy())
        found = write_shards(load_parts(tmp_path, classes=2), tmp_path.parent / "shards")
        assert found.labels[:].tolist() == found.images[:][:, 0, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]

    def test_shards_of_shards(self, tmp_path):
        _, shards = written(tmp_path, persons=15)
        again = write_shards(shards, tmp_path / "again", 20)
        assert np.array_equal(again.images[:], shards.images[:])
        assert np.array_equal(again.groups[:], shards.groups[:])
        assert len(again.shards) < len(shards.shards)


class TestRecords:
    """Streamed records are those in memory."""

    @pytest.mark.parametrize("persons", [None, 15])
    def test_samples_and_stretches(self, persons, tmp_path):
        _, shards = written(tmp_path, persons=persons)
        memory = Records(
            from_arrays(shards.images[:], shards.labels[:], groups=persons and shards.groups[:]), CPU
        )
        streamed = records_of(shards, CPU)
        for units in ([], [0], [3, 4, 9, shards.units - 1], range(shards.units)):
            one, other = (r.sample_of(torch.tensor(list(units)).long()) for r in (memory, streamed))
            self.same(one, other)
        for many in (1, 5, 8, 1000):
            rows = np.concatenate([np.arange(shards.records)[part] for part in shards.stretches(many)])
            assert rows.tolist() == list(range(shards.records))
            if persons:
                parts = [set(shards.groups[part].tolist()) for part in shards.stretches(many)]
                assert sum(map(len, parts)) == shards.units
        self.same(*(next(iter(r.every())) for r in (memory, records_of(shards.part(0, 1)[0], CPU))), short=7)

    def same(self, one, other, short=None):
        for name in ("points", "labels", "groups"):
            first, second = getattr(one, name), getattr(other, name)
            assert (first is None) == (second is None)
            assert first is None or torch.equal(first[: None if short is None else len(second)], second)

    @pytest.mark.parametrize("persons", [None, 15])
    def test_a_training_leaves_the_same_bits(self, persons, tmp_path):
        _, shards = written(tmp_path, persons=persons)
        memory = from_arrays(shards.images[:], shards.labels[:], groups=persons and shards.groups[:])
        for mechanism in ("moments", "batch"):
            plan = small_plan(memory, mechanism, labels="released")
            one = finished(tmp_path / f"{mechanism} memory", plan, memory)
            other = finished(tmp_path / f"{mechanism} shards", plan, shards)
            assert bits(one.folder) == bits(other.folder)

    def test_memory_does_not_grow_with_the_number_of_records(self, tmp_path):
        """A pass over all of them, and a sample, in a small part of what they take."""
        images = np.zeros((400_000, 8, 8), np.uint8)
        shards = write_shards(from_arrays(images, np.zeros(len(images), int)), tmp_path / "shards", 20_000)
        records = records_of(shards.part(0, 1)[0], CPU)
        tracemalloc.start()
        records.sample_of(torch.arange(0, 400_000, 1000))
        after_sample = tracemalloc.get_traced_memory()[1]
        count = sum(len(sample.points) for sample in records.every())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 400_000
        assert after_sample < 1e6
        assert peak < images.nbytes / 2


class TestParts:
    @pytest.mark.parametrize("persons", [None, 15])
    def test_hold_every_unit_once(self, persons, tmp_path):
        _, shards = written(tmp_path, persons=persons)
        for count in (1, 2, 5):
            parts = [shards.part(rank, count) for rank in range(count)]
            assert sum(part.units for part, _ in parts) == shards.units
            images = np.concatenate([part.images[:] for part, _ in parts])
            assert np.array_equal(images, shards.images[:])
            if persons:
                groups = np.concatenate([part.groups[:] + first for part, first in parts])
                assert np.array_equal(groups, shards.groups[:])

    def test_more_ranks_than_shards(self, tmp_path):
        _, shards = written(tmp_path, records=50)
        with pytest.raises(DataError, match="has 2 shards for 3 ranks"):
            shards.part(0, 3)

    def test_another_rank_need_not_have_my_files(self, tmp_path):
        written(tmp_path, records=50)
        (tmp_path / "shards" / "00001.images.npy").unlink()
        found = load_dataset(tmp_path / "shards")
        assert found.part(0, 2)[0].records == 50
        with pytest.raises(DataError, match=r"00001\.images\.npy: No such file"):
            found.part(1, 2)


class TestRefused:
    def test_a_changed_file(self, tmp_path):
        _, shards = written(tmp_path)
        path = tmp_path / "shards" / "00002.labels.npy"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(DataError, match="was changed after it was written"):
            shards.part(0, 1)
        assert shards.part(0, 12)[0].records == 7

    @pytest.mark.parametrize(
        "change",
        [
            {"format": "other"},
            {"shards": []},
            {"shards": 3},
            {"shape": [4, 4]},
            {"shape": [4, 4, 2]},
            {"shape": [-4, 4, 1]},
            {"dtype": "|O"},
            {"dtype": "<f8"},
            {"value_range": [5, 5]},
            {"value_range": [0, 1e300]},
            {"value_range": None},
            {"classes": None},
            {"content": None},
            {"content": "no number"},
        ],
    )
    def test_a_hostile_index(self, change, tmp_path):
        written(tmp_path)
        path = tmp_path / "shards" / "index.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(DataError) as caught:
            load_dataset(tmp_path / "shards")
        assert len(str(caught.value).splitlines()) == 1

    def test_what_is_no_json(self, tmp_path):
        written(tmp_path)
        for text in ("", "{", "[]", "null", '{"format": 3}', "[" * 10_000):
            (tmp_path / "shards" / "index.json").write_text(text)
            with pytest.raises(DataError, match=r"cannot be read|is of format"):
                load_dataset(tmp_path / "shards")

    def test_sizes_that_are_not_those_of_the_files(self, tmp_path):
        written(tmp_path)
        path = tmp_path / "shards" / "index.json"
        index = json.loads(path.read_text())
        index["shards"][0]["records"] = 8
        path.write_text(json.dumps(index))
        with pytest.raises(DataError, match="is not what the index says"):
            load_dataset(tmp_path / "shards").points([0])

    def test_options_that_were_settled(self, tmp_path):
        written(tmp_path)
        for option in ({"label": "x"}, {"size": 3}, {"classes": 4}, {"value_range": (0, 1)}):
            with pytest.raises(DataError, match="settled when the shards were written"):
                load_dataset(tmp_path / "shards", **option)
        for option in ({"unlabelled": True}, {"class_names": ["a", "b", "c"]}, {"split": "test"}):
            with pytest.raises(DataError, match="settled there"):
                load_dataset(tmp_path / "shards", **option)

    def test_a_folder_that_is_not_empty(self, tmp_path):
        written(tmp_path)
        with pytest.raises(DataError, match="is not empty"):
            write_shards(tiny_data(), tmp_path / "shards")
        with pytest.raises(DataError, match="1 record or more"):
            write_shards(tiny_data(), tmp_path / "other", 0)
