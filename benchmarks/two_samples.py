"""Power and level of the private two-sample test, per statistic.

    python benchmarks/two_samples.py --statistics mmd sliced --n 500 --runs 300
    python benchmarks/two_samples.py --statistics exact --only "rare cluster" --n 500 --runs 300
    python benchmarks/two_samples.py --statistics mmd sliced --only "none (level)" --n 500 --runs 2000
    python benchmarks/two_samples.py --statistics mmd --only "none (level)" --n 500 --first 2000 --runs 2000
    python benchmarks/two_samples.py --noise-alone --first 100000 --runs 20000
    python benchmarks/two_samples.py --table

Runs have numbers, which they are seeded by; `--first` adds runs to those that are there. Every command adds
to benchmarks/results/two_samples.json; the last one prints all that is in it.

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

import json
import math
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.transport import Clouds, Setting, TwoSampleMechanism

_Array = npt.NDArray[np.float64]
_Pair = Callable[[np.random.Generator, int], tuple[_Array, _Array]]
RESULTS = Path(__file__).parent / "results" / "two_samples.json"
STATISTICS = ("mmd", "sliced", "exact")
EPSILONS = (1.0, 0.2)
D, BOUND, PERMUTATIONS = 3, math.sqrt(3), 199
CENTER = [0.5] * D  # of the cube, for sliced


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


def rejections(pair: _Pair, statistic: str, n: int, runs: range) -> dict[str, int]:
    """Return how many of the runs are rejected at each ε, and without noise."""
    setting = Setting(n, n, BOUND, dimension=D)
    plans = {
        epsilon: TwoSampleMechanism.plan(
            setting,
            statistic,  # type: ignore[arg-type]
            epsilon=epsilon,
            permutations=PERMUTATIONS,
            center=CENTER,
        )
        for epsilon in EPSILONS
    }
    rejected = dict.fromkeys((*(f"{epsilon:g}" for epsilon in EPSILONS), "no noise"), 0)
    for run in runs:
        noise = SeededNoise(run)
        x, y = pair(np.random.default_rng([1, run]), n)
        clouds = Clouds.of(x, y, cost_bound=BOUND, cost="euclidean")
        values, at = plans[EPSILONS[0]].values(clouds, noise)  # the same at every ε
        for epsilon, plan in plans.items():
            rejected[f"{epsilon:g}"] += plan.rejects(plan.margin(plan.excess(values, at, noise), noise))
        others = np.delete(values.numpy(), at)
        rejected["no noise"] += int(float(values[at]) > np.sort(others)[-plans[EPSILONS[0]].rank])
    return rejected


def noise_alone(runs: range) -> float:
    """Return the part of the runs that is rejected where all labellings have one value, whatever ε is."""
    setting = Setting(500, 500, BOUND, dimension=D)
    plan = TwoSampleMechanism.plan(setting, "mmd", epsilon=1.0, permutations=PERMUTATIONS)
    equal, rejected = torch.zeros(PERMUTATIONS + 1, dtype=torch.float64), 0
    for run in runs:
        noise = SeededNoise(run)
        noise.words(4)  # labellings are drawn by these
        rejected += plan.rejects(plan.margin(plan.excess(equal, 0, noise), noise))
    return rejected / len(runs)


def table(found: dict[str, Any]) -> None:
    """Print a row for each difference and size: every statistic at every ε, and how many runs they are of."""
    levels = (*(f"{epsilon:g}" for epsilon in EPSILONS), "no noise")
    for n in sorted({each["n"] for each in found.values()}):
        here = {(each["difference"], each["statistic"]): each for each in found.values() if each["n"] == n}
        statistics = [name for name in STATISTICS if any(key[1] == name for key in here)]
        heads = [
            f"{name}, {'ε = ' * (level != 'no noise')}{level}" for level in levels for name in statistics
        ]
        print(f"\nn = m = {n}\n\n| difference | " + " | ".join([*heads, "runs"]) + " |")
        print("|---|" + "---|" * (len(heads) + 1))
        for difference in PAIRS:
            cells = [
                f"{here[difference, name]['rejected'][level]:.3g}" if (difference, name) in here else "–"
                for level in levels
                for name in statistics
            ]
            counts = [
                str(here[difference, name]["runs"]) for name in statistics if (difference, name) in here
            ]
            print(f"| {difference} | " + " | ".join([*cells, ", ".join(counts)]) + " |")


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--statistics", choices=STATISTICS, nargs="+", default=["mmd", "sliced"])
    parser.add_argument("--only", choices=list(PAIRS), nargs="+", default=list(PAIRS)[1:], help="differences")
    parser.add_argument("--noise-alone", action="store_true", help="print how often noise alone rejects")
    parser.add_argument("--table", action="store_true", help="print what was measured, and measure nothing")
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if options.table:
        table(found)
        return
    if options.noise_alone:
        print(noise_alone(range(options.first, options.first + options.runs)))
        return
    for name in options.only:
        for statistic in options.statistics:
            last = options.first + options.runs
            counts = rejections(PAIRS[name], statistic, options.n, range(options.first, last))
            print(name, statistic, options.n, {at: k / options.runs for at, k in counts.items()}, flush=True)
            key = f"{name}, {statistic}, {options.n}"
            if options.first:
                before = found[key]
                if before["runs"] != options.first:
                    raise SystemExit(
                        f"{key}: there are {before['runs']} runs; begin with --first {before['runs']}"
                    )
                counts = {at: k + round(before["rejected"][at] * options.first) for at, k in counts.items()}
            found[key] = {
                "difference": name,
                "statistic": statistic,
                "n": options.n,
                "runs": last,
                "rejected": {at: count / last for at, count in counts.items()},
            }
            RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
