"""The training loop: blocks of steps, each charged to the run's account before its first step.

A step is Algorithm 1 of DP-Sinkhorn, with the barrier as an exchangeable part: it draws a Poisson sample of
the private records, generates images, lets the barrier turn both into a noised gradient, and updates the
generator. Everything after the barrier is post-processing. `steps` takes them; no file is known here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.data import Dataset
from dpsinkhorn.errors import TrainingError
from dpsinkhorn.generators import draw_labels, draw_latents, recompute_batch_statistics
from dpsinkhorn.mechanisms.shared.base import Barrier
from dpsinkhorn.mechanisms.shared.class_counts import release_label_frequencies
from dpsinkhorn.privacy.noise import ObservedNoise
from dpsinkhorn.ranks import Ranks
from dpsinkhorn.release import Release, make_release, to_uint8
from dpsinkhorn.training.account import Account
from dpsinkhorn.training.plan import Plan, refused
from dpsinkhorn.training.records import Records, facts_of, records_of
from dpsinkhorn.training.shared_records import SharedRecords
from dpsinkhorn.training.state import TrainingState, check_float64, computed_by
from dpsinkhorn.training.steps import Steps, make_steps

_BLOCK_SECONDS = 1.0  # about how long a block of steps takes: what a crash may cost, and Ctrl-C may wait
_LEAST_BLOCKS = 40  # of a run, so that a crash of a short one costs little of it
_LARGEST_BLOCK = 10_000
_PUBLIC_BLOCKS = 250  # of a run whose blocks must not go by time
_STATISTICS_BATCH = 500  # images in a batch of BatchNorm's statistics, at least


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
    updates: int = 0
    """Made before the first step, where that is still to come."""
    updates_in_all: int = 0


class Trainer:
    """A generator in training.

    Args:
        plan: what is trained, and what it costs.
        dataset: the private records, which `check_data` has found to be those of the plan.
        device: where.
        account: who is asked before each block of steps.
        noise: stands at the barrier in place of the plan's own source, for an audit of a seeded plan.
        barrier: stands in the place of the plan's own, for an audit.
        ranks: where this is rank 0 of several, of which each holds a part of the records.
    """

    def __init__(
        self,
        plan: Plan,
        dataset: Dataset,
        device: torch.device,
        account: Account,
        *,
        noise: ObservedNoise | None = None,
        barrier: Barrier | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        check_float64(device)
        self.plan = plan
        self.state = TrainingState(plan, device, noise)
        self.class_names, self._value_range = dataset.public_names, dataset.value_range
        self.probabilities: tuple[float, ...] | None = None
        """Of generated labels; none before `begin`, unless they were taken from a checkpoint."""
        self._account = account
        self._records: Records | SharedRecords
        if ranks is None:
            self._records = records_of(dataset.part(0, 1)[0], device)
            self._computed = computed_by(plan.kind.learns_on(device))
        else:
            self._records = SharedRecords(ranks, plan, dataset, device)
            self._computed = self._records.computed_by
        self._watched, self._checked = barrier is not None, False
        self._barrier = plan.build() if barrier is None else barrier

    def begin(self) -> tuple[float, ...]:
        """Charge and release what comes before the first step; return the probabilities of labels.

        What was released before stays.
        """
        if not self._checked:  # a run may be resumed on another device
            with self._replayable(), refused():
                self._barrier.check_device(self.state)
            self._checked = True
        if self.probabilities is None:
            self._account.charge_preparations()
            if (counts := self.plan.count_mechanism) is not None:
                classes, noise = self.plan.facts.classes, self.state.noise
                self.probabilities = release_label_frequencies(self._records.labels(), classes, counts, noise)
            else:
                assert not isinstance(self.plan.labels, str)
                self.probabilities = self.plan.labels
            with self._replayable():
                self._barrier.prepare(self.state, self._records)
        return self.probabilities

    def blocks(self) -> Iterator[Block]:
        """Train to the end of the plan, or of the budget; hand back after every block of steps.

        Whoever iterates may stop between blocks: `state` is whole then. When this returns, nothing is charged
        yet, and `state` knows where the run ends and how its steps are taken.
        """
        plan, state = self.plan, self.state
        replays = plan.seed is not None and state.how_taken is not None
        if replays and plan.kind.learns_in_private and state.step != state.horizon:
            # noise of steps that a crash lost would come again, on something else
            raise TrainingError(
                f"a seeded run of {plan.kind.name} cannot be resumed: what it learns from the records is in "
                "no checkpoint, so that it would not replay; begin another run"
            )
        probabilities = self.begin()
        state.horizon = self._account.settle(
            state.step, replays=state.how_taken is not None, promised=state.horizon
        )
        with self._replayable():
            steps = make_steps(
                plan, state, self._records, self._barrier, probabilities, horizon=state.horizon
            )
        taken = f"{steps.how_taken}, by {self._computed}"
        if plan.seed is not None and state.how_taken not in (None, taken):
            raise TrainingError(
                f"this seeded run took its steps {state.how_taken}, and here they would be taken {taken}: it "
                "would not replay; resume it where it began, or begin another run"
            )
        state.how_taken = taken
        return self._blocks(steps, state.horizon)

    def _blocks(self, steps: Steps, horizon: int) -> Iterator[Block]:
        plan, state = self.plan, self.state
        wanted = _first_block(plan)
        state.generator.train()
        # ---- what was released before the first step teaches at no cost
        while not state.step and state.updates < steps.updates:
            started = time.monotonic()
            with self._replayable():
                steps.update(min(-(-steps.updates // _LEAST_BLOCKS), steps.updates - state.updates))
            yield Block(
                0,
                horizon,
                time.monotonic() - started,
                0,
                _norm(state.gradients),
                state.updates,
                steps.updates,
            )
        while state.step < horizon:
            # ---- the budget: charged before the first step of the block
            whole = -(-wanted // steps.multiple) * steps.multiple
            granted = self._account.reserve(state.step, min(whole, horizon - state.step))
            if not granted:
                return
            started = time.monotonic()
            with self._replayable():
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
            if plan.facts.size_is_public and not plan.kind.steps_are_costly:
                wanted = min(_next_block(granted, seconds), -(-horizon // _LEAST_BLOCKS))

    def images(self, columns: int) -> tuple[Any, Any]:
        """Return generated images, uint8, so many of every class, and their labels.

        They come from latents of their own: training does not notice.
        """
        state, classes = self.state, self.plan.facts.classes
        count = columns * (classes or columns)
        labels = torch.arange(count) % classes if classes else None
        random = torch.Generator().manual_seed(state.step)
        latents = draw_latents(count, state.generator.config.latent, random, state.device)
        moved = None if labels is None else labels.to(state.device)
        with torch.no_grad(), self._replayable(), _buffers_kept(state.best):
            images = to_uint8(state.best(latents, moved))
        return images, None if labels is None else labels.numpy()

    def release(self) -> Release:
        """Return what was learnt and what it cost; BatchNorm's statistics are those of generated images."""
        if self._watched:
            raise TrainingError("what an audit trained is not for release")
        state, generator, probabilities = self.state, self.state.best, self.begin()
        size = max(_STATISTICS_BATCH, self.plan.generated)

        def draw() -> tuple[Tensor, Tensor | None]:
            labels = None
            if self.plan.facts.classes:
                labels = draw_labels(size, probabilities, state.random, state.device)
            return draw_latents(size, generator.config.latent, state.random, state.device), labels

        with self._replayable():
            recompute_batch_statistics(generator, draw)
        return make_release(
            generator,
            label_probabilities=probabilities or None,
            privacy=self._account.statement(state.noise.description, kept=state.step),
            class_names=self.class_names,
            label_source=self.plan.label_source,
            value_range=self._value_range,
        )

    @contextmanager
    def _replayable(self) -> Iterator[None]:
        """Within it a seeded run's convolutions add up in the same order each time, on a GPU too."""
        before = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = before or self.plan.seed is not None
        try:
            yield
        finally:
            torch.backends.cudnn.deterministic = before


