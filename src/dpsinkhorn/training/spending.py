"""What a run takes from a ledger that runs may share, and what it may state in the end."""

from __future__ import annotations

import bisect
import json
import math
from dataclasses import dataclass
from pathlib import Path

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.privacy import (
    Accountant,
    Adjacency,
    Budget,
    Charge,
    Ledger,
    Statement,
    UnsupportedEventError,
    compose,
    epsilon,
    format_epsilon,
    public_facts_sentence,
    read_ledger,
)
from dpsinkhorn.privacy.ledger import EpsilonOf
from dpsinkhorn.privacy.units import new_run_name, unit_conflict
from dpsinkhorn.release import PrivacyStatement
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.plan import Plan

__all__ = [
    "Room",
    "accountant_for",
    "begin_ledger",
    "charged_steps",
    "check_budget",
    "check_room",
    "check_unit",
    "epsilon_by",
    "planned_room",
    "run_name",
    "statement_of",
    "steps_left",
]


def epsilon_by(plan: Plan) -> EpsilonOf:
    """ε as a ledger asks for it, by the plan's accountant where it can."""
    return lambda charge, delta: epsilon(charge, delta, accountant_for(charge, delta, plan))


def accountant_for(charge: Charge, delta: float, plan: Plan) -> Accountant:
    """The plan's accountant; `pld` where that one has no bound for what others charged to the same ledger.

    Both are upper bounds, so either will do; a run whose accountant cannot count its ledger could not end.
    """
    if plan.accountant != "pld":
        try:
            epsilon(charge, delta, plan.accountant)
        except UnsupportedEventError:
            return "pld"
    return plan.accountant


def run_name(title: str, plan: Plan) -> str:
    """The name of a run on a ledger: unlike any other, and it says whom the run protects."""
    return new_run_name(title, plan.facts.unit)


def begin_ledger(path: Path, plan: Plan, budget: float | None = None) -> None:
    """A new ledger, to be shared by runs, with the budget given, or that of the first of them."""
    allowed = plan.budget_epsilon if budget is None else budget
    Ledger.open(path, epsilon_by(plan), budget=Budget(allowed, plan.delta)).close()


def check_budget(ledger: Path | None, plan: Plan, budget: float) -> None:
    """Refuse a budget, ε of all runs on a new ledger, that could not be one."""
    if ledger is None:
        raise TrainingError("budget (--budget) is that of a ledger for several runs: name it (--ledger)")
    if ledger.exists():
        raise TrainingError(f"the ledger {ledger} has its budget already; leave budget (--budget) out")
    if not plan.private:
        raise TrainingError("training without privacy has no budget; leave it out")
    if not plan.budget_epsilon <= budget < math.inf:
        raise TrainingError(
            f"budget must be from epsilon {plan.budget_epsilon:g} of this run upwards, not {budget:g}"
        )


@dataclass(frozen=True)
class Room:
    """ε on a ledger that runs share."""

    allowed: float
    spent: float
    after: float
    """With the run that is planned."""


def check_room(path: Path, plan: Plan) -> Room:
    """Refuse a run that a shared ledger cannot pay for. Nothing is written or spent."""
    if path.is_dir():
        raise TrainingError(f"the ledger {path} is a folder; name a file")
    spent = read_ledger(path)
    allowed, counted = spent.budget, epsilon_by(plan)
    if allowed.delta != plan.delta:
        raise TrainingError(
            f"the ledger {path} counts at delta {allowed.delta:g}, this run at {plan.delta:g}; "
            f"give delta {allowed.delta:g}"
        )
    check_unit(path, spent, plan)
    before = [spent.total()] if spent.spends else []
    mixed = any(charge.adjacency is Adjacency.REPLACE_ONE for charge in before)
    total = compose(*before, *plan.charges, adjacency=Adjacency.REPLACE_ONE if mixed else None)
    room = Room(
        allowed.epsilon, counted(before[0], plan.delta) if before else 0.0, counted(total, plan.delta)
    )
    if room.after > room.allowed:
        raise TrainingError(
            f"the ledger {path} has no room for this run: it allows epsilon "
            f"{format_epsilon(room.allowed, 6)}, {format_epsilon(room.spent, 6)} is spent, and with this run "
            f"it would be {format_epsilon(room.after, 6)}; lower epsilon, "
            "or stop here (how much runs may spend together is settled when a ledger begins: --budget)"
        )
    return room


