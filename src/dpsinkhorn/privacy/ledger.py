"""The ledger: what was spent on a data set, by all runs, and a budget that no step may pass.

A run calls `spend` *before* it uses the first noised value of a step or of a block of steps. When `spend`
returns, the charge is on disk; when it raises `BudgetExceededError`, nothing was written and the step must
not be taken. A crash at any moment leaves at least what was used on record: `docs/proofs/ledger.md`.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.errors import DPSinkhornError
from dpsinkhorn.privacy.charges import Adjacency, Charge, compose
from dpsinkhorn.privacy.journal import Entry, Journal, JournalDamagedError, read_journal
from dpsinkhorn.privacy.words import format_epsilon

EpsilonOf: TypeAlias = Callable[[Charge, float], float]
"""ε of everything in a charge, at δ; `dpsinkhorn.privacy.epsilon` is one."""

_VERSION = 1


class BudgetExceededError(DPSinkhornError, RuntimeError):
    """The step would pass the budget. Nothing was spent."""


@dataclass(frozen=True)
class Budget:
    """The most that all runs on a data set may spend together. An infinite ε only keeps the record."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(f"a budget's epsilon is from 0 upwards, not {self.epsilon}")
        if not 0 <= self.delta < 1:
            raise ValueError(f"a budget's delta is from 0 to below 1, not {self.delta}")


@dataclass(frozen=True)
class Spend:
    """One line of the ledger: `steps` steps of `charge`, by `run`."""

    run: str
    charge: Charge
    steps: int