def check_data(plan: Plan, dataset: Dataset) -> None:
    """Refuse other data than the plan was made for, as far as public facts tell, before anything is spent."""
    found, planned = facts_of(dataset), plan.facts
    facts: list[tuple[str, Any, Any]] = [
        ("images of shape", found.image_shape, planned.image_shape),
        ("classes:", found.classes, planned.classes),
        ("classes stated:", found.classes_stated, planned.classes_stated),
        ("persons named:", found.grouped, planned.grouped),
    ]
    if planned.size_is_public:
        facts += [("records:", found.records, planned.records), ("persons:", found.units, planned.units)]
    for what, here, there in facts:
        if here != there:
            raise TrainingError(f"these are not the data of the run: {what} {here}, not {there}")
    if found.records > plan.terms.largest_sample:
        raise TrainingError(
            f"the data hold {found.records} records, far more than the {planned.records} declared; "
            "declare a number nearer to theirs"
        )


def _first_block(plan: Plan) -> int:
    """Return the steps of the first block. Where the number of records is not public, of all: the time they
    take, which would settle the others, tells of it, and blocks are on the ledger, which others may see."""
    if plan.kind.steps_are_costly or plan.facts.size_is_public:
        return 1
    return min(_LARGEST_BLOCK, -(-plan.steps // _PUBLIC_BLOCKS))


def _next_block(steps: int, seconds: float) -> int:
    """Return a block that takes about a second, growing by no more than a factor of ten at a time."""
    fitting = int(steps * _BLOCK_SECONDS / max(seconds, 1e-6))
    return max(1, min(fitting, 10 * steps, _LARGEST_BLOCK))


def _norm(gradients: list[Tensor]) -> float:
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


@contextmanager
def _buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    """Within it a network in training mode uses the statistics of its batch; its own stay as they were."""
    kept = {name: value.clone() for name, value in module.named_buffers()}
    try:
        yield
    finally:
        for name, value in module.named_buffers():
            value.copy_(kept[name])
