"""The account of one run: all that it takes from its ledger, and what it may state in the end."""

from __future__ import annotations

import bisect
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.privacy import (
    Accountant,
    Adjacency,
    Budget,
    BudgetExceededError,
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
from dpsinkhorn.privacy.journal import JournalDamagedError
from dpsinkhorn.privacy.ledger import EpsilonOf
from dpsinkhorn.privacy.words import unit_conflict
from dpsinkhorn.release import PrivacyStatement
from dpsinkhorn.training.advice import EXPECT, expectation
from dpsinkhorn.training.plan import Plan


class Account:
    """Charges the steps of one run to its ledger, each before it is taken: no more than the run planned.

    Use it as a context: it keeps the ledger open, and others out, until it is left.
    """

    def __init__(self, path: Path, ledger: Ledger, plan: Plan, run: str) -> None:
        """Not for callers: use `open`."""
        self.path, self.ledger, self.run = path, ledger, run
        self._plan, self._charge = plan, plan.step_charge
        self._covered = self._left = 0
        self.charged = 0
        """Steps of the run that are on record, those that a crash lost included; known once it is settled."""

    @classmethod
    def open(
        cls, path: Path, plan: Plan, run: str, *, begin: bool = False, seen: str | None = None
    ) -> Account:
        """Open the ledger of a run.

        Args:
            path: Where it is.
            run: The name by which the run is charged.
            begin: Make a new ledger where there is none, with the budget of the plan: only for a run that can
                have spent nothing yet.
            seen: A digest that the ledger had; an older copy is refused.
        """
        budget = Budget(plan.budget_epsilon, plan.delta) if begin else None
        try:
            ledger = Ledger.open(path, epsilon_by(plan), budget=budget, seen=seen)
        except FileNotFoundError as error:
            raise TrainingError(
                f"the ledger {path} of this run is gone; put it back: it knows what was spent"
            ) from error
        except JournalDamagedError:
            raise
        except ValueError as error:
            raise TrainingError(
                f"{error}; this is the ledger of another run: put the right one back"
            ) from error
        try:
            check_unit(path, ledger.statement(), plan)  # others may have spent since this run began
        except TrainingError:
            ledger.close()
            raise
        return cls(path, ledger, plan, run)

    def __enter__(self) -> Account:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ledger.close()

    def charge_preparations(self) -> None:
        """Charge what is released before the first step; a seeded run, which repeats it, is charged once."""
        spends = self.ledger.statement().spends
        for charge in self._plan.preparations:
            own = [spend.charge for spend in spends if spend.run == self.run for _ in range(spend.steps)]
            if self._plan.seed is not None and charge in own:
                continue
            with_one_step = epsilon(
                compose(*own, charge, self._charge), self._plan.delta, self._plan.accountant
            )
            if with_one_step > self._plan.budget_epsilon:
                raise TrainingError(
                    "what crashes lost before the first step has used up this run's own epsilon; "
                    "begin another run"
                )
            self._spend(charge, 1)
            spends = self.ledger.statement().spends

    def settle(self, step: int, *, replays: bool, promised: int | None) -> int:
        """Return the step at which a run that stands at `step` ends: by its plan, its budget or the ledger's.

        Where a seeded run `replays` bit for bit, steps that were charged before a crash are not charged
        again: the same noise on the same data reveals nothing new. `promised` is where such a run was to end.
        """
        plan = self._plan
        self._left = self.steps_left()
        self.charged = charged_steps(plan, self.ledger.statement(), self.run)
        self._covered = self.charged if replays and plan.seed is not None else step
        horizon = min(plan.steps, self._covered + self._affordable(plan.steps))
        if self._covered > step and promised not in (None, horizon):
            # What a step asks of the data can depend on where the run ends, and these are not charged anew.
            raise TrainingError(
                f"this seeded run was to end after {promised} steps, and the budget in {self.path} now ends "
                f"it after {horizon}: it would not replay; begin another run"
            )
        if not horizon:
            raise TrainingError(
                f"the budget, of this run or in {self.path}, allows no step, and none is kept; "
                "begin another run"
            )
        return horizon

    def reserve(self, step: int, wanted: int) -> int:
        """Return how many steps from `step` on may be taken now: charged, on disk. 0: the budget is spent."""
        free = self._covered - step
        if free > 0:
            return min(free, wanted)
        granted = self._affordable(wanted)
        if granted:
            self._spend(self._charge, granted)
            self._covered = step + granted
            self._left -= granted
            self.charged += granted
        return granted

    def epsilon_by(self, step: int) -> float:
        """Return ε of all that will be on record when the run is at this step; or is, if it was there."""
        ahead = step - self._covered
        return self.ledger.epsilon_after(self._charge, ahead) if ahead > 0 else self.ledger.epsilon()

    def steps_left(self) -> int:
        """Return how many steps the run may still charge by its own plan, whatever room others left.

        So it ends within its own ε, and what its release says it cost does not tell how many steps a crash
        lost.

        Raises:
            TrainingError: The run has charges on record that are none of its plan's.
        """
        plan, spent = self._plan, self.ledger.statement()
        taken = charged_steps(plan, spent, self.run)
        left = max(0, plan.steps - taken)
        others = [s.charge for s in spent.spends if s.run == self.run and s.charge != self._charge]
        if any(charge not in plan.preparations for charge in others):
            raise TrainingError(
                f"the ledger has charges of {self.run} that its plan does not have; was the run's run.json "
                "edited?"
            )
        if len(others) <= len(plan.preparations):
            return left

        # what a crash lost before the first step was released anew: steps make room for it
        def too_many(steps: int) -> bool:
            steps_in_all = plan.mechanism.sampled(plan.sampling_rate, max(1, taken + steps))
            return epsilon(compose(*others, steps_in_all), plan.delta, plan.accountant) > plan.budget_epsilon

        return max(0, bisect.bisect_left(range(left + 1), True, key=too_many) - 1)

    def statement(self, noise: str, *, kept: int) -> PrivacyStatement:
        """Return what the run guarantees, with so many steps in what it learnt.

        How many a crash lost follows the clock, which tells of the number of records: where that is not
        public, the statement leaves it out.
        """
        spent = self.ledger.statement()
        return replace(
            statement_of(self._plan, spent, noise),
            steps_charged=charged_steps(self._plan, spent, self.run),
            steps_kept=kept if self._plan.facts.size_is_public else None,
        )

    def _affordable(self, at_most: int) -> int:
        at_most = min(at_most, self._left)
        return self.ledger.affordable(self._charge, at_most=at_most) if at_most > 0 else 0

    def _spend(self, charge: Charge, steps: int) -> None:
        try:
            self.ledger.spend(charge, run=self.run, steps=steps)
        except BudgetExceededError as error:
            raise TrainingError(str(error)) from error


def epsilon_by(plan: Plan) -> EpsilonOf:
    """Return ε as a ledger asks for it, by the plan's accountant where it can."""
    return lambda charge, delta: epsilon(charge, delta, accountant_for(charge, delta, plan))


def accountant_for(charge: Charge, delta: float, plan: Plan) -> Accountant:
    """Return the plan's accountant; `pld` where it has no bound for what others charged to the same ledger.

    Both are upper bounds, so either will do; a run whose accountant cannot count its ledger could not end.
    """
    if plan.accountant != "pld":
        try:
            epsilon(charge, delta, plan.accountant)
        except UnsupportedEventError:
            return "pld"
    return plan.accountant


def check_unit(path: Path, spent: Statement, plan: Plan) -> None:
    """Refuse a ledger of runs that protect others: ε for records says nothing of a person with several."""
    if conflict := unit_conflict(spent.runs, plan.facts.unit):
        raise TrainingError(
            f"the ledger {path} {conflict}, and this one protects each {plan.facts.unit}; "
            "give it another ledger"
        )


def charged_steps(plan: Plan, spent: Statement, run: str) -> int:
    """Return the steps of a run that are on record, those that a crash lost included."""
    charge = plan.step_charge
    return sum(spend.steps for spend in spent.spends if spend.run == run and spend.charge == charge)


def statement_of(plan: Plan, spent: Statement, noise: str) -> PrivacyStatement:
    """Return what a run guarantees: everything on its ledger, other runs on the same data included."""
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
    """Return what else counts as public, so that nobody is surprised."""
    if not plan.private:
        return ()
    notes = [public_facts_sentence()]
    if plan.facts.classes_stated and plan.facts.classes:
        notes.append("The classes were stated: whether there are records of each is protected.")
    if plan.published_epsilon is not None:
        notes.append("published_epsilon is the papers' own count; it is not a valid guarantee.")
    expected = expectation(plan)
    if expected is not None:
        notes.append(f"{EXPECT}{expected}.")
    return tuple(notes)


def _merged(spent: Statement) -> list[Charge]:
    """Return one charge for all spends of a kind, so that a statement stays short."""
    steps: dict[str, int] = {}
    for spend in spent.spends:
        key = json.dumps(spend.charge.to_json(), sort_keys=True)
        steps[key] = steps.get(key, 0) + spend.steps
    single = {key: Charge.from_json(json.loads(key)) for key in steps}
    return [
        Charge(dp.SelfComposedDpEvent(single[key].event, n), single[key].adjacency)
        for key, n in steps.items()
    ]


# ---- a ledger for several runs on the same data: what it allows, and whether it can pay for one more


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
