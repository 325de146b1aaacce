"""Slow, obvious references for the mechanisms, written from the definitions, and neighbouring samples.

Nothing here is shared with what is tested: gradients come from autograd, records are clipped one at a time,
and Sinkhorn is the plain log-domain iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.ot import L1L2, Cityblock, Cost, SquaredEuclidean
from dpsinkhorn.privacy import SeededNoise

COSTS: tuple[Cost, ...] = (SquaredEuclidean(), Cityblock(), L1L2(1.0), L1L2(3.0))


def pair_costs(cost: Cost, x: Tensor, y: Tensor) -> Tensor:
    """``c(x_i, y_j)`` from differences, ``(n, m)``."""
    difference = x[:, None, :] - y[None, :, :]
    if isinstance(cost, SquaredEuclidean):
        return difference.square().sum(-1)
    if isinstance(cost, Cityblock):
        return difference.abs().sum(-1)
    assert isinstance(cost, L1L2)
    return difference.square().sum(-1) + cost.l1_weight * difference.abs().sum(-1)


def share(cost: Cost, x: Tensor, y: Tensor, regularization: float) -> Tensor:
    """A record's share v(y): the gradient in x of its term -λ log Σ_i exp(-c(x_i, y) / λ)."""
    x = x.detach().double().requires_grad_()
    costs = pair_costs(cost, x, y.double()[None])[:, 0]
    term = -regularization * torch.logsumexp(-costs / regularization, 0)
    (gradient,) = torch.autograd.grad(term, x)
    return gradient


def clipped(value: Tensor, bound: float) -> Tensor:
    norm = float(value.norm())
    return value if norm <= bound else value * (bound / norm)


def record_sum(
    cost: Cost, x: Tensor, x_labels: Tensor | None, sample: Sample, regularization: float, clip: float
) -> Tensor:
    """``Σ clip(v, C)`` over records, or over persons where the sample names them: one at a time."""
    units: dict[int, list[int]] = {}
    for row in range(len(sample.points)):
        units.setdefault(row if sample.groups is None else int(sample.groups[row]), []).append(row)
    total = torch.zeros(x.shape, dtype=torch.float64)
    for rows in units.values():
        unit = torch.zeros_like(total)
        for row in rows:
            if x_labels is None or sample.labels is None:
                own = torch.ones(len(x), dtype=torch.bool)
            else:
                own = x_labels == sample.labels[row]
            if own.any():
                unit[own] += share(cost, x[own], sample.points[row], regularization)
        total += clipped(unit, clip)
    return total


