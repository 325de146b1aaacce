"""The bounds of *Differentially Private Sinkhorn Algorithm* (Wang and Goldfeld), as functions.

For comparison and plots: none of them is what a guarantee here rests on. Symbols: η `regularization`, c̄
`bound`, σ `adaptive`, M `floor`, a₀ = F(θ₀) - F* `initial_gap`, Δ `suboptimality` (Eq. 18), ν = e^(6c̄). Where
the text contradicts itself, what is evaluated, and why, is said here and in docs/transport.md. What leaves
the range of float64 is infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsinkhorn.errors import TransportError
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.algorithm import paper_sensitivity


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


def lemma1(bound: float) -> tuple[float, float]:
    """Return bounds on |φ'_k| and |ψ'_k| in every coordinate."""
    return 2 * bound, 3 * bound


def lemma2(bound: float, regularization: float) -> tuple[float, float]:
    """Return L_η and τ_η: blockwise smoothness and joint strong convexity of F_η."""
    ratio = 6 * bound / regularization
    return _exp(ratio) / (2 * regularization), _exp(-ratio) / (2 * regularization)


def lemma3(bound: float, regularization: float) -> tuple[float, float]:
    """Factors of |θ_k - θ_{k+1}|² in the bounds on the gap, from above, and on the descent, from below."""
    smooth, convex = lemma2(bound, regularization)
    return (4 * smooth**2 / convex if convex else math.inf), convex / 2


def lemma4(
    bound: float, regularization: float, *, floor: float, adaptive: float = 0.0
) -> tuple[float, float, float]:
    """As Lemma 3 with noise: the two factors of |θ_k - θ'_{k+1}|², and what the descent loses to noise."""
    gap, descent = lemma3(bound, regularization)
    return gap, descent * (1 - adaptive**2), descent * floor


def theorem1_rate(bound: float, regularization: float, *, adaptive: float = 0.0) -> float:
    """Return ρ: by which part the gap shrinks in a step."""
    return (1 - adaptive**2) / 8 * _exp(-24 * bound / regularization)


def theorem1(
    initial_gap: float,
    iterations: int,
    *,
    bound: float,
    regularization: float,
    floor: float,
    adaptive: float = 0.0,
) -> float:
    """Return a bound on the gap of the noisy iterates after K steps.

    It does not hold everywhere: its proof counts the noise of 2n coordinates as that of one, and takes the
    strong convexity for the smoothness (see docs/transport.md for a map).
    """
    rate = theorem1_rate(bound, regularization, adaptive=adaptive)
    _, convex = lemma2(bound, regularization)
    left = math.exp(iterations * math.log1p(-rate))
    if rate == 0.0:  # underflow: (1 - left) / rate tends to K
        return initial_gap + iterations * convex * floor / 2
    return left * initial_gap - math.expm1(iterations * math.log1p(-rate)) * convex * floor / (2 * rate)


def theorem2(
    iterations: int, delta: float, *, n: int, bound: float, regularization: float, floor: float
) -> float:
    """Return ε as printed. **Not a valid guarantee**: see docs/proofs/noisy-sinkhorn.md.

    With C = Δ₂/2, as printed; a Gaussian mechanism would have Δ₂²/2. The optimal order of its own proof gives
    twice the root.
    """
    spent = iterations * paper_sensitivity(n, bound, regularization) / 2 / floor
    return spent + math.sqrt(spent * math.log(1 / delta))


def theorem2_noise(
    epsilon: float, delta: float, iterations: int, n: int, bound: float, regularization: float
) -> float:
    """Return M for which Theorem 2 gives ε in K steps."""
    checks.positive(epsilon=epsilon, delta=delta)
    log = math.log(1 / delta)
    root = 2 * epsilon / (math.sqrt(log) + math.sqrt(log + 4 * epsilon))
    return iterations * paper_sensitivity(n, bound, regularization) / 2 / root**2


def remark2(floor: float, adaptive: float, decay: float, iterations: int) -> float:
    """What replaces M in Theorem 2 where |θ_k - θ'_{k+1}| >= decay^k. It depends on the data all the same."""
    return float(adaptive**2 * decay**iterations + floor)


