"""A ledger for several runs on the same data: what it allows them, and whether it can pay for one more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.privacy import Adjacency, Budget, Ledger, compose, format_epsilon, read_ledger
from dpsinkhorn.training.account import check_unit, epsilon_by
from dpsinkhorn.training.plan import Plan


@dataclass(frozen=True)
class SharedBudget:
    """ε on a ledger that runs share."""

    allowed: float
    spent: float
    after: float
    """With the run that is planned."""


def check_ledger(ledger: Path | None, plan: Plan, budget: float | None = None) -> SharedBudget | None:
    """Refuse a run that its ledger cannot pay for, and return what it would find there. Nothing is written.

    Without a `ledger` the run has one of its own, and None is returned. `budget` is for a new ledger: ε that
    all runs on it may spend together; by default no more than this run.
    """
    if budget is not None:
        _check_budget(ledger, plan, budget)
    if ledger is None:
        return None
    if not ledger.exists():
        return SharedBudget(plan.budget_epsilon if budget is None else budget, 0.0, plan.epsilon)
    if ledger.is_dir():
        raise TrainingError(f"the ledger {ledger} is a folder; name a file")
    spent = read_ledger(ledger)
    allowed, counted = spent.budget, epsilon_by(plan)
    if allowed.delta != plan.delta:
        raise TrainingError(
            f"the ledger {ledger} counts at delta {allowed.delta:g}, this run at {plan.delta:g}; "
            f"give delta {allowed.delta:g}"
        )
    check_unit(ledger, spent, plan)
    before = [spent.total()] if spent.spends else []
    mixed = any(charge.adjacency is Adjacency.REPLACE_ONE for charge in before)
    total = compose(*before, *plan.charges, adjacency=Adjacency.REPLACE_ONE if mixed else None)
    shared = SharedBudget(
        allowed.epsilon, counted(before[0], plan.delta) if before else 0.0, counted(total, plan.delta)
    )
    if shared.after > shared.allowed:
        raise TrainingError(
            f"the ledger {ledger} has no room for this run: it allows epsilon "
            f"{format_epsilon(shared.allowed, 6)}, {format_epsilon(shared.spent, 6)} is spent, and with this "
            f"run it would be {format_epsilon(shared.after, 6)}; lower epsilon, "
            "or stop here (how much runs may spend together is settled when a ledger begins: --budget)"
        )
    return shared


def begin_ledger(path: Path, plan: Plan, budget: float | None) -> None:
    """Begin a ledger for several runs, unless it is there: with this budget, or that of the first run."""
    if not path.exists():
        allowed = plan.budget_epsilon if budget is None else budget
        Ledger.open(path, epsilon_by(plan), budget=Budget(allowed, plan.delta)).close()


def _check_budget(ledger: Path | None, plan: Plan, budget: float) -> None:
    if ledger is None:
        raise TrainingError("budget (--budget) is that of a ledger for several runs: name it (--ledger)")
    if ledger.exists():
        raise TrainingError(f"the ledger {ledger} has its budget already; leave budget (--budget) out")
    if not plan.private:
        raise TrainingError("training without privacy has no budget; leave it out")
    if not plan.budget_epsilon <= budget < math.inf:
        raise TrainingError(
            f"budget must be from epsilon {format_epsilon(plan.budget_epsilon, 6)} of this run upwards, not "
            f"{format_epsilon(budget, 6)}"
        )
