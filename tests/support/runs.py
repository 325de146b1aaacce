"""Small data sets, plans and runs: a step takes about a millisecond."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from dpsinkhorn.data import from_arrays
from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.privacy import read_ledger
from dpsinkhorn.training import Run, Saving, facts_of, load_recipe, make_plan

EVERY_BLOCK = Saving(checkpoint_seconds=0.0, picture_steps=0)
AT_THE_END = Saving(checkpoint_seconds=float("inf"), picture_steps=0)
MECHANISMS = ("record", "batch", "image", "parameter", "none")

RECIPE = """
description = "tiny"

[privacy]
mechanism = "record"
sampling_rate = 0.25
steps = {steps}
clip = 2.0
noise_multiplier = 1.5

[loss]
regularization = 1.0
generated_per_class = 3
generated = 6
self_weight = 0.5

[generator]
kind = "mlp"
latent = 2
hidden = [8]

[optimizer]
learning_rate = 1e-2
schedule = "cosine"
ema = 0.9
"""


def tiny_arrays(records=90, classes=3, persons=None, seed=0, shape=(4, 4)):
    """Images of which each class is bright in its own place, labels, and persons (or None)."""
    random = np.random.default_rng(seed)
    labels = np.arange(records) % classes
    images = random.integers(0, 120, size=(records, *shape), dtype=np.uint8)
    images[np.arange(records), labels % shape[0]] += 120
    groups = None if persons is None else random.integers(0, persons, size=records)
    return images, labels, groups


def tiny_data(labelled=True, **options):
    images, labels, groups = tiny_arrays(**options)
    return from_arrays(images, labels if labelled else None, groups=groups)


DATA = tiny_data()
IMAGES, LABELS, _ = tiny_arrays()


def tiny_recipe(mechanism="record", *, steps=12, ema=0.9, schedule="cosine", privacy=None, loss=None):
    """A recipe whose noise multiplier is given, so that nothing need be calibrated."""
    noise = None if mechanism == "none" else 1.5
    return load_recipe("digits").replace(
        privacy={
            "mechanism": mechanism,
            "sampling_rate": 0.25,
            "steps": steps,
            "clip": 2.0,
            "noise_multiplier": noise,
            **(privacy or {}),
        },
        loss={"regularization": 1.0, "generated_per_class": 3, "generated": 6, **(loss or {})},
        generator={"latent": 2, "hidden": [8]},
        optimizer={"learning_rate": 1e-2, "ema": ema, "schedule": schedule},
    )


def tiny_plan(
    data,
    mechanism="record",
    *,
    seed=3,
    labels="uniform",
    epsilon=None,
    records=None,
    accountant="rdp",  # the fastest one; the ledger asks it often
    **options,
):
    return make_plan(
        tiny_recipe(mechanism, **options),
        facts_of(data, records=records),
        budget_epsilon=epsilon,
        delta=1e-5,
        accountant=accountant,
        labels=labels,
        seed=seed,
    )


def small_plan(data, mechanism, **options):
    """A plan whose steps are quick, of any mechanism."""
    if mechanism == "moments":
        recipe = load_recipe("mixture").replace(
            privacy={"noise_multiplier": 2.0, "steps": 5, "clip": 3.0},
            generator={"components": 3, "frequencies": 4},
        )
    elif mechanism == "flow":
        recipe = load_recipe("flow").replace(
            privacy={"noise_multiplier": 2.0, "steps": 3, "sampling_rate": 0.2, "batch": None},
            generator={"channels": 8},
            flow={"components": 3, "frequencies": 4, "sketch_steps": 4, "updates": 2},
        )
    elif mechanism in ("dp_merf", "dp_cgan", "gs_wgan", "datalens", "g_pate"):
        kind = find_mechanism(mechanism)
        recipe = load_recipe(kind.audit_recipe).replace(**kind.audit_settings(data.records))
        recipe = recipe.replace(privacy={"noise_multiplier": 2.0})
    else:
        return tiny_plan(data, mechanism, **{"steps": 6, **options})
    return make_plan(recipe, facts_of(data), accountant="rdp", **{"seed": 3, **options})


def finished(folder, plan, data, *, saving=EVERY_BLOCK, ledger=None):
    """A run that was never interrupted."""
    run = Run.create(folder, plan, ledger=ledger)
    assert run.train(data, saving=saving)
    return run


class Everything:
    """An account that grants whatever is asked for, up to a number of steps."""

    def __init__(self, steps):
        self.steps = steps

    def charge_preparations(self):
        """Nothing is kept of it."""

    def settle(self, step, *, replays, promised):
        del step, replays, promised
        return self.steps

    def reserve(self, step, wanted):
        del step
        return wanted


class CrashError(Exception):
    """As abrupt as an exception can be: nothing is written after it."""


def crash_at(step, run, data):
    """Train until a block ends at this step or later; only the checkpoint before the first step is there."""

    def watch(progress):
        if progress.block.step >= step:
            raise CrashError

    with pytest.raises(CrashError):
        run.train(data, watch=watch, saving=AT_THE_END)


def go_on(folder, plan, data, chance, choices, *, saving):
    """Train with stops and crashes at random blocks until the run is done; how often it was interrupted."""
    run, interrupted = Run.create(folder, plan), 0
    while True:

        def watch(_progress):
            fate = choices.random()
            if fate < chance / 2:
                raise CrashError
            return fate < chance

        try:
            if run.train(data, saving=saving, watch=watch):
                return interrupted
        except CrashError:
            pass
        interrupted += 1
        run = Run.resume(folder)


def tensors(path: Path):
    """All tensors of a safetensors file, as bytes."""
    with safe_open(path, framework="pt") as file:
        return {name: (file.get_tensor(name).numpy().tobytes()) for name in file.keys()}  # noqa: SIM118


def header(path: Path):
    """What stands beside the tensors of a checkpoint, but for the names that differ from run to run."""
    with safe_open(path, framework="pt") as file:
        state = json.loads(file.metadata()["state"])
    for name in ("run", "ledger"):
        state["extra"].pop(name)
    return state


def bits(run_folder):
    """Everything that a seeded run leaves behind, to be compared bit for bit."""
    folder = Path(run_folder)
    config = json.loads((folder / "release" / "config.json").read_text())
    return {
        "release": tensors(folder / "release" / "generator.safetensors"),
        "config": config,
        "picture": (folder / "release" / "samples.png").read_bytes(),
        "checkpoint": tensors(folder / "checkpoint.safetensors"),
        "state": header(folder / "checkpoint.safetensors"),
    }


def lines(run_folder):
    """The statistics of a run."""
    text = (Path(run_folder) / "statistics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def header_step(folder):
    """The step that the checkpoint of a run holds."""
    return header(folder / "checkpoint.safetensors")["step"]


def steps_on_record(path, charge):
    """How many steps of a charge a ledger names."""
    return sum(spend.steps for spend in read_ledger(path).spends if spend.charge == charge)
