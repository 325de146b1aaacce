"""What a curator should hear before a plan is carried out. It tells of the private data: for no one else."""

from __future__ import annotations

from collections.abc import Iterator

from dpsinkhorn.data import Dataset
from dpsinkhorn.training.expectation import expectation
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
