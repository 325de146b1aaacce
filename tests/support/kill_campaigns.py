"""Trainings that are killed, and what must hold after each kill. See `kills.py`."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  which optimizers load, taking a second: once, not in every life

from dpsinkhorn.privacy import Charge, Ledger, epsilon, read_ledger
from dpsinkhorn.release import load
from dpsinkhorn.training import Run, Saving, records, state, trainer
from dpsinkhorn.training.account import Account
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.state import read_extra
from dpsinkhorn.training.steps import captured, make_steps
from support.defects import charge_afterwards
from support.kills import Death, Plant, Tally, life, plant_nothing
from support.runs import bits, header, tiny_data, tiny_plan

STEPS = 60
SAVING = Saving(checkpoint_seconds=0.0, picture_steps=7)


@dataclass(frozen=True)
class _Kind:
    """A training to be killed."""

    mechanism: str
    seed: int | None
    labels: str
    shared: bool
    """Whether its ledger is one that other runs may share."""
    ahead: bool = False
    """Whether several steps are drawn at once, as on a GPU."""


KINDS = (
    _Kind("record", None, "uniform", False),
    _Kind("record", 3, "released", False),
    _Kind("batch", None, "released", True),
    _Kind("record", 3, "uniform", True),
    _Kind("image", None, "uniform", False),
    _Kind("batch", 3, "uniform", False),
    _Kind("parameter", None, "uniform", True),
    _Kind("image", 3, "released", False),
    _Kind("record", None, "released", True),
    _Kind("parameter", 3, "uniform", False),
    _Kind("record", None, "uniform", False, ahead=True),
    _Kind("record", 3, "uniform", True, ahead=True),
)


def trainings(
    folder: Path, kills: int, seed: int, kinds: int = len(KINDS), plant: Plant = plant_nothing
) -> dict[str, Any]:
    """Kill trainings, resume them, kill them again, until they are done; then the next."""
    plant()
    rng, data = random.Random(f"trainings {seed}"), tiny_data()
    tally = Tally("drawn", "furthest", "counted", "promised")
    found: Counter[str] = Counter()
    plans = [
        tiny_plan(data, kind.mechanism, seed=kind.seed, labels=kind.labels, steps=STEPS)
        for kind in KINDS[:kinds]
    ]
    for number, plan in enumerate(plans):
        if plan.seed is not None:
            ahead = KINDS[number].ahead
            whole = partial(_train, folder / f"whole-{number}", plan, data, None, None, 0, ahead)
            assert life(whole) == (False, "")
    number = 0
    while found["kills"] < kills:
        which = number % len(plans)
        place, plan = folder / str(number), plans[which]
        place.mkdir()
        tally.clear()
        ledger = place / "shared.jsonl" if KINDS[which].shared else None
        _until_done(place / "run", plan, data, ledger, tally, rng, found, KINDS[which].ahead)
        if plan.seed is not None:
            assert bits(place / "run") == bits(folder / f"whole-{which}"), f"other bits: {KINDS[which]}"
        found["seeded runs" if plan.seed is not None else "secure runs"] += 1
        number += 1
    return dict(found)


def _until_done(
    folder: Path,
    plan: Plan,
    data: Any,
    ledger: Path | None,
    tally: Tally,
    rng: random.Random,
    found: Counter[str],
    ahead: bool,
) -> None:
    while True:
        begun = (folder / "run.json").exists()
        death = Death(rng, seconds=0.15, calls=150 if begun or rng.random() < 0.4 else 8)
        work = partial(_train, folder, plan, data, ledger, tally, rng.randrange(2**32), ahead)
        killed, error = life(work, death)
        found["kills"] += killed
        check_run(folder, plan, ledger, tally, found)
        if error:
            # the one refusal that may come: every step was paid for, and each was lost
            assert plan.seed is None, error
            assert "allows no step, and none is kept" in error, error
            found["nothing kept"] += 1
            return
        if not killed:
            assert (folder / "release").is_dir()
            return


def _train(
    folder: Path, plan: Plan, data: Any, ledger: Path | None, tally: Tally | None, choices: int, ahead: bool
) -> None:
    """One life of a run, from where it stands; what it does is counted as it does it."""
    rng = random.Random(choices)
    if ahead:
        captured._MOST_STEPS = 4
        trainer.make_steps = partial(make_steps, capture=False)
    if tally is not None:
        count_what_is_used(tally)
        if rng.random() < 0.7:  # else the blocks that time brings about
            trainer._next_block = lambda _steps, _seconds: rng.randint(1, 5)
    run = Run.resume(folder) if (folder / "run.json").exists() else Run.create(folder, plan, ledger=ledger)
    if not run.done:  # a kill may come between the release and the end of the process
        assert run.train(data, saving=SAVING)


def count_what_is_used(tally: Tally) -> None:
    """Note what is promised as soon as it is, and what is drawn from private data just before."""
    real_draw, real_drawn = records.Records.draw, captured.FixedSteps._drawn
    real_spend = Ledger.spend
    real_counts, real_blocks = trainer.release_label_frequencies, trainer.Trainer.blocks

    def draw(self: records.Records, *arguments: Any) -> Any:
        tally["drawn"] += 1
        tally["furthest"] = max(tally["furthest"], at.step + 1)
        return real_draw(self, *arguments)

    def spend(self: Ledger, charge: Charge, *, run: str, steps: int = 1) -> Any:
        done = real_spend(self, charge, run=run, steps=steps)
        tally["promised"] += steps
        return done

    def counts(*arguments: Any, **options: Any) -> Any:
        tally["counted"] += 1
        return real_counts(*arguments, **options)

    def blocks(self: trainer.Trainer) -> Any:
        nonlocal at
        at = self.state
        return real_blocks(self)

    def drawn(self: captured.FixedSteps, steps: int) -> Any:
        tally["drawn"] += steps
        tally["furthest"] = max(tally["furthest"], self._state.step + steps)
        return real_drawn(self, steps)

    at: Any = None
    records.Records.draw = draw  # type: ignore[method-assign]
    captured.FixedSteps._drawn = drawn  # type: ignore[method-assign]
    Ledger.spend = spend  # type: ignore[method-assign]
    trainer.release_label_frequencies = counts
    trainer.Trainer.blocks = blocks  # type: ignore[method-assign]


def check_run(folder: Path, plan: Plan, ledger: Path | None, tally: Tally, found: Counter[str]) -> None:
    """What holds after a kill at any moment."""
    path = ledger or folder / "ledger.jsonl"
    begun = path.exists() or path.with_name(path.name + ".head").exists()
    spends = read_ledger(path).spends if begun else ()
    steps = sum(spend.steps for spend in spends if spend.charge == plan.step_charge)
    count = plan.count_mechanism
    counts = 0 if count is None else sum(spend.charge == count.charge() for spend in spends)

    # what was used is on the ledger: of a seeded run each step once, since a replay shows nothing new
    used = tally["furthest"] if plan.seed is not None else tally["drawn"]
    assert steps >= used, f"{steps} steps on the ledger, {used} used"
    assert counts >= (min(1, tally["counted"]) if plan.seed is not None else tally["counted"])
    # nothing promised is lost, and a kill adds one unfinished spend at most
    assert tally["promised"] <= steps + counts
    spent = epsilon(read_ledger(path).total(), plan.delta, plan.accountant) if spends else 0.0
    assert spent <= plan.budget_epsilon
    found["kills in mid-spend"] += tally["promised"] < steps + counts
    tally["promised"] = steps + counts

    # whole files only
    if (folder / "checkpoint.safetensors").exists():
        assert read_extra(folder / "checkpoint.safetensors")["run"]
        assert header(folder / "checkpoint.safetensors")["step"] <= used
    if (folder / "run.json").exists():
        json.loads((folder / "run.json").read_text())
    for picture in (folder / "samples").glob("step-*.png"):
        assert picture.read_bytes().endswith(b"IEND\xaeB`\x82"), picture
    if (folder / "release").exists():
        privacy = load(folder / "release").privacy
        assert privacy.ledger_digest == read_ledger(path).digest
        assert privacy.epsilon >= spent * (1 - 1e-12)


# ---- defects, to see that the campaigns notice


def ledger_afterwards() -> None:
    """Steps are granted at once, and charged when the next are asked for."""
    Account.reserve = charge_afterwards  # type: ignore[method-assign]


def checkpoints_in_place() -> None:
    """Checkpoints are written over the old ones."""
    state.replace_file = lambda path, content: path.write_bytes(content)
