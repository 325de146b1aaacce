"""Power and level of the private two-sample test, per statistic.

    python benchmarks/two_samples.py --runs 200 --exact-runs 25 --null-runs 2000

Points of the unit cube in 3 dimensions, n = m, level 5 %, 199 relabellings, bound √3 on the Euclidean
distance. The reference is normal, of mean 0.5 and standard deviation 0.15 in each coordinate, cut to the
cube; against it

- shift: the first coordinate is 0.06 higher;
- mixture: the first coordinate is one of two normals of standard deviation 0.06, at 0.35 and 0.65;
- rare cluster: 5 % of the points are normal about (0.9, 0.9, 0.9), of standard deviation 0.03;
- spread: the standard deviation is 0.2;
- lost dependence: x has coordinates with a correlation of 0.64, y has independent ones.

Noise is seeded, so that the same command prints the same table.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.transport import Clouds, Setting, TwoSampleMechanism

_Array = npt.NDArray[np.float64]
_Pair = Callable[[np.random.Generator, int], tuple[_Array, _Array]]
D, BOUND, PERMUTATIONS = 3, math.sqrt(3), 199


def reference(rng: np.random.Generator, n: int, spread: float = 0.15) -> _Array:
    return rng.normal(0.5, spread, (n, D)).clip(0, 1)


def mixture(rng: np.random.Generator, n: int) -> _Array:
    points = reference(rng, n)
    points[:, 0] = rng.normal(np.where(rng.random(n) < 0.5, 0.35, 0.65), 0.06)
    return points.clip(0, 1)


def rare_cluster(rng: np.random.Generator, n: int) -> _Array:
    points = reference(rng, n)
    rare = rng.random(n) < 0.05
    points[rare] = rng.normal(0.9, 0.03, (int(rare.sum()), D))
    return points.clip(0, 1)


def dependent(rng: np.random.Generator, n: int) -> _Array:
    common = rng.normal(size=(n, 1))
    return (0.5 + 0.15 * (0.8 * common + 0.6 * rng.normal(size=(n, D)))).clip(0, 1)


PAIRS: dict[str, _Pair] = {
    "none (level)": lambda rng, n: (reference(rng, n), reference(rng, n)),
    "shift 0.06": lambda rng, n: (
        reference(rng, n),
        (reference(rng, n) + np.array([0.06, 0, 0])).clip(0, 1),
    ),
    "mixture": lambda rng, n: (reference(rng, n), mixture(rng, n)),
    "rare cluster": lambda rng, n: (reference(rng, n), rare_cluster(rng, n)),
    "spread": lambda rng, n: (reference(rng, n), reference(rng, n, spread=0.2)),
    "lost dependence": lambda rng, n: (dependent(rng, n), reference(rng, n)),
}


def rejections(
    pair: _Pair, statistic: str, n: int, runs: int, epsilons: list[float]
) -> tuple[dict[float, float], float]:
    """Return the part of the runs that is rejected at each ε, and that without noise."""
    setting = Setting(n, n, BOUND, dimension=D)
    plans = {
        epsilon: TwoSampleMechanism.plan(setting, statistic, epsilon=epsilon, permutations=PERMUTATIONS)  # type: ignore[arg-type]
        for epsilon in epsilons
    }
    rejected = dict.fromkeys(epsilons, 0)
    noiseless = 0
    for run in range(runs):
        noise = SeededNoise(run)
        x, y = pair(np.random.default_rng([1, run]), n)
        clouds = Clouds.of(x, y, cost_bound=BOUND, cost="euclidean")
        values, at = plans[epsilons[0]].values(clouds, noise)  # the same at every ε
        for epsilon, plan in plans.items():
            margin = plan.margin(plan.excess(values, at, noise), noise)
            rejected[epsilon] += plan.rejects(margin)
        noiseless += int((values >= values[at]).sum()) <= plans[epsilons[0]].rank
    return {epsilon: count / runs for epsilon, count in rejected.items()}, noiseless / runs


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="of mmd, for each alternative")
    parser.add_argument("--exact-runs", type=int, default=25, help="of the exact cost; 0 leaves it out")
    parser.add_argument("--null-runs", type=int, default=2000, help="of mmd without a difference")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--only", choices=list(PAIRS), nargs="+", default=list(PAIRS), help="differences")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 0.2])
    options = parser.parse_args()
    heads = [f"{statistic}, {at}" for statistic in ("mmd", "exact")[: 1 + (options.exact_runs > 0)]
             for at in (*(f"ε = {epsilon:g}" for epsilon in options.epsilons), "no noise")]  # fmt: skip
    print(f"n = m = {options.n}")
    print("| difference | " + " | ".join(heads) + " | runs |")
    print("|---|" + "---|" * (len(heads) + 1))
    for name in options.only:
        pair = PAIRS[name]
        runs = options.null_runs if name.startswith("none") else options.runs
        cells, counts = [], []
        for statistic, count in (("mmd", runs), ("exact", options.exact_runs)):
            if not count:
                continue
            found, without = rejections(pair, statistic, options.n, count, options.epsilons)
            cells += [f"{found[epsilon]:.3g}" for epsilon in options.epsilons] + [f"{without:.3g}"]
            counts.append(str(count))
        print(f"| {name} | " + " | ".join(cells) + f" | {', '.join(counts)} |", flush=True)


if __name__ == "__main__":
    main()