@dataclass(frozen=True)
class Statement:
    """A ledger as it was read: all spends, and the digest that stands for the file."""

    budget: Budget
    spends: tuple[Spend, ...]
    digest: str

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the runs in order of their first spend."""
        return tuple(dict.fromkeys(spend.run for spend in self.spends))

    def total(self, run: str | None = None) -> Charge:
        """Return everything that was spent, or what one run spent, as one charge.

        Where charges under both adjacencies meet, all are converted to replace-one.
        """
        return _composed(_counted(spend for spend in self.spends if run in (None, spend.run)))


class Ledger:
    """An open ledger. One process at a time may hold it; a second one gets `JournalLockedError`.

    >>> import tempfile
    >>> from dpsinkhorn.privacy import RecordMechanism, epsilon
    >>> folder = tempfile.TemporaryDirectory()
    >>> step = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=1)
    >>> with Ledger.open(f"{folder.name}/ledger.jsonl", epsilon, budget=Budget(1.0, 1e-5)) as ledger:
    ...     block = ledger.affordable(step, at_most=10)
    ...     _ = ledger.spend(step, run="first", steps=block)  # only now draw noise, `block` times
    ...     print(ledger.statement().runs, round(ledger.epsilon(), 2))
    ('first',) 0.8
    >>> folder.cleanup()
    """

    def __init__(self, journal: Journal, epsilon: EpsilonOf, name: str) -> None:
        """Not for callers: use `open`."""
        self._name = name
        self._journal = journal
        self._epsilon = epsilon
        self._statement = _statement(journal.entries)
        self._spends = list(self._statement.spends)
        self._counts = _counted(self._spends)
        self._allowance = _Allowance(self._counts, self._within)
        self._turn = threading.Lock()  # one thread at a time checks the budget and writes

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        epsilon: EpsilonOf,
        *,
        budget: Budget | None = None,
        seen: str | None = None,
    ) -> Ledger:
        """Open the ledger at `path`; where there is none yet, begin one with `budget`.

        `seen` is a digest of this ledger that was noted elsewhere, in a release for example: a ledger in
        whose history it does not occur, such as an older copy put back, is refused.

        Raises:
            JournalDamagedError: The files were edited, truncated, reordered, or belong to something else.
            JournalLockedError: The ledger is open elsewhere.
            ValueError: `budget` is not the ledger's.
        """
        journal = Journal.open(path, first=None if budget is None else _header(budget))
        try:
            if seen is not None and all(entry.digest != seen for entry in journal.entries):
                raise JournalDamagedError(
                    f"{path} does not contain the entry {seen}: an older copy, or another ledger"
                )
            ledger = cls(journal, epsilon, os.path.basename(path))
            if budget not in (None, ledger.budget):
                raise ValueError(f"{path} has the budget {ledger.budget}, not {budget}")
        except BaseException:
            journal.close()
            raise
        return ledger

    @property
    def budget(self) -> Budget:
        """Return the budget that the ledger was begun with."""
        return self._statement.budget

    @property
    def digest(self) -> str:
        """SHA-256 that stands for the ledger up to now. Noted elsewhere, it shows up an older copy."""
        return self._journal.last.digest

    def statement(self) -> Statement:
        """Return all that was spent up to now."""
        return Statement(self.budget, tuple(self._spends), self.digest)

    def epsilon(self) -> float:
        """Return ε of everything that was spent, by all runs, at the budget's δ."""
        return self._epsilon_of(self._counts)

    def epsilon_after(self, charge: Charge, steps: int) -> float:
        """Return ε if `steps` steps of `charge` were spent as well; nothing is."""
        _check_steps(steps)
        key = _key(charge)
        return self._epsilon_of({**self._counts, key: self._counts.get(key, 0) + steps})

    def affordable(self, charge: Charge, *, at_most: int) -> int:
        """Return the largest number of steps of `charge`, up to `at_most`, that the budget still allows.

        Asking this once for a whole run makes each of its spends instant.
        """
        _check_steps(at_most)
        with self._turn:
            return self._allowance.largest(self._counts, _key(charge), at_most)

    def spend(self, charge: Charge, *, run: str, steps: int = 1) -> Spend:
        """Charge `steps` steps to the budget, on disk, before the first of them is taken.

        Raises:
            BudgetExceededError: The budget does not allow it. Nothing was written.
        """
        _check_steps(steps)
        if not isinstance(run, str) or not run:
            raise ValueError("a run needs a name")
        key = _key(charge)
        spend = Spend(run, charge, steps)
        with self._turn:
            after = {**self._counts, key: self._counts.get(key, 0) + steps}
            if not self._allowance.allows(after):
                what = "this" if steps == 1 else f"{steps} more steps"
                # rounded alike, so that what is spent does not look like more than what is allowed
                allowed, spent = (format_epsilon(e, 6) for e in (self.budget.epsilon, self.epsilon()))
                raise BudgetExceededError(
                    f"the ledger {self._name} allows epsilon {allowed} at delta "
                    f"{self.budget.delta:g}, {spent} is spent, and {what} would "
                    "pass it; nothing was spent now"
                )
            self._counts = after  # first: if the write fails half-way, it counts
            self._journal.append({"charge": charge.to_json(), "kind": "spend", "run": run, "steps": steps})
            self._spends.append(spend)
        return spend

    def close(self) -> None:
        """Let others write. Closing twice is fine."""
        self._journal.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _epsilon_of(self, counts: Mapping[str, int]) -> float:
        return self._epsilon(_composed(counts), self.budget.delta) if counts else 0.0

    def _within(self, counts: Mapping[str, int]) -> bool:
        return self._epsilon_of(counts) <= self.budget.epsilon


def read_ledger(path: str | os.PathLike[str]) -> Statement:
    """Read and check a ledger without opening it for writing. An entry that was begun counts as spent."""
    return _statement(read_journal(path))


