"""Several processes at the same moment, on one run or on one ledger."""

from __future__ import annotations

import numpy as np
import pytest

from dpsinkhorn import load
from dpsinkhorn.privacy import read_ledger
from dpsinkhorn.training import Run, TrainingError
from support import fault_campaigns as campaigns
from support.kills import in_a_process
from support.processes import Command
from support.runs import DATA, IMAGES, LABELS, RECIPE, tiny_plan


@pytest.mark.parametrize("campaign", [campaigns.one_run_at_once, campaigns.one_ledger_at_once])
def test_a_sample(tmp_path, campaign):
    assert in_a_process(campaign, tmp_path, 2, 0)["refused"]


@pytest.mark.long
@pytest.mark.parametrize("campaign", [campaigns.one_run_at_once, campaigns.one_ledger_at_once])
def test_many(tmp_path, campaign):
    found = in_a_process(campaign, tmp_path, 100, 1)
    counts = ", ".join(f"{count} {what}" for what, count in found.items() if count)
    print(f"{campaign.__name__.replace('_', ' ')}: {counts}")


def test_a_run_that_another_process_ends_in_between(tmp_path, monkeypatch):
    """It was not done when it was looked at; it is when the ledger is free."""
    first = Run.create(tmp_path / "run", tiny_plan(DATA, seed=None))
    second = Run.resume(first.folder)
    really = second._open_account

    def later():
        assert first.train(DATA)
        return really()

    monkeypatch.setattr(second, "_open_account", later)
    with pytest.raises(TrainingError, match="is finished: its release is in"):
        second.train(DATA)


@pytest.mark.parametrize("resumed", [False, True])
def test_the_command_line(tmp_path, resumed):
    """Exactly one of them trains; the others leave with status 2 and one line."""
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=LABELS)
    (tmp_path / "tiny.toml").write_text(RECIPE.format(steps=60))
    where = ["--out", tmp_path / "run"]
    begin = ["train", "--data", tmp_path / "data.npz", "--recipe", tmp_path / "tiny.toml", *where]
    arguments = [*begin, "--accountant", "rdp"]
    if resumed:
        first = Command(arguments, tmp_path)
        first.until(lambda: (tmp_path / "run" / "run.json").exists())
        assert first.kill_after(0)
        arguments = ["train", "--resume", *where]
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
    ends = [command.wait() for command in [Command(arguments, folder) for folder in folders]]
    assert sorted(status for status, *_ in ends) == [0, 2, 2]
    for status, out, err in ends:
        if status:
            assert out == ""
            assert err.startswith("dpsinkhorn: ")
            assert err.count("\n") == 1
            assert "elsewhere" in err or "already holds a run" in err or "is finished" in err
    statement = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert len(statement.runs) == 1
    assert sum(spend.steps for spend in statement.spends) <= 60
    assert load(tmp_path / "run").privacy.ledger_digest == statement.digest
