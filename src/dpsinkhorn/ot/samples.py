"""GeomLoss's ``SamplesLoss("sinkhorn")`` by its own conventions, solved to convergence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpsinkhorn.ot.costs import Cost, CostLike, Euclidean, as_cost
from dpsinkhorn.ot.divergence import transport_loss
from dpsinkhorn.ot.sinkhorn import check_settings, number


class HalfSquared(Cost):
    """``|x - y|^2 / 2``, the cost of p = 2."""

    symmetric = True

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return as_cost("sqeuclidean").pairwise(x, y).div_(2)

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
        return as_cost("sqeuclidean").gradient(x, y, plan).div_(2)


class SamplesLoss(nn.Module):
    """The Sinkhorn divergence with the arguments and the units of GeomLoss.

    The cost is |x - y|^2 / 2 for p = 2 and |x - y| for p = 1, λ = blur**p and ρ = reach**p; without a
    ``reach`` it is balanced. With ``debias`` the value is W(x, y) - W(x, x) / 2 - W(y, y) / 2, else W(x, y).
    Called as ``loss(x, y)`` or ``loss(a, x, b, y)``, clouds ``(n, d)`` or ``(batch, n, d)``.

    What differs: values are converged, whatever ``scaling`` says. ``backend``, ``diameter`` and ``verbose``
    have no effect; other losses, ``potentials=True`` and clustering are refused. Balanced weights
    must sum to one. ``cost`` is one of :mod:`dpsinkhorn.ot`.

    >>> loss = SamplesLoss("sinkhorn", p=2, blur=0.05)
    >>> x = torch.rand(8, 2, requires_grad=True)
    >>> loss(x, torch.rand(6, 2)).backward()
    """

    def __init__(
        self,
        loss: str = "sinkhorn",
        p: int = 2,
        blur: float = 0.05,
        reach: float | None = None,
        diameter: float | None = None,  # noqa: ARG002
        scaling: float = 0.5,  # noqa: ARG002
        cost: CostLike = None,
        debias: bool = True,
        potentials: bool = False,
        verbose: bool = False,  # noqa: ARG002
        backend: str = "auto",  # noqa: ARG002
        tolerance: float | None = None,
    ) -> None:
        super().__init__()
        if loss != "sinkhorn":
            raise ValueError(f"loss: expected 'sinkhorn', got {loss!r}")
        if p not in (1, 2):
            raise ValueError(f"p: expected 1 or 2, got {p!r}")
        if potentials:
            raise ValueError("potentials: cannot be had here; dpsinkhorn.ot.solve has f and g")
        strength = None if reach is None else number("reach", reach)
        if strength is not None and not strength > 0:
            raise ValueError(f"reach: expected a positive number or None, got {reach!r}")
        self.regularization = number("blur", blur) ** p
        self.options = {"tolerance": tolerance, "marginals": None if strength is None else strength**p}
        check_settings(self.regularization, **self.options)  # type: ignore[arg-type]
        self.cost = (Euclidean() if p == 1 else HalfSquared()) if cost is None else as_cost(cost)
        self.debias = debias

    def forward(self, *clouds: Tensor) -> Tensor:
        """Loss of two clouds, ``(x, y)`` or ``(a, x, b, y)``."""
        if len(clouds) not in (2, 4):
            raise ValueError(f"clouds: expected (x, y) or (a, x, b, y), got {len(clouds)} arguments")
        if not all(isinstance(each, Tensor) for each in clouds):
            raise ValueError("clouds: expected tensors; torch.as_tensor makes them of arrays and lists")
        a, x, b, y = clouds if len(clouds) == 4 else (None, clouds[0], None, clouds[1])
        for name, weights, points in (("a", a, x), ("b", b, y)):
            if weights is not None and weights.shape not in (points.shape[:-1], points.shape[-2:-1]):
                raise ValueError(
                    f"{name}: expected shape {tuple(points.shape[:-1])}, got {tuple(weights.shape)}"
                )
        masses = [torch.ones((), dtype=x.dtype) if w is None else w.sum(-1) for w in (a, b)]
        relaxed = self.options["marginals"] is not None
        if not relaxed and any(bool(((mass - 1).abs() > 1e-3).any()) for mass in masses):
            raise ValueError("weights: expected a sum of one on both sides, or a reach")

        def term(x: Tensor, a: Tensor | None, y: Tensor, b: Tensor | None) -> Tensor:
            options: dict[str, Any] = self.options
            return transport_loss(x, y, self.regularization, cost=self.cost, a=a, b=b, **options)

        value = term(x, a, y, b)
        if self.debias:
            value = value - term(x, a, x, a) / 2 - term(y, b, y, b) / 2
        if relaxed:  # GeomLoss's constant: as if the product of the masses were their mean, or square
            first, second = masses
            rest = (first - second).square() / 2 if self.debias else (first + second) / 2 - first * second
            value = value + self.regularization * rest
        return value