def transport(costs: Tensor, regularization: float, unrolled: int = 60) -> Tensor:
    """W_λ as its dual value, by the plain iteration in the log domain, the last ones under autograd."""
    n, m = costs.shape
    log_a, log_b = -math.log(n), -math.log(m)

    def sweep(g: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        f = -regularization * torch.logsumexp((g[None, :] - c) / regularization + log_b, 1)
        return f, -regularization * torch.logsumexp((f[:, None] - c) / regularization + log_a, 0)

    g = costs.new_zeros(m)
    with torch.no_grad():
        for _ in range(100):
            for _ in range(200):
                f, g = sweep(g, costs)
            plan = torch.exp((f[:, None] + g[None, :] - costs) / regularization + log_a + log_b)
            if float((plan.sum(1) - 1 / n).abs().sum()) < 1e-9:
                break
        else:
            raise AssertionError("the reference has not converged")
    for _ in range(unrolled):
        f, g = sweep(g, costs)
    return f.mean() + g.mean()


def with_onehot(points: Tensor, labels: Tensor | None, classes: int, label_weight: float) -> Tensor:
    if labels is None:
        return points
    columns = torch.zeros(len(points), classes, dtype=points.dtype)
    for row, label in enumerate(labels.tolist()):
        columns[row, label] = label_weight
    return torch.cat([points, columns], 1)


def sinkhorn_gradient(
    cost: Cost,
    points: Tensor,
    labels: Tensor | None,
    sample: Sample,
    regularization: float,
    extra: int,
    classes: int = 0,
    label_weight: float = 15.0,
) -> Tensor:
    """Gradient of 2 W(x[0:n], y) - W(x[0:n], x[n':n+n']) in x, by autograd through converged Sinkhorn."""
    n = len(points) - extra
    x = points.detach().double().requires_grad_()
    full = with_onehot(x, labels, classes, label_weight)
    loss = -transport(pair_costs(cost, full[:n], full[extra : n + extra]), regularization)
    if len(sample.points):
        y = with_onehot(sample.points.double(), sample.labels, classes, label_weight)
        loss = loss + 2 * transport(pair_costs(cost, full[:n], y), regularization)
    (gradient,) = torch.autograd.grad(loss, x)
    return gradient


@lru_cache(maxsize=1)
def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's digits: ``(1797, 64)`` in [-1, 1] and their labels."""
    data = load_digits()
    points = torch.tensor(data.data / 8 - 1, dtype=torch.float32)
    return points, torch.tensor(data.target, dtype=torch.int64)


def joined(first: Sample, second: Sample) -> Sample:
    """Both samples in one; persons of the second get numbers of their own."""

    def cat(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        return None if a is None or b is None else torch.cat([a, b])

    points = torch.cat([first.points, second.points])
    return Sample(points, cat(first.labels, second.labels), cat(first.groups, second.groups))


def neighbours(images: Tensor, labels: Tensor | None, *, persons: bool = False, seed: int = 0) -> list:
    """Named pairs (sample, the same with one unit more): real digits and records chosen to do harm.

    ``images`` and ``labels`` are the public generated ones, which an adversary knows.
    """
    points, kinds = digits()
    rng = np.random.default_rng(seed)
    if labels is None:
        kinds = torch.zeros_like(kinds)

    def take(count: int) -> Tensor:
        return torch.from_numpy(rng.choice(len(points), size=count, replace=False))

    def sample(rows: Tensor, values: Tensor | None = None, person: int = 0, each: int = 1) -> Sample:
        values = points[rows] if values is None else values
        groups = person + torch.arange(len(values)) // each if persons else None
        return Sample(values, kinds[rows] if labels is not None else None, groups)

    def unit(values: Tensor, kind: int | None = None) -> Sample:
        """One unit: a record, or a person with these records."""
        kind = 0 if labels is None else int(labels[0]) if kind is None else kind
        rows = torch.full((len(values),), kind)
        groups = torch.full((len(values),), 10**6) if persons else None
        return Sample(values, rows if labels is not None else None, groups)

    nothing = sample(take(0))
    real = sample(take(60), each=3)
    one = points[take(1)]
    same = sample(torch.full((1000,), 7), each=4)
    corner = torch.ones(1, 64)
    pairs = {
        "a digit": (real, unit(one)),
        "a digit to nothing": (nothing, unit(one)),
        "a far corner": (real, unit(corner)),
        "the opposite corner": (sample(take(5)), unit(-corner)),
        "a huge record": (real, unit(1e30 * torch.randn(1, 64, generator=torch.Generator().manual_seed(1)))),
        "NaN": (real, unit(torch.full((1, 64), math.nan))),
        "infinity": (real, unit(torch.full((1, 64), math.inf))),
        "one more of a thousand": (same, unit(points[7:8], int(kinds[7]))),
        "equal to an image": (real, unit(images[:1].float())),
        "next to an image": (real, unit(images[:1].float() + 1e-4)),
        "among NaN": (sample(take(3), torch.full((3, 64), math.nan)), unit(one)),
        "no such class": (real, unit(one, 99)),
        "opposite of the rest": (unit_rows(corner, sample), unit(-corner)),
    }
    if persons:
        many = points[take(40)]
        pairs["a person of many records"] = (real, unit(many))
        pairs["a person of one record 500 times"] = (real, unit(one.expand(500, -1)))
        pairs["a person of opposite records"] = (real, unit(torch.cat([corner, -corner] * 50)))
    return [(name, before, joined(before, added)) for name, (before, added) in pairs.items()]


def unit_rows(corner: Tensor, sample: Callable[..., Sample]) -> Sample:
    return sample(torch.zeros(1, dtype=torch.int64), corner)


class CountingNoise(SeededNoise):
    """Notes every request for random words."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.requests: list[int] = []

    def words(self, count: int, *, device="cpu") -> Tensor:
        self.requests.append(count)
        return super().words(count, device=device)
