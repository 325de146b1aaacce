"""What `dpsinkhorn train` tells while it runs: an ε that holds, beside the budget that it counts against."""

from __future__ import annotations

import re

import pytest

from dpsinkhorn import load
from dpsinkhorn.cli import _train_output
from dpsinkhorn.privacy import format_epsilon, read_ledger
from support.train_command import TINY


@pytest.fixture
def told(run, monkeypatch):
    """The last line of progress: ε, and what is said of a budget."""
    monkeypatch.setattr(_train_output, "_LINE_SECONDS", 0.0)

    def told(command):
        status, _, err = run(f"--data data.npz --recipe tiny.toml {TINY} {command}")
        assert status == 0
        lines = re.findall(r"^step 12 of 12, ε ≤ ([0-9.]+) of (.+)$", err, re.MULTILINE)
        return lines[-1]

    return told


def test_no_less_than_was_spent(told, place):
    spent, budget = told("--out run")
    stated = load(place / "run").privacy.epsilon
    assert spent == format_epsilon(stated)
    assert float(spent) >= stated
    assert budget == format_epsilon(read_ledger(place / "run" / "ledger.jsonl").budget.epsilon)


def test_all_on_a_shared_ledger_beside_what_it_allows(told, place):
    """The second run's ε counts the first: that is not to be held against its own budget."""
    told("--ledger all.jsonl --budget 90 --out first")
    spent, budget = told("--ledger all.jsonl --out second")
    assert float(spent) >= load(place / "second").privacy.epsilon > load(place / "first").privacy.epsilon
    assert budget == "90 for all on the ledger"