def optimal_order(epsilon: float, delta: float) -> tuple[float, float]:
    """Return α with (α - 1)² = α log(1/δ)/ε, and the part log(1/δ)/(α - 1) of ε that the conversion takes."""
    checks.positive(epsilon=epsilon, delta=delta)
    log = math.log(1 / delta)
    half = 1 + log / (2 * epsilon)
    order = half + math.sqrt(half**2 - 1)
    return order, log / (order - 1)


def _left(epsilon: float, delta: float) -> float:
    return epsilon - optimal_order(epsilon, delta)[1]


def _utility(constant: float, epsilon: float, delta: float, initial_gap: float) -> float:
    """X (a₀ - log X) with X = constant / (ε - ε̲), as in Eq. (7) and (17)."""
    part = constant / _left(epsilon, delta)
    if math.isinf(part):
        return math.inf
    return part * (initial_gap - math.log(part))


def equation17(
    epsilon: float, delta: float, *, n: int, bound: float, regularization: float, initial_gap: float
) -> float:
    """Return the privacy-utility function with its exact constant C̃_η.

    As printed; minimising the utility of its own proof gives half of C̃_η, and X (1 + log(a₀/X)).
    """
    ratio, order = 6 * bound / regularization, optimal_order(epsilon, delta)[0]
    shrink = -math.log1p(-_exp(-4 * ratio) / 8)
    if shrink == 0.0:
        return math.inf
    grown = _exp(ratio) * 4 * regularization * bound / n
    log = math.log1p(grown) if math.isfinite(grown) else ratio + math.log(4 * regularization * bound / n)
    return _utility(2 * order * _exp(3 * ratio) * log / shrink, epsilon, delta, initial_gap)


def _simple_constant(n: int, bound: float, regularization: float) -> float:
    """C_η = 32 η ν^(8/η) log(ν) / 3n. Its own derivation has a factor α, which the text drops."""
    return 32 * regularization * _exp(48 * bound / regularization) * 6 * bound / (3 * n)


def corollary1(
    epsilon: float, delta: float, *, n: int, bound: float, regularization: float, initial_gap: float
) -> float:
    """Return the privacy-utility function of noisy Sinkhorn, with the simplified constant, as printed."""
    return _utility(_simple_constant(n, bound, regularization), epsilon, delta, initial_gap)


def theorem3(
    epsilon1: float,
    epsilon2: float,
    delta: float,
    *,
    n: int,
    bound: float,
    regularization: float,
    initial_gap: float,
    suboptimality: float,
) -> tuple[float, float]:
    """Return u⁽¹⁾, of the Laplace stage with ε₁, and u⁽²⁾, of noisy Sinkhorn with ε₂.

    C'_η is taken as its proof has it, n c̄ √(8/η) ν^(3/2η); as typeset the root covers all of it.
    """
    limit = _largest_regularization(n, bound, suboptimality)
    if regularization > limit:
        raise TransportError(
            f"Theorem 3 needs a regularization of at most {limit:.4g}, not {regularization:g}"
        )
    first = theorem4(n, regularization, suboptimality) + 4 * math.sqrt(2) * bound / (n * epsilon1)
    inner = corollary1(
        epsilon2, delta, n=n, bound=bound, regularization=regularization, initial_gap=initial_gap
    )
    factor = n * bound * math.sqrt(8 / regularization) * _exp(9 * bound / regularization)
    return first, factor * math.sqrt(inner) if inner > 0 else 0.0


def _largest_regularization(n: int, bound: float, suboptimality: float) -> float:
    """Return the largest η that Theorem 3 takes."""
    return min(suboptimality / (1 + math.log(n)), 2 * bound / (n * math.log(n)) if n > 1 else math.inf)


def theorem4(n: int, regularization: float, suboptimality: float, scale: float = 0.0) -> float:
    """How far <c, π_η> plus Laplace noise of this scale is from the exact cost, for η <= Δ / (1 + log n)."""
    exponent = -suboptimality / regularization + 1 + math.log(n)
    return suboptimality * _exp(exponent) + math.sqrt(2) * scale


