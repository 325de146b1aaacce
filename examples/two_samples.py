"""Private two-sample test: do two private data sets come from one distribution?

    python examples/two_samples.py

Two tests of level α, both ε-DP:

- **By permutation of released statistics.** Records are counted on a public grid, with noise, once. From the
  noisy histograms everything else is post-processing: draw pairs of histograms under the hypothesis that both
  have the pooled weights, *with the same noise added*, and see how often their transport cost is as large.
- **By a calibrated threshold.** Release the Sinkhorn divergence of x and y with its noise and compare it with
  a threshold: the level of divergences between halves of *public* reference data of the same sizes, plus the
  quantile of the noise.

The test by histograms knows its null law from the release itself; the one by threshold needs public
reference data that look like the private ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsinkhorn.privacy import SecureNoise, SeededNoise
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.transport import Clouds, DirectMechanism, HistogramMechanism, NoisyHistograms
from dpsinkhorn.transport.histogram import project_to_simplex

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    statistic: float
    threshold: float

    @property
    def rejected(self) -> bool:
        return self.statistic > self.threshold


def by_permutation(
    x: _Array,
    y: _Array,
    support: _Array,
    *,
    bound: float,
    epsilon: float,
    level: float = 0.05,
    draws: int = 200,
    noise: NoiseSource | None = None,
    seed: int = 0,
) -> Verdict:
    """One release of both histograms, ε-DP; the rest is post-processing (the seed is not a secret)."""
    clouds = Clouds.of(x, y, cost_bound=bound)
    plan = HistogramMechanism.plan(clouds, support, epsilon=epsilon)
    found = plan.release(clouds, noise or SecureNoise())
    statistic = found.cost("entropic", 0.05 * bound)
    n, m = len(x), len(y)
    pooled = (n * found.x + m * found.y) / (n + m)
    rng = np.random.default_rng(seed)
    null = []
    for _ in range(draws):
        a, b = (
            project_to_simplex(
                (rng.multinomial(size, pooled) + rng.laplace(scale=2 / epsilon, size=len(pooled))) / size
            )
            for size in (n, m)
        )
        null.append(NoisyHistograms(a, b, found.costs).cost("entropic", 0.05 * bound))
    return Verdict(statistic, float(np.quantile(null, 1 - level)))


def by_threshold(
    x: _Array,
    y: _Array,
    reference: _Array,
    *,
    bound: float,
    epsilon: float,
    level: float = 0.05,
    draws: int = 40,
    noise: NoiseSource | None = None,
    seed: int = 0,
) -> Verdict:
    """One release of a divergence, ε-DP, against a threshold from public reference data."""
    clouds = Clouds.of(x, y, cost_bound=bound)
    plan = DirectMechanism.plan(clouds.setting, "divergence", regularization=0.2 * bound, epsilon=epsilon)
    statistic = plan.release(clouds, noise or SecureNoise())
    rng = np.random.default_rng(seed)
    null = []
    for _ in range(draws):
        sample = reference[rng.permutation(len(reference))[: len(x) + len(y)]]
        null.append(plan.value(Clouds.of(sample[: len(x)], sample[len(x) :], cost_bound=bound)))
    # half of the level for the sample, half for the noise, which exceeds b log(1/2p) with probability p
    threshold = float(np.quantile(null, 1 - level / 2)) + plan.scale * math.log(1 / level)
    return Verdict(statistic, threshold)


def main(runs: int = 5, size: int = 800) -> None:
    grid = np.stack(np.meshgrid(*[np.linspace(0.1, 0.9, 4)] * 2), -1).reshape(-1, 2)
    rng = np.random.default_rng(0)
    reference = rng.beta(2, 2, size=(4 * size, 2))
    for name, shift in (("one distribution", 0.0), ("two distributions", 0.15)):
        rejected = [0, 0]
        for run in range(runs):
            x = rng.beta(2, 2, size=(size, 2))
            y = (rng.beta(2, 2, size=(size, 2)) + np.array([shift, 0.0])).clip(0, 1)
            source = SeededNoise(run)  # so that this page prints the same; leave it out for a release
            first = by_permutation(x, y, grid, bound=1.0, epsilon=1.0, noise=source, draws=60)
            second = by_threshold(x, y, reference, bound=1.0, epsilon=1.0, noise=source, draws=10)
            rejected[0] += first.rejected
            rejected[1] += second.rejected
        print(
            f"{name}: rejected {rejected[0]} of {runs} by permutation, {rejected[1]} of {runs} by threshold"
        )


if __name__ == "__main__":
    main()
