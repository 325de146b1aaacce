"""What a run itself was charged, and what its ledger holds besides."""

from __future__ import annotations

from dataclasses import dataclass

from dpsinkhorn.privacy import Accountant, Charge, Statement, epsilon
from dpsinkhorn.training import Run
from dpsinkhorn.training.account import accountant_for, charged_steps

__all__ = ["OnLedger", "Together", "on_ledger", "together"]


@dataclass(frozen=True)
class Together:
    """ε of everything on a ledger."""

    epsilon: float
    adjacency: str
    accountant: Accountant


@dataclass(frozen=True)
class OnLedger:
    """What the ledger of a run says of it, and of others. All of ε is at the ledger's δ."""

    steps: int
    """Training steps that this run was charged, those that a crash lost included."""
    besides: tuple[Charge, ...]
    """What else it was charged: frequencies of classes."""
    epsilon: float
    """Of this run alone, by its own accountant, for adding or removing one."""
    budget: float
    """What all that is on the ledger may cost together."""
    others: bool
    """Whether others had used the data when the release was made; or have by now, where there is none."""
    later: Together | None = None
    """All that is on the ledger, where others were charged to it since the release."""


def on_ledger(run: Run, spent: Statement, known: int, later: Together | None) -> OnLedger:
    """What a ledger holds. The first `known` of its spends are those that the release states."""
    plan = run.plan
    own = [spend for spend in spent.spends if spend.run == run.name]
    return OnLedger(
        steps=charged_steps(plan, spent, run.name),
        besides=tuple(spend.charge for spend in own if spend.charge != plan.step_charge),
        epsilon=epsilon(spent.total(run.name), plan.delta, plan.accountant) if own else 0.0,
        budget=spent.budget.epsilon,
        others=any(spend.run != run.name for spend in spent.spends[:known]),
        later=later,
    )


def together(run: Run, spent: Statement) -> Together:
    """What everything on a ledger costs, by the run's accountant where it can count all of it."""
    total, delta = spent.total(), spent.budget.delta
    accountant = accountant_for(total, delta, run.plan)
    return Together(epsilon(total, delta, accountant), total.adjacency.value, accountant)
