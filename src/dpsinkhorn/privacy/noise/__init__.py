"""Noise: where random bits come from, and how noise is added so that floating point gives nothing away.

- `SecureNoise` (for releases) and `SeededNoise` (for tests and research) share the interface `NoiseSource`.
- `add_gaussian` and `add_laplace` add noise to private values on a public lattice, in whole numbers.

What is proven about them is in `docs/proofs/floating-point.md`.
"""

from dpsinkhorn.privacy.noise.exact import WordSource
from dpsinkhorn.privacy.noise.lattice import (
    ObservedNoise,
    Query,
    add_gaussian,
    add_laplace,
    announce,
    gaussian_std,
    laplace_scale,
)
from dpsinkhorn.privacy.noise.sources import (
    NoiseSource,
    SecureNoise,
    SeededNoise,
    laplace_cells,
    normal_cells,
)

__all__ = [
    "NoiseSource",
    "ObservedNoise",
    "Query",
    "SecureNoise",
    "SeededNoise",
    "WordSource",
    "add_gaussian",
    "add_laplace",
    "announce",
    "gaussian_std",
    "laplace_cells",
    "laplace_scale",
    "normal_cells",
]