class _Allowance:
    """Which totals are known to be within the budget, so that the accountant is asked rarely.

    ε never falls when a count grows. So totals below one that is within the budget are within it, and
    totals above one that is not are not. When neither is known, a total further ahead is asked for, twice
    the steps of this process at first and less after each refusal: thousands of spends cost some dozens of
    questions.
    """

    def __init__(self, start: Mapping[str, int], within: Callable[[Mapping[str, int]], bool]) -> None:
        self._start = dict(start)
        self._within = within
        self._good: Mapping[str, int] = {}
        self._bad: Mapping[str, int] | None = None
        self._reach = 1.0

    def allows(self, total: Mapping[str, int]) -> bool:
        if _below(total, self._good):
            return True
        if self._bad is not None and _below(self._bad, total):
            return False
        ahead = {k: n + math.floor(self._reach * (n - self._start.get(k, 0))) for k, n in total.items()}
        if ahead != total:
            if not (self._bad is not None and _below(self._bad, ahead)) and self._ask(ahead):
                return True
            self._reach /= 2
        return self._ask(total)

    def largest(self, total: Mapping[str, int], key: str, at_most: int) -> int:
        def allowed(steps: int) -> bool:
            after = {**total, key: total.get(key, 0) + steps}
            if self._bad is not None and _below(self._bad, after):
                return False
            return _below(after, self._good) or self._ask(after)

        if allowed(at_most):
            return at_most
        low, high = 0, at_most  # high is refused; low is what there is already
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if allowed(middle) else (low, middle)
        return low

    def _ask(self, total: Mapping[str, int]) -> bool:
        if self._within(total):
            self._good = dict(total)
            return True
        self._bad = dict(total)
        return False


def _below(small: Mapping[str, int], large: Mapping[str, int]) -> bool:
    return all(count <= large.get(key, 0) for key, count in small.items())


def _key(charge: Charge) -> str:
    """A charge as text, so that equal ones are counted together. Raises where the charge has no JSON form."""
    text = json.dumps(charge.to_json(), sort_keys=True, allow_nan=False)
    if Charge.from_json(json.loads(text)) != charge:
        raise ValueError(f"this charge does not survive being written down: {charge!r}")
    return text


def _counted(spends: Iterable[Spend]) -> dict[str, int]:
    """Return how many steps of each charge there are."""
    counts: dict[str, int] = {}
    for spend in spends:
        key = _key(spend.charge)
        counts[key] = counts.get(key, 0) + spend.steps
    return counts


def _composed(counts: Mapping[str, int]) -> Charge:
    charges = []
    for key, steps in counts.items():
        charge = Charge.from_json(json.loads(key))
        charges.append(Charge(dp.SelfComposedDpEvent(charge.event, steps), charge.adjacency))
    mixed = len({charge.adjacency for charge in charges}) > 1
    return compose(*charges, adjacency=Adjacency.REPLACE_ONE if mixed else None)


def _check_steps(steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps are counted in whole numbers from 1 upwards, not {steps!r}")


def _header(budget: Budget) -> dict[str, Any]:
    epsilon = "infinite" if math.isinf(budget.epsilon) else budget.epsilon
    # The random name makes the digests of two ledgers differ, whatever is spent on them.
    name = os.urandom(16).hex()
    return {"delta": budget.delta, "epsilon": epsilon, "kind": "ledger", "name": name, "version": _VERSION}


def _statement(entries: Iterable[Entry]) -> Statement:
    first, *rest = entries
    try:
        if first.body["kind"] != "ledger":
            raise ValueError(f"its first entry is {dict(first.body)!r}")
        if first.body["version"] != _VERSION:
            found = str(first.body["version"])[:20]
            raise JournalDamagedError(
                f"this ledger is of version {found}, not {_VERSION}: use the dpsinkhorn that wrote it"
            )
        epsilon = first.body["epsilon"]
        budget = Budget(math.inf if epsilon == "infinite" else float(epsilon), float(first.body["delta"]))
        spends = [_spend(entry.body) for entry in rest]
    except JournalDamagedError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise JournalDamagedError(f"the ledger holds something that is not a spend: {error}") from error
    return Statement(budget, tuple(spends), (rest[-1] if rest else first).digest)


def _spend(body: Mapping[str, Any]) -> Spend:
    if body["kind"] != "spend":
        raise ValueError(f"unknown kind of entry {body['kind']!r}")
    _check_steps(body["steps"])
    charge = Charge.from_json(body["charge"])
    if charge.to_json() != body["charge"]:
        raise ValueError(f"unknown fields in the charge {body['charge']!r}")
    return Spend(str(body["run"]), charge, body["steps"])
