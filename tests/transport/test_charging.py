"""What a ledger refuses a release for, and in what words."""

from __future__ import annotations

import numpy as np
import pytest

from dpsinkhorn.privacy import (
    Adjacency,
    Budget,
    BudgetExceededError,
    LaplaceMechanism,
    Ledger,
    epsilon,
    read_ledger,
)
from dpsinkhorn.privacy.journal import JournalDamagedError
from dpsinkhorn.transport import TransportError, noisy_sinkhorn, private_cost

X, Y = np.random.default_rng(0).random((2, 20, 1))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


class TestDelta:
    def test_a_ledger_without_delta_says_that_it_has_none(self, path):
        private_cost(X, Y, epsilon=1, cost_bound=1, ledger=path, budget=3)
        with pytest.raises(BudgetExceededError, match=r"counts at delta 0.*--delta.*nothing was spent"):
            noisy_sinkhorn(X, Y, epsilon=0.5, delta=1e-5, cost_bound=1, ledger=path)
        assert len(read_ledger(path).spends) == 1

    def test_what_is_too_much_says_so_as_before(self, path):
        private_cost(X, Y, epsilon=1, cost_bound=1, ledger=path, budget=3)
        with pytest.raises(BudgetExceededError, match="would pass it"):
            private_cost(X, Y, epsilon=2.5, cost_bound=1, ledger=path)

    def test_a_ledger_begun_with_a_delta_takes_both(self, path):
        private_cost(X, Y, epsilon=1, delta=1e-5, cost_bound=1, ledger=path, budget=3)
        noisy_sinkhorn(X, Y, epsilon=0.5, delta=1e-5, cost_bound=1, ledger=path)
        assert len(read_ledger(path).spends) == 2


class TestNoLedger:
    @pytest.mark.parametrize(
        "content", [b"", b"age,income\n1,2\n", b"\x93NUMPY\x01\x00", b"[1, 2]\n", b"{}\n"]
    )
    def test_other_files_are_called_what_they_are(self, tmp_path, content):
        other = tmp_path / "x.npy"
        other.write_bytes(content)
        with pytest.raises(TransportError, match=r"x\.npy is not a ledger"):
            private_cost(X, Y, epsilon=1, cost_bound=1, ledger=other)
        assert [file.name for file in tmp_path.iterdir()] == ["x.npy"]
        assert other.read_bytes() == content

    def test_a_ledger_that_lost_its_head_is_still_a_damaged_one(self, path):
        private_cost(X, Y, epsilon=1, cost_bound=1, ledger=path, budget=3)
        path.with_name("ledger.jsonl.head").unlink()
        with pytest.raises(JournalDamagedError, match="head is missing"):
            private_cost(X, Y, epsilon=1, cost_bound=1, ledger=path)


class TestUnits:
    @pytest.fixture
    def unnamed(self, path):
        """A ledger with a charge of a run whose name does not say whom it protects."""
        charge = LaplaceMechanism(1.0, 10.0, Adjacency.REPLACE_ONE).charge()
        with Ledger.open(path, epsilon, budget=Budget(9.0, 0.0)) as ledger:
            ledger.spend(charge, run="survey")
        return path

    def test_persons_do_not_go_with_charges_of_which_nobody_knows(self, unnamed):
        with pytest.raises(TransportError, match=r"'survey', of which it is not known"):
            private_cost(X, Y, epsilon=1, cost_bound=1, paired=True, ledger=unnamed)
        assert read_ledger(unnamed).runs == ("survey",)
        with (
            Ledger.open(unnamed, epsilon) as ledger,
            pytest.raises(TransportError, match=r"'survey', of which it is not known"),
        ):
            private_cost(X, Y, epsilon=1, cost_bound=1, paired=True, ledger=ledger)

    def test_records_do(self, unnamed):
        private_cost(X, Y, epsilon=1, cost_bound=1, ledger=unnamed)
        assert len(read_ledger(unnamed).runs) == 2

    def test_persons_go_with_persons(self, path):
        for budget in (3, None):
            private_cost(X, Y, epsilon=1, cost_bound=1, paired=True, ledger=path, budget=budget)
        assert all("-person-" in run for run in read_ledger(path).runs)
        with pytest.raises(TransportError, match="protect each person, and this one protects each record"):
            private_cost(X, Y, epsilon=1, cost_bound=1, ledger=path)
