"""The training loop: blocks of steps, each charged to the ledger before its first step.

A step is Algorithm 1 of DP-Sinkhorn, with the sanitizer as an exchangeable part: it draws a Poisson sample of
the private records, generates images, lets the sanitizer turn both into a noised gradient, and updates the
generator. Everything after the sanitizer is post-processing. `steps` has the ways of taking steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from dpsinkhorn.mechanisms.shared.base import Barrier
from dpsinkhorn.privacy import Ledger
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.records import Records
from dpsinkhorn.training.spending import steps_left
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import Steps, make_steps

__all__ = ["Block", "LedgerReservation", "Reservation", "train"]

_BLOCK_SECONDS = 1.0  # about how long a block of steps takes: what a crash may cost, and Ctrl-C may wait
_LARGEST_BLOCK = 10_000
_PUBLIC_BLOCKS = 250  # of a run whose blocks must not go by time


@dataclass(frozen=True)
class Block:
    """Where a training stands after a block of steps. Nothing in it tells of private data."""

    step: int
    horizon: int
    """Steps after which the run ends."""
    seconds: float
    """Of this block."""
    steps: int
    """In this block."""
    gradient_norm: float
    """Of the last sanitized gradient of the parameters: noise included."""


class Reservation(Protocol):
    """Who is asked before steps are taken."""

    def reserve(self, step: int, wanted: int) -> int:
        """Steps from `step` on that may be taken now: charged, on disk. 0 where the budget is spent."""
        ...


class LedgerReservation:
    """Steps of one run, charged to a ledger: no more of them than the run planned, lost ones included.

    `covered` steps of the run are on record already. Where a run replays bit for bit, steps that were
    charged before a crash are not charged again: the same noise on the same data reveals nothing new.
    """

    def __init__(self, ledger: Ledger, plan: Plan, run: str, *, covered: int) -> None:
        self._ledger = ledger
        self._charge = plan.step_charge
        self._run = run
        self._covered = covered
        self._left = steps_left(plan, ledger.statement(), run)

    def horizon(self, planned: int) -> int:
        """The step at which the budget, of the ledger or of the run, or the plan of `planned` steps ends."""
        return min(planned, self._covered + self._affordable(planned))

    def reserve(self, step: int, wanted: int) -> int:
        """Steps from `step` on that may be taken now."""
        free = self._covered - step
        if free > 0:
            return min(free, wanted)
        granted = self._affordable(wanted)
        if granted:
            self._ledger.spend(self._charge, run=self._run, steps=granted)
            self._covered = step + granted
            self._left -= granted
        return granted

    def epsilon_by(self, step: int) -> float:
        """ε of all that will be on record when the run is at this step; or is, if it was there already."""
        ahead = step - self._covered
        return self._ledger.epsilon_after(self._charge, ahead) if ahead > 0 else self._ledger.epsilon()

    def _affordable(self, at_most: int) -> int:
        at_most = min(at_most, self._left)
        return self._ledger.affordable(self._charge, at_most=at_most) if at_most > 0 else 0


def train(
    plan: Plan,
    state: TrainingState,
    records: Records,
    sanitizer: Barrier,
    reservation: Reservation,
    probabilities: tuple[float, ...],
    *,
    horizon: int,
) -> Iterator[Block]:
    """Train up to step `horizon`, or as far as the reservation allows; hand back after every block.

    Whoever iterates may stop between blocks: `state` is whole then. How steps will be taken is in `state`
    before the first of them is.
    """
    steps = make_steps(plan, state, records, sanitizer, probabilities, horizon=horizon)
    way = f"{steps.way}, by torch {torch.__version__} on {_device_name(state.device)}"
    if plan.seed is not None and state.way not in (None, way):
        raise TrainingError(
            f"this seeded run took its steps {state.way}, and here they would be taken {way}: it would "
            "not replay; resume it where it began, or begin another run"
        )
    state.way = way
    return _blocks(plan, state, steps, reservation, horizon)


def _blocks(
    plan: Plan, state: TrainingState, steps: Steps, reservation: Reservation, horizon: int
) -> Iterator[Block]:
    wanted = _first_block(plan)
    state.generator.train()
    while state.step < horizon:
        # ---- the budget: charged before the first step of the block
        whole = -(-wanted // steps.multiple) * steps.multiple
        granted = reservation.reserve(state.step, min(whole, horizon - state.step))
        if not granted:
            return
        started = time.monotonic()
        steps.take(granted)
        norm = _norm(state.gradients)
        seconds = time.monotonic() - started
        if not math.isfinite(norm):
            raise TrainingError(
                f"the training diverged: by step {state.step} the gradient is no longer finite, and no "
                "release can come of it; begin another run, with a lower learning rate "
                "(--set optimizer.learning_rate=...); what was spent stays spent"
            )
        yield Block(state.step, horizon, seconds, granted, norm)
        if plan.facts.size_is_public and not plan.precious:
            wanted = _next_block(granted, seconds)


def _first_block(plan: Plan) -> int:
    """Steps of the first block. Where the number of records is not public, of all: the time they take, which
    would settle the others, tells of it, and blocks are on the ledger, which others may come to see."""
    if plan.precious or plan.facts.size_is_public:
        return 1
    return min(_LARGEST_BLOCK, -(-plan.steps // _PUBLIC_BLOCKS))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _norm(gradients: list[torch.Tensor]) -> float:
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def _next_block(steps: int, seconds: float) -> int:
    """A block that takes about a second, growing by no more than a factor of ten at a time."""
    fitting = int(steps * _BLOCK_SECONDS / max(seconds, 1e-6))
    return max(1, min(fitting, 10 * steps, _LARGEST_BLOCK))
