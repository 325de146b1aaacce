"""What a curator should hear before a plan is carried out.

`expectation` knows the plan alone, and is public. What begins with `advice` reads private data: it is for the
curator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpsinkhorn.data import Dataset
from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.training.recipe import members

if TYPE_CHECKING:  # which imports this module
    from dpsinkhorn.training.plan import Plan

_LITTLE = 0.25  # of the declared range: images that keep to less of it have hardly any contrast
_MOST_NAMES = 5  # of columns


def advice_on(plan: Plan, dataset: Dataset) -> Iterator[str]:
    """Sentences on what is probably not meant, one line each; none where all is well.

    >>> import numpy as np
    >>> from dpsinkhorn.data import from_arrays
    >>> from dpsinkhorn.training import facts_of, load_recipe, make_plan
    >>> data = from_arrays(np.full((200, 8, 8), 40, dtype=np.uint8), np.arange(200) % 10)
    >>> plan = make_plan(load_recipe("digits"), facts_of(data), budget_epsilon=3.0, delta=0.1)
    >>> print(*(sentence[:60] for sentence in advice_on(plan, data)), sep="\\n")
    delta 0.1 is not below 1/records = 0.005; publishing one at
    the values found take up little of the range declared, 0 to
    """
    facts = plan.facts
    if plan.private and plan.delta >= 1 / facts.units:
        yield (
            f"delta {plan.delta:g} is not below 1/{facts.unit}s = {1 / facts.units:.2g}; "
            "publishing one at random would be allowed"
        )
    expected = expectation(plan)
    if expected is not None and expected.level == "weak":  # what is hopeless was refused, or asked for
        yield str(expected)
    if sentence := advice_on_range(dataset):
        yield sentence
    if dataset.unused_columns:
        more = ", ..." if len(dataset.unused_columns) > _MOST_NAMES else ""
        yield (
            f"columns that are not used: {', '.join(dataset.unused_columns[:_MOST_NAMES])}{more}. One that "
            "tells whose a record is must be named with groups (--groups), one of labels with label (--label)"
        )


def advice_on_range(dataset: Dataset) -> str | None:
    """A sentence where the pixels keep to a small part of their declared range; else none."""
    (low, high), (least, most) = dataset.value_range, dataset.found_range()
    if most - least >= _LITTLE * (high - low):
        return None
    shade = "nearly black" if most < low + _LITTLE * (high - low) else "nearly of one shade"
    return (
        f"the values found take up little of the range declared, {low:g} to {high:g}: the images train as "
        f"{shade}. State their public range (value_range, --value-range 0,16) if it is another"
    )


EXPECT = "What to expect, by public numbers: "
"""Begins the sentence in the notes of a release."""

_PIXELS = 784  # of the images that limits are stated for: 28 x 28, grey; larger ones are learnt as coarsely
# ε times records of a class. From the first on, each of three classifiers keeps more than half of what it
# gains on guessing from real records, on all five data sets; below, images look like noise. Below the second
# they look poor.
_LEAST, _ENOUGH = 400.0, 1000.0
# Of `record`: by how much the noise of a step may be longer than all that its records can add. At 24 samples
# of MNIST were at chance, at 2 they taught something; nothing between was tried.
_MOST_NOISE = 10.0
# From how much on classifiers trained on samples are right how often, in per cent of those trained on the
# records themselves: the least and the most on any data set, as `benchmarks/defaults_table.py` prints them.
MEASURED = ((400.0, 68, 92), (1000.0, 76, 96), (3000.0, 76, 100), (30_000.0, 91, 100))


@dataclass(frozen=True)
class Expectation:
    """A judgement, and a sentence for people, without a full stop."""

    level: Literal["hopeless", "weak", "fine"]
    text: str

    def __str__(self) -> str:
        return self.text


def expectation(plan: Plan) -> Expectation | None:
    """Return what can be expected of a plan; none where there is no privacy, or where nothing was measured.

    What decides is ε times the records of a class, how large the images are, and whether they are in colour:
    docs/results.md has what came of how much (`benchmarks/defaults.py`).

    A class has the part of the records that `plan.labels` states, or an even one: how many it has is private.

    >>> from dpsinkhorn.training import Facts, load_recipe, make_plan
    >>> facts = Facts((1, 28, 28), classes=2, records=50, units=50)
    >>> expectation(make_plan(load_recipe("mixture"), facts, budget_epsilon=10.0)).level
    'hopeless'
    """
    if not plan.private:
        return None
    facts, budget = plan.facts, plan.budget_epsilon
    count = members(facts, plan.labels)
    weight = weigh(budget, count, facts.image_shape)
    least = _LEAST * budget * count / weight
    stated = plan.label_source == "stated"  # then no class has fewer
    a_class = (" in the smallest class" if stated else " a class") if facts.classes > 1 else ""
    having = f"about {count:,.0f} {facts.unit}s{a_class} at epsilon {format_epsilon(budget)}"
    if weight < _LEAST:
        enough = math.ceil(10 * least / count) / 10
        needed = f"{math.ceil(least / budget):,}{a_class}, or an epsilon of {format_epsilon(enough)}"
        return Expectation("hopeless", f"{having} are too few: images will be noise. It takes about {needed}")
    if plan.kind.name == "record":
        # each record of a sample, or person, adds at most C; noise is of length C sigma sqrt(n d)
        sampled = plan.sampling_rate * facts.units
        noise = plan.noise_multiplier * math.sqrt(plan.generated * facts.pixels) / sampled
        return None if noise <= _MOST_NOISE else Expectation("hopeless", _drowned(having, noise))
    if plan.kind.name != "moments":
        return None
    _, low, high = next(row for row in reversed(MEASURED) if weight >= row[0])
    often = f"{low} to {high} % as often as those trained on the records"
    text = f"{having}: classifiers trained on samples are right {often}"
    if weight < _ENOUGH:
        text += "; single images will look poor"
    if facts.classes > 1 and not stated:
        fewest, few = (math.ceil(least * part / budget) for part in (1, _ENOUGH / _LEAST))
        text += f". A class of fewer than {fewest:,} will be noise, one of fewer than {few:,} will look poor"
    return Expectation("weak" if weight < _ENOUGH else "fine", text)


def _drowned(having: str, noise: float) -> str:
    return (
        f"{having} are too few for record: the noise of a step is {noise:,.0f} times as long as all that its "
        "records can add, so images will be noise. The recipe mixture needs far fewer"
    )


def weigh(epsilon: float, members: float, image_shape: tuple[int, int, int]) -> float:
    """Return ε times the records of a class, as it would be for images of 28 x 28 that are as noisy.

    Noise weighs as the root of the pixels. Colour images took nine times as much as grey ones wherever both
    were measured: three times the numbers, of pictures that vary more.

    >>> weigh(10, 100, (1, 28, 28)), weigh(10, 100, (1, 14, 14)), weigh(9, 100, (3, 32, 32))
    (1000.0, 2000.0, 100.0)
    """
    channels, height, width = image_shape
    return epsilon * members / (channels**2 * math.sqrt(min(height * width, _PIXELS) / _PIXELS))