def planned_room(ledger: Path | None, plan: Plan, budget: float | None) -> Room | None:
    """What a run would find on its ledger, or on the one that it would begin; none where it has its own."""
    if budget is not None:
        check_budget(ledger, plan, budget)
    if ledger is None:
        return None
    if ledger.exists():
        return check_room(ledger, plan)
    return Room(plan.budget_epsilon if budget is None else budget, 0.0, plan.epsilon)


def check_unit(path: Path, spent: Statement, plan: Plan) -> None:
    """Refuse a ledger of runs that protect others: ε for records says nothing of a person with several."""
    if conflict := unit_conflict(spent.runs, plan.facts.unit):
        raise TrainingError(
            f"the ledger {path} {conflict}, and this one protects each {plan.facts.unit}; "
            "give it another ledger"
        )


def charged_steps(plan: Plan, spent: Statement, run: str) -> int:
    """Steps of a run that are on record, those that a crash lost included."""
    charge = plan.step_charge
    return sum(spend.steps for spend in spent.spends if spend.run == run and spend.charge == charge)


def steps_left(plan: Plan, spent: Statement, run: str) -> int:
    """Steps that a run may still charge by its own plan, however much room others have on the ledger.

    So it ends within its own ε, and what its release says it cost does not tell how many steps a crash lost.

    Raises:
        TrainingError: The run has charges on record that are none of its plan's.
    """
    taken = charged_steps(plan, spent, run)
    left = max(0, plan.steps - taken)
    others = [spend.charge for spend in spent.spends if spend.run == run and spend.charge != plan.step_charge]
    counts = None if plan.count_mechanism is None else plan.count_mechanism.charge()
    if any(charge != counts for charge in others):
        raise TrainingError(
            f"the ledger has charges of {run} that its plan does not have; was the run's run.json edited?"
        )
    if len(others) <= 1:
        return left

    # frequencies of classes that a crash lost were released anew: steps make room for them
    def too_many(steps: int) -> bool:
        steps_in_all = plan.mechanism.sampled(plan.sampling_rate, max(1, taken + steps))
        return epsilon(compose(*others, steps_in_all), plan.delta, plan.accountant) > plan.budget_epsilon

    return max(0, bisect.bisect_left(range(left + 1), True, key=too_many) - 1)


def statement_of(plan: Plan, spent: Statement, noise: str) -> PrivacyStatement:
    """What a run guarantees: everything on its ledger, other runs on the same data included."""
    total, delta = spent.total(), spent.budget.delta
    accountant = accountant_for(total, delta, plan) if plan.private else plan.accountant
    return PrivacyStatement(
        epsilon=epsilon(total, delta, accountant) if plan.private else math.inf,
        delta=delta,
        adjacency=total.adjacency.value,
        unit=plan.facts.unit,
        accountant=accountant,
        charges=tuple(charge.to_json() for charge in _merged(spent)),
        ledger_digest=spent.digest,
        mechanism=plan.recipe.privacy.mechanism,
        published_epsilon=plan.published_epsilon,
        size_is_public=plan.facts.size_is_public,
        noise=noise,
        seeded=plan.seed is not None,
        notes=_notes(plan),
    )


def _notes(plan: Plan) -> tuple[str, ...]:
    """What else counts as public, so that nobody is surprised."""
    if not plan.private:
        return ()
    notes = [public_facts_sentence()]
    if plan.facts.classes_stated and plan.facts.classes:
        notes.append("The classes were stated: whether there are records of each is protected.")
    if plan.published_epsilon is not None:
        notes.append("published_epsilon is the papers' own count; it is not a valid guarantee.")
    return tuple(notes)


def _merged(spent: Statement) -> list[Charge]:
    """One charge for all spends of a kind, so that a statement stays short."""
    steps: dict[str, int] = {}
    for spend in spent.spends:
        key = json.dumps(spend.charge.to_json(), sort_keys=True)
        steps[key] = steps.get(key, 0) + spend.steps
    single = {key: Charge.from_json(json.loads(key)) for key in steps}
    return [
        Charge(dp.SelfComposedDpEvent(single[key].event, n), single[key].adjacency)
        for key, n in steps.items()
    ]
