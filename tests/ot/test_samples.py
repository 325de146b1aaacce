"""GeomLoss's conventions: against our own losses, and against GeomLoss where it is installed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpsinkhorn.ot import SamplesLoss, empirical_loss


def clouds() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """a, x, b, y."""
    generator = torch.Generator().manual_seed(0)
    x, y, a, b = (
        torch.rand(*shape, generator=generator).double() for shape in ((12, 2), (9, 2), (12,), (9,))
    )
    return a / a.sum(), x, b / b.sum(), y + 0.2


def test_balanced_values():
    a, x, b, y = clouds()
    for p, cost, factor in ((2, "sqeuclidean", 4), (1, "euclidean", 2)):
        regularization = 2 * 0.3**2 if p == 2 else 0.3
        found = SamplesLoss("sinkhorn", p=p, blur=0.3)(a, x, b, y)
        expected = empirical_loss(x, y, regularization, cost=cost, a=a, b=b) / factor
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-10)
    many = SamplesLoss("sinkhorn", 2, 0.3)(torch.stack([x, 2 * x]), torch.stack([y, y]))
    torch.testing.assert_close(many[1], SamplesLoss("sinkhorn", 2, 0.3)(2 * x, y))


@pytest.mark.parametrize("debias", [True, False])
def test_gradients_with_a_reach_by_finite_differences(debias: bool):
    a, x, b, y = clouds()
    loss = SamplesLoss("sinkhorn", p=2, blur=0.5, reach=0.7, debias=debias, tolerance=1e-12)
    inputs = tuple(each.requires_grad_() for each in (1.3 * a[:4], x[:4], 0.7 * b[:3], y[:3]))
    assert torch.autograd.gradcheck(loss, inputs, eps=1e-5, atol=1e-5)


def test_values_of_geomloss():
    geomloss = pytest.importorskip("geomloss")
    a, x, b, y = clouds()
    for p in (1, 2):
        for reach, mass in ((None, 1.0), (0.5, 1.0), (0.5, 1.3)):
            settings = {"p": p, "blur": 0.3, "reach": reach}
            theirs = geomloss.SamplesLoss("sinkhorn", **settings, scaling=0.99, backend="tensorized")
            found = SamplesLoss("sinkhorn", **settings)(mass * a, x, b, y)
            assert found.item() == pytest.approx(theirs(mass * a, x, b, y).item(), rel=2e-3)


def test_what_is_not_supported_is_named():
    for name, arguments in [
        ("loss", {"loss": "energy"}),
        ("p", {"p": 3}),
        ("potentials", {"potentials": True}),
        ("reach", {"reach": -1.0}),
        ("reach", {"reach": "a"}),
        ("blur", {"blur": None}),
        ("regularization", {"blur": 0.0, "reach": 1.0}),
    ]:
        with pytest.raises(ValueError, match=f"^{name}: "):
            SamplesLoss(**arguments)
    a, x, b, y = clouds()
    for name, given in [
        ("clouds", (x, y, x)),
        ("clouds", (x.numpy(), y.numpy())),
        ("clouds", ([[0.0]], y)),
        ("clouds", (a, a, x, b, b, y)),
        ("a", (a[:, None], x, b, y)),
        ("b", (a, x, b[1:], y)),
        ("weights", (2 * a, x, b, y)),
    ]:
        with pytest.raises(ValueError, match=f"^{name}: "):
            SamplesLoss()(*given)
    a, x, b, y = clouds()
    with pytest.raises(ValueError, match=r"^weights: .*reach"):
        SamplesLoss()(2 * a, x, b, y)
    with pytest.raises(ValueError, match=r"^clouds: "):
        SamplesLoss()(a, x, y)
