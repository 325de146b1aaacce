"""What `dpsinkhorn train` prints: warnings, the plan of `--dry-run`, the progress bar, the end of a run."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dpsinkhorn.cli._shared import duration, print_json, print_table, printable, warn

if TYPE_CHECKING:  # torch and the rest are slow to import: `--help` does without
    import torch

    from dpsinkhorn.data import Dataset
    from dpsinkhorn.training import Plan, Progress, Run
    from dpsinkhorn.training.account import SharedBudget

_MANY_STEPS = 1000
_LINE_SECONDS = 60.0  # between lines of progress where there is no terminal


def warn_about(plan: Plan, dataset: Dataset, device: torch.device) -> None:
    """What the user should know of a plan before it is carried out."""
    from dpsinkhorn.privacy import format_epsilon
    from dpsinkhorn.training.advice import advice_on
    from dpsinkhorn.training.recipe import DELTA

    if plan.seed is not None:
        warn("a seeded run replays: who knows the seed knows the noise. It is NOT for release")
    if not plan.private:
        warn("--mechanism none trains WITHOUT privacy; the result is NOT for release")
    for sentence in advice_on(plan, dataset):
        warn(printable(sentence))
    if plan.delta != DELTA and plan.delta == plan.recipe.delta:
        warn(f"delta is {plan.delta:g}, as the recipe {plan.recipe.name} states it; --delta sets another")
    published = plan.published_epsilon
    if published is not None:
        warn(
            f"all images of a step share one sample, so that the papers' epsilon for this run, "
            f"{format_epsilon(published)}, is not a valid guarantee; what holds is "
            f"{format_epsilon(plan.epsilon)}"
        )
    if plan.recipe.name in ("flow", "grey", "colour") and plan.steps >= _MANY_STEPS and device.type == "cpu":
        warn(
            f"the recipe {plan.recipe.name} can take hours on a CPU (--dry-run says how long); "
            "--recipe mixture takes seconds"
        )
    if dataset.class_names != dataset.public_names:
        warn(
            "the names of the classes were read off the private labels, and stay out of the release; "
            "state them with --classes if they are public"
        )


def show_plan(plan: Plan, device: torch.device, shared: SharedBudget | None, as_json: bool) -> None:
    """The plan, what it leaves on its ledger, and how long it would take: that is tried on made-up data."""
    from dpsinkhorn.privacy import format_epsilon
    from dpsinkhorn.privacy.charges import parts_of
    from dpsinkhorn.training.advice import expectation
    from dpsinkhorn.training.trial import try_plan

    expected, estimate = expectation(plan), try_plan(plan, device)
    memory = estimate.memory_bytes
    if as_json:
        print_json(
            {
                **plan.to_json(),
                "epsilon": plan.epsilon,
                "expectation": None if expected is None else dataclasses.asdict(expected),
                "ledger": None if shared is None else dataclasses.asdict(shared),
                "estimated_seconds": round(estimate.seconds, 1),
                "estimated_memory_mib": None if memory is None else memory >> 20,
                "device": str(device),
            }
        )
        return
    on_ledger, unused = None, plan.kind.unused_settings
    if shared is not None:
        on_ledger = (
            f"{format_epsilon(shared.spent)} so far, {format_epsilon(shared.after)} with this run, "
            f"of {format_epsilon(shared.allowed)} allowed"
        )
    before, split, size = plan.preparation_epsilon, plan.kind.splits_records, f"{plan.expected_batch:,.0f}"
    hidden, told = "not told: it shows how many records there are", plan.recipe.published_epsilon
    rows = [
        ("recipe", f"{plan.recipe.name}: {plan.recipe.description}"),
        ("mechanism", plan.recipe.privacy.mechanism),
        ("epsilon, delta", f"{format_epsilon(plan.epsilon)}, {plan.delta:g} ({plan.accountant})"),
        (
            "epsilon, published",
            None if told is None else f"{told:g}, by its authors' count at their noise; not proved here",
        ),
        ("epsilon on the ledger", on_ledger),
        ("unit of privacy", f"{plan.facts.unit} (add or remove one)"),
        ("noise multiplier", f"{plan.noise_multiplier:.5g}" if plan.private else "none"),
        ("before the steps", None if before is None else f"epsilon {format_epsilon(before)} by itself"),
        ("steps", f"{plan.steps:,}"),
        ("sampling rate", None if split else f"{plan.sampling_rate:.5g} (batch of about {size})"),
        ("parts", f"{parts_of(plan.sampling_rate):,} (of about {size} records)" if split else None),
        ("generated a step", None if "loss" in unused else f"{plan.generated:,}"),
        ("transport", None if {"loss", "loss.marginals"} & unused else plan.recipe.loss.transport),
        ("generator", f"{plan.generator_config.kind}, {plan.generator_config.parameters:,} parameters"),
        ("expect", None if expected is None else f"{expected.level}: {expected}"),
        ("time", f"about {duration(estimate.seconds)} on {device}"),
        ("memory", hidden if memory is None else f"about {memory >> 20:,} MiB"),
    ]
    print_table("Plan: nothing was trained, written or spent", rows, [])


def show_end(run: Run, as_json: bool) -> None:
    """Where the release and the report of a finished run are, and what its ε means."""
    from dpsinkhorn.privacy import format_epsilon, meaning
    from dpsinkhorn.release import load

    release = load(run.release_folder)
    spent = release.privacy.epsilon
    report = _write_report(run)
    if as_json:
        print_json(
            {
                "run": str(run.folder),
                "release": str(run.release_folder),
                "report": None if report is None else str(report),
                "epsilon": spent,
                "delta": release.privacy.delta,
                "steps_charged": release.privacy.steps_charged,
                "steps_kept": release.privacy.steps_kept,
                "releasable": release.privacy.releasable,
            }
        )
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"Run      {run.folder}")
    console.print(f"Samples  {run.release_folder / 'samples.png'}")
    console.print(f"Release  {run.release_folder}")
    if report is not None:
        console.print(f"Report   {report}")
    if release.privacy.lost_steps:
        console.print(release.privacy.lost_steps)
    if not release.privacy.releasable:
        console.print("NOT FOR RELEASE: " + release.privacy.summary)
        return
    console.print(
        f"epsilon {format_epsilon(spent)} at delta {release.privacy.delta:g}. "
        + meaning(
            spent, release.privacy.delta, unit=release.privacy.unit, adjacency=release.privacy.adjacency
        )
    )
    console.print("Only the folder `release` may leave the building, and the report; the rest is private.")
    console.print(f"Next: dpsinkhorn sample {run.release_folder} --count 1000 --output samples.npz")


def _write_report(run: Run) -> Path | None:
    """The page of the run. The release is there already: whatever goes wrong here must not hide it."""
    try:
        from dpsinkhorn.report import write_report

        return write_report(run.folder).report
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        warn(f"the release is there, but its report could not be written: {reason}")
        return None


def _allowed(run: Run) -> str:
    """What the ledger allows: ε is of all that is on it. Where others share it, it is not the run's."""
    from dpsinkhorn.privacy import format_epsilon, read_ledger

    budget = format_epsilon(read_ledger(run.ledger_path).budget.epsilon)
    return budget if run.settings["ledger"] is None else f"{budget} for all on the ledger"


