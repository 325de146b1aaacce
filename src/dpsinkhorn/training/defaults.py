"""The recipe of a training for which none was named: one rule, by public facts and ε alone.

docs/defaults.md has what it was measured on (`benchmarks/defaults.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.mechanisms import find_mechanism, mechanism_names
from dpsinkhorn.mechanisms.shared.terms import Facts
from dpsinkhorn.training.recipe import Recipe, load_recipe

DELTA = 1e-5
"""δ where none is given, whatever the recipe; the papers' recipes state their own."""

_MIXTURE, _FLOW, _GRADIENTS = "mixture", "flow", "record"
_SMALL = 256  # numbers of an image that an MLP makes
_LARGEST_SIDE = 32  # of grey images that were compared on a GPU
_BATCH = 4096  # of a flow, where there are enough records
# With fewer: a flow's channels by epsilon times the records, few steps, and a rate and average to match.
_NUMBERS_OF_A_CHANNEL, _CHANNELS = 3000.0, (16, 64)
_FEW_STEPS = 100
_LEARNING_OF_FEW = {"draws": 8, "updates": 2000, "update_rate": 4e-3}  # from the records, and from the sketch
_OPTIMIZER_OF_FEW = {"learning_rate": 2e-3, "warm_up": 10, "ema": 0.95}
# Of epsilon times the records of a class, as a part of the variance, a sketch gets this much.
_SKETCH_WEIGHT, _LARGEST_SHARE = 1200.0, 0.5
_USUAL_EPSILON = 10.0  # where the noise is given in its place
# From where on thousands of noisy gradients say as much as a few sums. Fewer records were not measured.
_LARGE_EPSILON, _MANY_RECORDS = 3.0, 50_000


def choose_recipe(
    facts: Facts,
    *,
    recipe: str | Path | Recipe | None = None,
    mechanism: str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    epsilon: float | None = None,
    quick: bool = True,
    labels: tuple[float, ...] | str = "uniform",
) -> Recipe:
    """Return the recipe that was asked for, or the default for data of which these facts are public.

    The default is a mixture by `moments`: seconds on a CPU. Where there is a GPU (not `quick`), many grey
    images of a middling size and a large ε, it is `grey`, by `record`. `mechanism` asks for another, or
    replaces that of a recipe that was named. `settings` change what was chosen, by section. Where shares of
    classes are stated (`labels`), the smallest class decides on the sizes.

    >>> digits = Facts((1, 8, 8), classes=10, records=1347, units=1347)
    >>> chosen = choose_recipe(digits, epsilon=10)
    >>> chosen.name, chosen.generator["components"], chosen.privacy.steps
    ('mixture', 4, 5)
    >>> choose_recipe(digits, epsilon=10, labels=(0.01, *[0.11] * 9)).generator["components"]
    2
    >>> choose_recipe(Facts((1, 28, 28), 10, 60_000, 60_000), epsilon=10, quick=False).name
    'grey'
    >>> choose_recipe(digits, mechanism="record", settings={"privacy": {"steps": 5}}).privacy.steps
    5
    """
    if mechanism is not None and mechanism not in mechanism_names():
        raise TrainingError(f"mechanism must be one of {', '.join(mechanism_names())}, not {mechanism!r}")
    named = recipe is not None
    if recipe is None:
        recipe = _default_name(facts, mechanism, epsilon, quick)
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    sizes = {_MIXTURE: _sizes, _FLOW: _flow_sizes}.get(str(recipe))
    if sizes is not None:
        chosen = chosen.replace(**sizes(facts, (epsilon or _USUAL_EPSILON) * members(facts, labels)))
    if mechanism not in (None, chosen.privacy.mechanism):
        chosen = chosen.replace(privacy={"mechanism": mechanism})
    if not settings:
        return chosen
    _check_used(chosen, settings, named)
    return chosen.replace(**settings)


def _default_name(facts: Facts, mechanism: str | None, epsilon: float | None, quick: bool) -> str:
    channels, height, width = facts.image_shape
    small = facts.pixels <= _SMALL
    by_size = "digits" if small else "grey" if channels == 1 else "colour"
    if mechanism is not None:
        return by_size if mechanism == _GRADIENTS else find_mechanism(mechanism).recipe
    if facts.grouped:
        return _MIXTURE
    enough = (epsilon or _USUAL_EPSILON) >= _LARGE_EPSILON and facts.records >= _MANY_RECORDS
    gradients = not quick and enough and by_size == "grey" and max(height, width) <= _LARGEST_SIDE
    return by_size if gradients else _MIXTURE


def members(facts: Facts, labels: tuple[float, ...] | str) -> float:
    """Return how many records or persons a class has, by public numbers: the smallest, by stated shares."""
    stated = () if isinstance(labels, str) else [share for share in labels if share > 0]
    return facts.units * min(stated, default=1.0 / max(facts.classes, 1))


def _sizes(facts: Facts, weight: float) -> dict[str, dict[str, int]]:
    """Sizes and steps of a mixture, by ε times the records of a class, which count a ninth in colour."""
    weight /= facts.image_shape[0] ** 2
    components = min(32, max(2, round(math.sqrt(weight) / 10)))
    return {
        "generator": {"components": components, "frequencies": 20 if weight >= 18_000 else 16},
        "privacy": {"steps": min(6, 3 + int(math.log2(components)))},
    }


def _flow_sizes(facts: Facts, weight: float) -> dict[str, dict[str, Any]]:
    """The sketch's share and sizes, and the expected batch, of a flow; with few records all of its sizes.

    A quarter of N records in a step, T steps: the noise of a step's mean is about 100 c sqrt(T) / (epsilon N)
    for c channels, in a unit in which the signal of the first steps is about a half. What T steps tell
    together hardly depends on T: so there are few, and as many channels as keep the noise below a third.
    """
    share = min(_LARGEST_SHARE, _SKETCH_WEIGHT / weight)
    sketch = _sizes(facts, weight * math.sqrt(share))
    flow = {**sketch["generator"], "share": share, "sketch_steps": max(4, sketch["privacy"]["steps"])}
    batch = max(1, facts.units // 4)
    if batch >= _BATCH:
        return {"privacy": {"batch": _BATCH}, "flow": flow}
    fewest, most = _CHANNELS
    channels = 8 * round(weight * max(facts.classes, 1) / _NUMBERS_OF_A_CHANNEL / 8)
    return {
        "privacy": {"batch": batch, "steps": _FEW_STEPS},
        "generator": {"channels": min(most, max(fewest, channels))},
        "optimizer": _OPTIMIZER_OF_FEW,
        "flow": {**flow, **_LEARNING_OF_FEW},
    }


def _check_used(recipe: Recipe, settings: Mapping[str, Mapping[str, Any]], named: bool) -> None:
    """Refuse a setting that the recipe's mechanism has no use for."""
    kind = find_mechanism(recipe.privacy.mechanism)
    for section, changes in settings.items():
        for name in changes if isinstance(changes, Mapping) else ():
            if not {section, f"{section}.{name}"}.isdisjoint(kind.unused_settings):
                chosen = "" if named else ", which suits these data,"
                raise TrainingError(
                    f"{section}.{name} plays no part in the recipe {recipe.name}{chosen} by the mechanism "
                    f"{kind.name}; leave it out, or choose another mechanism, such as record (--mechanism)"
                )