def theorem5(sensitivity: float, scale: float) -> float:
    """Return ε of the Laplace stage."""
    return sensitivity / scale


def lemma5(n: int, bound: float, regularization: float) -> float:
    """Sensitivity of <c, π_η>, the linear part of the entropic cost at its exact plan."""
    by_stability = bound * math.sqrt(bound / (2 * n * regularization)) * _exp(bound / regularization)
    return 2 * bound / n + min(regularization * math.log(n), bound, by_stability)


def theorem6(
    initial_gap: float,
    iterations: int,
    *,
    n: int,
    bound: float,
    regularization: float,
    floor: float,
    adaptive: float = 0.0,
) -> float:
    """Return a bound on <c, π_k - π_η>, with the constants of its proof.

    As printed C̃_η and ρ are garbled (n c̄ √2 went from the one to the other); the proof gives
    C̃_η = n c̄ (√2/η) e^(6c̄/η), and ρ of Theorem 1.
    """
    _, convex = lemma2(bound, regularization)
    gap = theorem1(
        initial_gap, iterations, bound=bound, regularization=regularization, floor=floor, adaptive=adaptive
    )
    factor = n * bound * math.sqrt(2) / regularization * _exp(6 * bound / regularization)
    return factor * math.sqrt(2 / convex * gap) if convex else math.inf


@dataclass(frozen=True)
class TwoStageBound:
    """Where a bound of the two-stage mechanism is least."""

    value: float
    regularization: float
    epsilon1: float
    epsilon2: float


def corollary2(
    epsilon: float, delta: float, *, n: int, bound: float, initial_gap: float, suboptimality: float
) -> TwoStageBound:
    """The overall privacy-utility function: the least of Theorem 3 over η and the split of ε, on a grid."""
    limit = min(_largest_regularization(n, bound, suboptimality), math.inf if n > 1 else bound)
    best = TwoStageBound(math.inf, limit, epsilon / 2, epsilon / 2)
    for share in np.linspace(0.05, 0.95, 19):
        for eta in limit * np.geomspace(1e-2, 1.0, 25):
            first, second = theorem3(
                epsilon * share, epsilon * (1 - share), delta,
                n=n, bound=bound, regularization=float(eta), initial_gap=initial_gap,
                suboptimality=suboptimality,
            )  # fmt: skip
            if first + second < best.value:
                best = TwoStageBound(first + second, float(eta), epsilon * share, epsilon * (1 - share))
    return best


def equation13(
    regularization: float,
    epsilon2: float,
    delta: float,
    *,
    n: int,
    bound: float,
    initial_gap: float,
    suboptimality: float,
) -> float:
    """Return the objective by which the paper chooses η.

    Δ and a₀ are private: give public bounds. C₃ is ε₂ - ε̲, where the text prints its inverse: only so
    does it follow from (11), and less noise at larger ε₂.
    """
    left = _left(epsilon2, delta)
    ratio = 6 * bound / regularization
    inside = initial_gap + 8 / regularization * (math.log(regularization / left) + 6 * bound)
    if inside <= 0:
        return math.inf
    first = n * suboptimality * math.e * _exp(-suboptimality / regularization)
    return first + 8 * n * bound * _exp(11 * ratio / 2) * math.sqrt(inside / (left * regularization))


def regularization_by_equation13(
    epsilon2: float, delta: float, *, n: int, bound: float, initial_gap: float, suboptimality: float
) -> float:
    """Return η by Eq. (13), from public bounds on Δ and a₀: the best on a grid from c̄/100 to 100 c̄."""
    grid = bound * np.geomspace(1e-2, 1e2, 401)
    values = [
        equation13(
            float(eta), epsilon2, delta,
            n=n, bound=bound, initial_gap=initial_gap, suboptimality=suboptimality,
        )
        for eta in grid
    ]  # fmt: skip
    return float(grid[int(np.argmin(values))])
