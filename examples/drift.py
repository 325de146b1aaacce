"""Drift between two months of private records: is this month still like the last one?

    python examples/drift.py            # made-up records
    python examples/drift.py A.csv B.csv --columns age,amount --scale 100,5000

Each comparison is a release of ε = 1: a month that is compared with two others has spent 2.

Only what goes through `private_test` leaves the records. The scale of each column, and with it the bound on
the distance, is public knowledge of what the columns mean: it is never read off the records.

Where both months have one distribution, drift is found in 5 % of comparisons at most. A fifth of ε goes to
the effect, how far apart the months are: compare it with that of months that you know to be alike.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.transport import PrivateTest, private_test, read_points

COLUMNS, SCALE = ("age", "amount"), (100.0, 5000.0)
EPSILON = 1.0


def made_up_month(count: int, older: float, seed: int) -> npt.NDArray[np.float64]:
    """Age and amount of `count` customers; `older` shifts their age."""
    rng = np.random.default_rng(seed)
    age = rng.normal(40 + older, 12, count).clip(18, 100)
    amount = rng.gamma(2.0, 30 * age, count).clip(0, 5000)
    return np.stack([age, amount], axis=1)


def drift(
    before: npt.NDArray[np.float64],
    after: npt.NDArray[np.float64],
    scale: npt.ArrayLike,
    *,
    seed: int | None = None,
) -> PrivateTest:
    """Test whether the scaled columns of the two months have one distribution."""
    scale = np.asarray(scale, dtype=np.float64)
    return private_test(
        before / scale,
        after / scale,
        epsilon=EPSILON,
        cost_bound=math.sqrt(len(scale)),  # the distance of two points of the unit cube, at most
        effect_share=0.2,
        noise=None if seed is None else SeededNoise(seed),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="two tables; none for made-up records")
    parser.add_argument("--columns", default=",".join(COLUMNS))
    parser.add_argument("--scale", default=",".join(str(value) for value in SCALE))
    options = parser.parse_args(arguments)
    if options.files:
        first, second = options.files
        columns = options.columns.split(",")
        pairs = {"given": (read_points(first, columns), read_points(second, columns))}
    else:
        january = made_up_month(3000, older=0, seed=1)
        pairs = {
            "same customers' mix": (january, made_up_month(3000, older=0, seed=4)),
            "customers 3 years older": (january, made_up_month(3000, older=3, seed=3)),
        }
    for name, (before, after) in pairs.items():
        found = drift(before, after, [float(value) for value in options.scale.split(",")])
        low, high = found.effect_interval or (0.0, 0.0)
        verdict = "drift" if found.rejected else "no drift found"
        print(f"{name}: {verdict} at level {found.level:g}")
        print(f"  {found.statistic} {found.effect or 0.0:.4f}, 95% interval {low:.4f} to {high:.4f}")
        print(f"  ε = {found.epsilon:g}, {found.adjacency}")


if __name__ == "__main__":
    main()
