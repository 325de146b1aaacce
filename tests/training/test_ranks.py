"""Several ranks: the same bits as from one, and one clear line on all of them where one fails."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections import Counter

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dpsinkhorn import DPSinkhorn, load
from dpsinkhorn import ranks as talk
from dpsinkhorn.data import from_arrays, load_dataset
from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.mechanisms.shared.clipping import on_grid
from dpsinkhorn.mechanisms.shared.shares import arrange, sort_by_class
from dpsinkhorn.privacy import SecureNoise, SeededNoise, read_ledger
from dpsinkhorn.ranks import joined
from dpsinkhorn.training import Run, TrainingError, shared_records
from dpsinkhorn.training.records import Records
from dpsinkhorn.training.shared_records import SharedRecords, _Part, answer
from support.ranks import Command, Group
from support.runs import (
    AT_THE_END,
    DATA,
    IMAGES,
    LABELS,
    bits,
    crash_at,
    finished,
    header,
    small_plan,
    steps_on_record,
    tiny_data,
    tiny_plan,
)

torch.set_num_threads(1)  # as every rank has: seeded runs replay with as many alone
CPU = torch.device("cpu")


def train(rank, folder, mechanism, options, labels, data_options):
    """In a rank: a run in a folder, from where it stands."""
    _train(rank, folder, tiny_data(**data_options), mechanism, labels=labels, **options)


def _train(rank, folder, data, mechanism="record", *, settled=False, **options):
    with joined(30) as ranks:
        if settled:
            ranks.device(CPU)
        if rank:
            answer(ranks, data, CPU)
            return
        if (folder / "run.json").exists():
            run = Run.resume(folder)
        else:
            run = Run.create(folder, small_plan(data, mechanism, **options))
        assert run.train(data, saving=AT_THE_END, ranks=ranks)
        ranks.ask("end")


def trained(folder, count, mechanism, options=None, labels="uniform", data_options=None):
    data_options = data_options or {}
    if count == 1:
        data = tiny_data(**data_options)
        return finished(folder, small_plan(data, mechanism, labels=labels, **(options or {})), data)
    group = Group(count, train, folder, mechanism, options or {}, labels, data_options)
    assert group.wait(120) == [0] * count
    return Run.resume(folder)


class TestTheSameBits:
    @pytest.mark.parametrize(
        ("mechanism", "labels", "persons"),
        [
            ("moments", "uniform", None),
            ("moments", "released", 20),
            ("flow", "uniform", None),
            ("flow", "released", 20),
            ("batch", "released", None),
            ("image", "uniform", None),
            ("parameter", "uniform", 20),
            ("none", "uniform", None),
            ("dp_merf", "uniform", None),
            ("dp_cgan", "uniform", None),
            ("gs_wgan", "uniform", None),
            ("g_pate", "uniform", None),
        ],
    )
    def test_on_any_number_of_ranks(self, mechanism, labels, persons, tmp_path):
        found = [
            bits(trained(tmp_path / str(count), count, mechanism, None, labels, {"persons": persons}).folder)
            for count in ((1, 2, 3, 4) if mechanism == "moments" else (1, 3))
        ]
        assert all(each == found[0] for each in found)

    def test_more_ranks_than_persons(self, tmp_path):
        options = {"records": 40, "persons": 2}
        one, three = (
            trained(tmp_path / str(count), count, "moments", data_options=options) for count in (1, 3)
        )
        assert bits(one.folder) == bits(three.folder)

    def test_a_secure_run_is_for_release(self, tmp_path):
        run = trained(tmp_path / "run", 2, "record", {"seed": None})
        release = load(run.release_folder)
        assert release.privacy.releasable
        assert release.privacy.epsilon == pytest.approx(run.plan.epsilon, rel=1e-9)
        assert steps_on_record(run.ledger_path, run.plan.step_charge) == run.plan.steps

    def test_a_replay_is_refused_where_other_ranks_would_round_otherwise(self, tmp_path):
        run = Run.create(tmp_path / "run", tiny_plan(DATA, "record", steps=6))
        crash_at(3, run, DATA)
        with pytest.raises(AssertionError):
            trained(tmp_path / "run", 2, "record")
        assert not run.done
        assert Run.resume(run.folder).train(DATA)


def _on_another(rank, folder, mechanism, devices, refused):
    """In a rank: train where the ranks compute on these devices, of which one may be refused."""

    def checked(*_):
        if rank == refused:
            raise TrainingError("this device mixes records")

    shared_records.computed_by = lambda _: devices[rank]
    find_mechanism(mechanism).check_device = checked
    _notes(folder, rank, lambda: _train(rank, folder / "run", tiny_data(), mechanism))


class TestDevices:
    def test_what_is_computed_on_every_rank_decides_on_a_replay(self, tmp_path):
        for number, (mechanism, devices, known) in enumerate(
            [
                ("moments", ("a", "a"), "a"),
                ("moments", ("a", "b"), "a, b"),
                ("record", ("a", "a"), "a on 2 ranks, by gloo"),
                ("batch", ("a", "b"), "a"),
            ]
        ):
            folder = tmp_path / str(number)
            folder.mkdir()
            assert Group(2, _on_another, folder, mechanism, devices, None).wait(60) == [0, 0]
            way = header(folder / "run" / "checkpoint.safetensors")["way"]
            assert way.endswith(f", by {known}")

    def test_nothing_is_charged_before_all_accept_their_device(self, tmp_path):
        assert Group(2, _on_another, tmp_path, "dp_merf", ("a", "a"), 1).wait(60) == [7, 7]
        assert (tmp_path / "0.txt").read_text() == (
            "rank 1: this device mixes records; what was spent stays on the ledger, and --resume goes on "
            "from the last checkpoint"
        )
        assert not read_ledger(tmp_path / "run" / "ledger.jsonl").spends


def _with_gpus(rank, folder, numbers, fails):
    """In a rank: train as on GPUs with these numbers, between which a second gloo group stands for NCCL."""
    carried, new_group = Counter(), dist.new_group

    def begun(**named):
        carried["groups"] += 1
        if fails and carried["groups"] == 2:
            raise dist.DistBackendError("NCCL error in: somewhere\nDuplicate GPU detected")
        return new_group(**named)

    def counting(real):
        def counted(tensor, to, *, group, **named):
            carried[dist.get_backend(group), "async_op" in named] += 1
            return real(tensor, to, group=group, **named)

        return counted

    talk._number_of, talk._BETWEEN_GPUS, dist.new_group = (lambda _: numbers[rank]), "gloo", begun
    dist.broadcast, dist.reduce = counting(dist.broadcast), counting(dist.reduce)
    _notes(folder, rank, lambda: _train(rank, folder / "run", tiny_data(), "moments", settled=True))
    assert carried["gloo", True] + carried["gloo", False] > 10
    assert (carried["gloo", True] > 0) == (len(set(numbers)) == 2)


class TestBetweenGPUs:
    """How tensors on GPUs travel. What NCCL itself does is seen by benchmarks/ranks_parts.py."""

    @pytest.mark.parametrize("numbers", [(1, 2), (3, 3), (0, 0)], ids=["apart", "shared", "none"])
    def test_the_same_bits_however_they_travel(self, numbers, tmp_path):
        assert Group(2, _with_gpus, tmp_path, numbers, False).wait(60) == [0, 0]
        alone = trained(tmp_path / "alone", 1, "moments")
        assert bits(tmp_path / "run") == bits(alone.folder)

    def test_nccl_that_cannot_begin_is_one_line_on_all_ranks(self, tmp_path):
        assert Group(2, _with_gpus, tmp_path, (1, 2), True).wait(60) == [7, 7]
        for rank in (0, 1):
            said = (tmp_path / f"{rank}.txt").read_text()
            assert "NCCL failed: NCCL error in: somewhere Duplicate GPU detected; --device cpu does" in said
            assert len(said.splitlines()) == 1
        assert not (tmp_path / "run").exists()

    def test_ranks_share_the_gpus_there_are(self, monkeypatch):
        """Also where each process sees one GPU only, whatever its number on the machine."""
        chosen = []
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
        monkeypatch.setattr(talk, "_number_of", lambda _: 0)
        monkeypatch.setattr(dist, "all_gather", lambda every, own, **_: every[0].copy_(own))
        for local, expected in ((0, 0), (1, 1), (2, 0), (5, 1)):
            monkeypatch.setenv("LOCAL_RANK", str(local))
            ranks = object.__new__(talk.Ranks)
            ranks.count, ranks._group = 1, None
            assert ranks.device(torch.device("cuda")) == torch.device("cuda", expected) == chosen[-1]
            assert ranks.device(torch.device("cuda", 1)) == torch.device("cuda", 1)


class _Alone:
    """One of several ranks, who never talks."""

    def __init__(self, rank, count):
        self.rank, self.count = rank, count


def arranged(images, labels):
    (by_class,) = sort_by_class([labels], [len(images)], 3, CPU)
    return arrange(labels, len(images), by_class).place(on_grid(images))


class TestRecord:
    """Sums of `record` are not exact, and so their order matters: by no more than is proved."""

    def test_the_parts_add_up_to_the_whole(self):
        data = tiny_data(records=300)
        plan = tiny_plan(data, "record")
        barrier = plan.build()
        random = torch.Generator().manual_seed(0)
        images = torch.rand(9, 16, generator=random) * 2 - 1
        labels = torch.arange(9) % 3

        def summed(dataset):
            (sample,) = Records(dataset, CPU).every()
            return barrier.sum_of_shares(sample, images, labels)

        whole = summed(data)
        bound = barrier.mechanism.clip - barrier._sum.bound(arranged(images, labels), persons=False)
        for count in (2, 3, 7, 64):
            parts = [summed(data.part(rank, count)[0]) for rank in range(count)]
            apart = float((sum(parts) - whole).norm())
            assert 0 < apart < bound / 2, count  # each is off by half of the margin, at most

    def test_what_would_see_a_part_only_is_refused(self, monkeypatch):
        """A mechanism that reads all records and says nothing of several ranks, before anything is asked."""
        monkeypatch.setattr(find_mechanism("moments"), "sums_over_records", False)
        with pytest.raises(TrainingError, match="moments takes all records on one rank alone"):
            SharedRecords(_Alone(0, 2), small_plan(DATA, "moments"), DATA, CPU)

    def test_as_many_ranks_as_are_proved(self):
        with pytest.raises(TrainingError, match="at most 64 ranks, not 65"):
            SharedRecords(_Alone(0, 65), tiny_plan(tiny_data()), tiny_data(), CPU)


class TestSamples:
    @pytest.mark.parametrize("persons", [None, 17])
    def test_a_seed_draws_the_same_units_on_any_number_of_ranks(self, persons):
        data = tiny_data(persons=persons)
        plan, noise = tiny_plan(data), SeededNoise(5).state()

        def drawn(rank, count):
            part = _Part(data, CPU, _Alone(rank, count), plan)
            return part.draw(0.3, SeededNoise.restore(noise))

        whole = drawn(0, 1)
        for count in (2, 3, 5):
            parts = [drawn(rank, count) for rank in range(count)]
            assert torch.equal(torch.cat([part.points for part in parts]), whole.points)
            assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)
            if persons:
                assert torch.equal(torch.cat([part.groups for part in parts]), whole.groups)

    def test_secure_ranks_draw_apart(self):
        """Two ranks with the same number of units hold other units, and take other numbers of them."""
        data = tiny_data(records=2000)
        plan = tiny_plan(data)
        sizes = [
            len(_Part(data, CPU, _Alone(rank, 2), plan).draw(0.5, SecureNoise()).points)
            for rank in (0, 1)
            for _ in range(4)
        ]
        assert len(set(sizes)) > 1  # all equal with a chance below 1e-10

    def test_parts_hold_every_unit_once(self):
        images = np.arange(60, dtype=np.uint8).reshape(60, 1, 1)
        data = from_arrays(images, groups=np.random.default_rng(0).integers(0, 7, 60))
        for count in (1, 2, 5, 7, 9):
            parts = [data.part(rank, count) for rank in range(count)]
            assert sorted(np.concatenate([part.images.ravel() for part, _ in parts])) == list(range(60))
            assert sum(part.units for part, _ in parts) == data.units
            for part, first in parts:
                same = data.groups[part.images.ravel()] - first
                assert np.array_equal(same, part.groups)


STEPS = ("--data", "digits", "--mechanism", "record", "--noise-multiplier", "1.2", "--sampling-rate", "0.02")
LONG = ("train", *STEPS, "--steps", "300", "--rank-timeout", "5", "--checkpoint-every", "0")


class TestFaults:
    """In every case all surviving ranks end, in time, with one line; the ledger is whole; resume goes on."""

    def begun(self, tmp_path, count=3):
        group = Command(count, tmp_path / "said", *LONG, "--out", tmp_path / "run")
        end = time.monotonic() + 60
        while not (tmp_path / "run" / "checkpoint.safetensors").exists():
            assert group.processes[0].is_alive(), group.said(0)
            assert time.monotonic() < end
            time.sleep(0.02)
        return group

    def said_once(self, group, rank):
        """The last line of a rank, after its warnings."""
        *before, last = group.said(rank).splitlines()
        assert all("warning" in line for line in before), before
        return last

    def resumed(self, tmp_path, count):
        """Go on from what is left to a release; fewer steps remain to be taken than were planned."""
        before = read_ledger(tmp_path / "run" / "ledger.jsonl").spends
        group = Command(count, tmp_path / "again", "train", "--out", tmp_path / "run", "--resume")
        assert group.wait(120) == [0] * count
        run = Run.resume(tmp_path / "run")
        after = read_ledger(run.ledger_path).spends
        assert after[: len(before)] == before
        assert sum(spend.steps for spend in after) == 300
        assert load(run.release_folder).privacy.epsilon == pytest.approx(run.plan.epsilon, rel=1e-9)

    @pytest.mark.parametrize("killed", [0, 2])
    def test_a_killed_rank(self, killed, tmp_path):
        group = self.begun(tmp_path)
        group.send(killed, signal.SIGKILL)
        status = group.wait(30)
        for rank in {0, 1, 2} - {killed}:
            assert status[rank] == 2
            assert "another rank" in self.said_once(group, rank)
            assert "--resume goes on" in self.said_once(group, rank)
        self.resumed(tmp_path, 2)

    def test_a_stalled_rank(self, tmp_path):
        group = self.begun(tmp_path)
        group.send(1, signal.SIGSTOP)
        started = time.monotonic()
        for rank in (0, 2):
            group.processes[rank].join(30)
            assert group.processes[rank].exitcode == 2
            assert "another rank" in self.said_once(group, rank)
        assert time.monotonic() - started < 15  # 5 are allowed; the rest is for a busy machine
        assert "gave no answer for 5 seconds" in group.said(0) + group.said(2)
        group.send(1, signal.SIGKILL)

    def test_ctrl_c_reaches_them_all(self, tmp_path):
        group = self.begun(tmp_path)
        for rank in range(3):
            group.send(rank, signal.SIGINT)
        assert group.wait(30) == [130, 2, 2]
        for rank in range(3):
            assert "Stopped, with a checkpoint. Go on with:" in self.said_once(group, rank)
        self.resumed(tmp_path, 1)

    def test_bad_input_of_rank_0(self, tmp_path):
        group = Command(2, tmp_path / "said", *LONG)
        assert group.wait(30) == [2, 2]
        assert self.said_once(group, 0) == "dpsinkhorn: give --out, the folder of the run"
        assert self.said_once(group, 1) == "dpsinkhorn: rank 0: give --out, the folder of the run"

    def test_a_rank_that_reads_other_data(self, tmp_path):
        group = Group(3, reads_other_data, tmp_path)
        assert group.wait(60) == [7, 7, 7]
        said = [(tmp_path / f"{rank}.txt").read_text() for rank in range(3)]
        assert said[1].startswith("the data read here are not those of rank 0")
        assert said[0].startswith("rank 1: the data read here are not those of rank 0")
        assert said[2].startswith("rank 1: the data read here are not those of rank 0")
        assert all(len(each.splitlines()) == 1 for each in said)

    def test_a_rank_whose_memory_is_full(self, tmp_path):
        group = Group(2, runs_out_of_memory, tmp_path)
        assert group.wait(60) == [7, 7]
        assert (tmp_path / "0.txt").read_text().startswith("rank 1: MemoryError")


class TestAFolderOfFiles:
    """`--shards`: what no rank can hold whole, and no step can read from, is written as shards first."""

    def test_becomes_shards_before_the_training(self, tmp_path):
        digits = load_dataset("digits")
        (tmp_path / "parts").mkdir()
        for number, rows in enumerate(np.array_split(np.arange(digits.records), 3)):
            content = {"images": digits.images[rows], "labels": digits.labels[rows]}
            np.savez(tmp_path / "parts" / f"{number}.npz", **content)
        common = ("--mechanism", "moments", "--epsilon", 10, "--seed", 1)
        reading = ("--data", tmp_path / "parts", "--classes", 10, "--shards", tmp_path / "shards")
        group = Command(2, tmp_path / "said", "train", *reading, *common, "--out", tmp_path / "two")
        assert group.wait(120) == [0, 0]
        run = Run.resume(tmp_path / "two")
        assert run.settings["source"] == {"data": str(tmp_path / "shards")}
        assert run.plan.facts.records == digits.records
        alone = Command(
            1, tmp_path / "alone", "train", "--data", tmp_path / "shards", *common, "--out", tmp_path / "one"
        )
        assert alone.wait(120) == [0]
        assert bits(tmp_path / "one") == bits(tmp_path / "two")

    def test_a_dry_run_writes_none(self, tmp_path):
        asked = ("--data", "digits", "--epsilon", 10, "--dry-run", "--shards", tmp_path / "shards")
        group = Command(2, tmp_path / "said", "train", *asked)
        assert group.wait(60) == [2, 2]
        assert "--dry-run writes no --shards" in group.said(0)
        assert not (tmp_path / "shards").exists()


def _notes(folder, rank, work):
    try:
        work()
    except (TrainingError, MemoryError) as error:
        (folder / f"{rank}.txt").write_text(str(error))
        os._exit(7)


def reads_other_data(rank, folder):
    data = tiny_data(seed=0)
    if rank == 1:
        data = dataclasses.replace(data, labels=data.labels[::-1])
    _notes(folder, rank, lambda: _train(rank, folder / "run", data))


def runs_out_of_memory(rank, folder):
    def fails(*_):
        raise MemoryError

    if rank == 1:
        Records.sample_of = fails
    _notes(folder, rank, lambda: _train(rank, folder / "run", tiny_data()))


def fits(rank, folder):
    """All ranks fit, and draw from what they have."""
    dist.init_process_group("gloo")
    settings = {"privacy": {"steps": 5, "noise_multiplier": 2.0}, "generator": {"components": 3}}
    model = DPSinkhorn(
        None, recipe="mixture", settings=settings, classes=3, random_state=1, accountant="rdp", anyway=True
    )
    drawn, _ = model.fit(IMAGES, LABELS).sample(5, random_state=0)
    np.save(folder / f"{rank}.npy", drawn)
    dist.barrier()
    dist.destroy_process_group()


def test_fit_in_a_process_group(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "3").mkdir()
    for count in (1, 3):
        assert Group(count, fits, tmp_path / str(count)).wait(60) == [0] * count
    files = [*tmp_path.glob("*/*.npy")]
    assert len({file.read_bytes() for file in files}) == 1
    assert len(files) == 4
