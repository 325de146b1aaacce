"""Disks that are full, or that nobody may write to: one line, nothing half-written, a run that goes on."""

from __future__ import annotations

import os

import pytest

from dpsinkhorn.privacy import Budget, Ledger, read_ledger
from dpsinkhorn.privacy.journal import JournalDamagedError
from dpsinkhorn.training import Run, TrainingError
from support import fault_campaigns as campaigns
from support.file_campaigns import STEP, leaves
from support.kills import in_a_process
from support.runs import DATA, bits, finished, tiny_plan


def survive(name, campaign, folder, *arguments):
    found = in_a_process(campaign, folder, *arguments)
    if "skipped" in found:
        pytest.skip(f"no disk of its own for this process: {found['skipped']}")
    print(f"{name}: " + ", ".join(f"{count} {what}" for what, count in found.items() if count))


def test_a_disk_that_fills_up(tmp_path):
    survive("full disks", campaigns.full_disks, tmp_path, 4, 0)


@pytest.mark.long
def test_disks_that_fill_up(tmp_path):
    survive("full disks", campaigns.full_disks, tmp_path, 100, 1)


def test_a_disk_that_is_read_only(tmp_path):
    survive("disks that fail", campaigns.failing_disks, tmp_path, 2, 0)


def test_folders_that_are_read_only(tmp_path):
    survive("read-only folders", campaigns.read_only_folders, tmp_path)


needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")


@needs_full
def test_a_ledger_without_room(tmp_path):
    """The system's own full device in the place of the draft of the head."""
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, leaves, budget=Budget(100.0, 0.0)) as ledger:
        ledger.spend(STEP, run="a", steps=3)
        before = read_ledger(path)
        (tmp_path / "ledger.jsonl.head.tmp").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left on device"):
            ledger.spend(STEP, run="a", steps=4)
        with pytest.raises(JournalDamagedError, match="open it again"):
            ledger.spend(STEP, run="a")
    assert read_ledger(path) == before  # nothing was promised
    (tmp_path / "ledger.jsonl.head.tmp").unlink()
    with Ledger.open(path, leaves) as ledger:
        ledger.spend(STEP, run="a", steps=4)
    assert leaves(read_ledger(path).total(), 0) == 7


@needs_full
def test_a_checkpoint_without_room(tmp_path):
    plan = tiny_plan(DATA)
    whole = finished(tmp_path / "whole", plan, DATA)
    run = Run.create(tmp_path / "run", plan)
    (run.folder / "checkpoint.safetensors.partial").symlink_to("/dev/full")
    with pytest.raises(TrainingError, match="No space left on device; mend that, then resume") as error:
        run.train(DATA)
    assert "\n" not in str(error.value)
    assert Run.resume(run.folder).train(DATA)  # the link was a draft, and is gone
    assert bits(run.folder) == bits(whole.folder)
