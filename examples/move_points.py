"""Move public points towards a private data set, by a noisy potential on a public grid.

    python examples/move_points.py [PICTURE.png]

The potential ψ of entropic transport between the private records and a public grid is released once, by noisy
Sinkhorn with the grid as its public side: ψ alone leaves the records, with noise that falls with their
number. All the rest is post-processing: ψ is smoothed by a polynomial, and public points move against its
gradient. For the squared distance T(p) = p - ∇ψ(p)/2 is the transport map.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.transport import noisy_sinkhorn

_Array = npt.NDArray[np.float64]
DEGREE = 3
BOUND = 2.0  # squared distance of two points of the unit square, at most


def private_records(count: int, seed: int = 0) -> _Array:
    """Records near the upper right of the unit square."""
    rng = np.random.default_rng(seed)
    return (np.array([0.7, 0.65]) + 0.12 * rng.normal(size=(count, 2))).clip(0, 1)


def public_grid(side: int = 9) -> _Array:
    return np.stack(np.meshgrid(*[np.linspace(0, 1, side)] * 2, indexing="ij"), -1).reshape(-1, 2)


def monomials(points: _Array) -> tuple[_Array, _Array]:
    """All monomials of degree 1 to 3 in two variables, ``(n, k)``, and their gradients, ``(n, k, 2)``."""
    x, y = points[:, 0], points[:, 1]
    powers = [(i, j) for i in range(DEGREE + 1) for j in range(DEGREE + 1 - i) if i + j]
    values = np.stack([x**i * y**j for i, j in powers], axis=1)
    gradient_x = np.stack([i * x ** max(i - 1, 0) * y**j for i, j in powers], axis=1)
    gradient_y = np.stack([j * x**i * y ** max(j - 1, 0) for i, j in powers], axis=1)
    return values, np.stack([gradient_x, gradient_y], axis=-1)


def transport_map(records: _Array, *, epsilon: float, noise: NoiseSource | None = None) -> _Array:
    """Coefficients of the smoothed potential: (ε, 1e-5)-DP in the records."""
    grid = public_grid()
    found = noisy_sinkhorn(
        records,
        grid,
        epsilon=epsilon,
        delta=1e-5,
        cost_bound=BOUND,
        regularization=0.5 * BOUND,
        public="y",
        iterations=1,
        noise=noise,
    )
    assert found.psi is not None
    values, _ = monomials(grid)
    design = np.column_stack([np.ones(len(grid)), values])
    coefficients, *_ = np.linalg.lstsq(design, found.psi, rcond=None)
    return np.asarray(coefficients[1:])


def move(points: _Array, coefficients: _Array) -> _Array:
    """T(p) = p - ∇ψ(p)/2, kept in the unit square."""
    _, gradients = monomials(points)
    return np.asarray((points - np.einsum("nkd,k->nd", gradients, coefficients) / 2).clip(0, 1))


def main(picture: Path | None = None, *, count: int = 20_000, seed: int | None = 0) -> float:
    records = private_records(count)
    start = np.random.default_rng(1).random((300, 2)) * 0.5  # public points, at the lower left
    noise = None if seed is None else SeededNoise(seed)  # a seed for this page; None for a release
    moved = move(start, transport_map(records, epsilon=1.0, noise=noise))
    # The distance is told of made-up records: of private ones it would have to be released like all else.
    before, after = (float(np.linalg.norm(p.mean(0) - records.mean(0))) for p in (start, moved))
    print(f"distance of the mean to that of the private records: {before:.3f} before, {after:.3f} after")
    if picture is not None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.scatter(*start.T, s=8, label="public points, before")
        axes.scatter(*moved.T, s=8, label="after: ε = 1, δ = 1e-5")
        axes.scatter(*records[:300].T, s=4, alpha=0.4, label="private records (shown here only)")
        axes.legend(fontsize="small")
        figure.savefig(picture, dpi=120)
        print(f"Written: {picture}")
    return after / before


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