@contextmanager
def show_progress(run: Run, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A progress bar with steps, ε spent and the time left; a line now and then where it cannot be drawn."""
    if quiet:
        yield lambda _: None
        return
    from dpsinkhorn.training.watching import progress_bar

    console = Console(stderr=True)
    with progress_bar(console, partial(_allowed, run), hidden=not console.is_terminal) as bar:
        shown, begun = time.monotonic(), False

        def show(now: Progress) -> None:
            nonlocal shown, begun
            spent = bar(now)
            if not begun:
                _tell_lost(run, now, console)
            begun = True
            if not console.is_terminal and time.monotonic() - shown > _LINE_SECONDS:  # into a file, say
                shown = time.monotonic()
                print(f"step {now.block.step:,} of {now.block.horizon:,}, ε ≤ {spent}", file=sys.stderr)

        yield show


def _tell_lost(run: Run, first: Progress, console: Console) -> None:
    """Say how many steps a crash lost; a seeded run takes them again, for nothing."""
    charged, kept = (steps - first.block.steps for steps in (first.charged, first.block.step))
    if charged > kept and run.plan.seed is None:
        console.print(
            f"Resumed: steps charged {charged:,}, steps kept {kept:,}. A crash lost the others: they stay "
            "charged, and the run ends with as many fewer.",
            soft_wrap=True,
        )
