"""`batch`, `image`, `parameter` and non-private training against autograd through a converged Sinkhorn."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.none import NoPrivacy
from dpsinkhorn.mechanisms.parameter import Parameter
from dpsinkhorn.mechanisms.shared import clipping
from dpsinkhorn.mechanisms.shared import sinkhorn as gradients
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.ot import L1L2, Cityblock, Cost, SquaredEuclidean, with_labels
from dpsinkhorn.privacy import SeededNoise
from support.barriers import mechanism_of
from support.sanitizer_oracles import clipped, digits, sinkhorn_gradient

COSTS = (SquaredEuclidean(), L1L2(1.0), L1L2(3.0), Cityblock())
CLASSES = 10
EXACT = {"tolerance": 1e-10, "max_iterations": 5000}


def images(count: int, seed: int = 3) -> Tensor:
    """Close enough to each other for the plain iteration of the reference to converge."""
    return torch.tanh(torch.randn(count, 64, generator=torch.Generator().manual_seed(seed)) / 3)


def some_digits(count: int) -> Sample:
    points, labels = digits()
    return Sample(points[:count], labels[:count])


def close(value: Tensor, reference: Tensor, tolerance: float = 1e-5) -> None:
    assert float(reference.norm()) > 0
    assert float((value - reference).norm()) <= tolerance * float(reference.norm())


class TestAgainstAutograd:
    @pytest.mark.parametrize("regularization", [5.0, 30.0])
    @pytest.mark.parametrize("debias", [0.0, 0.4, 1.0])
    @pytest.mark.parametrize("cost", COSTS, ids=repr)
    def test_gradient_of_the_loss(self, cost: Cost, debias: float, regularization: float):
        barrier = mechanism_of(NoPrivacy, 1.0, 1.0, cost, regularization, debias, **EXACT)
        extra = barrier.resampled(10)
        parameter = nn.Parameter(images(10 + extra))
        sample = Sample(some_digits(12).points)
        barrier.backward(parameter * 1, None, sample, [parameter], SeededNoise(0))
        close(
            parameter.grad.double(), sinkhorn_gradient(cost, parameter, None, sample, regularization, extra)
        )

    @pytest.mark.parametrize("cost", COSTS, ids=repr)
    def test_gradient_with_labels(self, cost: Cost):
        """Labels enter the cost, and the gradient is of the pixels alone."""
        barrier = mechanism_of(NoPrivacy, 1.0, 1.0, cost, 8.0, 0.4, CLASSES, label_weight=2.0, **EXACT)
        labels = torch.cat([torch.arange(10), torch.arange(4)])
        x, sample = images(14), some_digits(12)
        value = barrier._gradient(x, labels, sample)
        reference = sinkhorn_gradient(cost, x, labels, sample, 8.0, 4, CLASSES, 2.0)
        close(value, reference)
        assert float((value - barrier._gradient(x, labels.flip(0), sample)).norm()) > 0.1
        torch.testing.assert_close(
            barrier._augmented(x, labels), with_labels(x.double(), labels, CLASSES, 2.0), rtol=0, atol=0
        )

    @pytest.mark.parametrize("clip", [0.05, 1e3])
    @pytest.mark.parametrize("debias", [0.0, 0.4])
    def test_batch(self, debias: float, clip: float):
        barrier = mechanism_of(Batch, clip, 1.1, L1L2(), 5.0, debias, **EXACT)
        extra = barrier.resampled(10)
        x, sample = images(10 + extra), Sample(some_digits(12).points)
        reference = sinkhorn_gradient(L1L2(), x, None, sample, 5.0, extra)
        close(barrier.clipped(x, None, sample), clipped(reference[:10], clip))
        if extra:
            parameter = nn.Parameter(x)
            barrier.backward(parameter * 1, None, sample, [parameter], SeededNoise(0))
            close(parameter.grad[10:].double(), clipped(reference[10:], clip))

    @pytest.mark.parametrize("clip", [0.05, 1e3])
    @pytest.mark.parametrize("debias", [0.0, 0.4])
    def test_image(self, debias: float, clip: float):
        barrier = mechanism_of(Image, clip, 1.5, L1L2(), 5.0, debias, **EXACT, rows=10)
        extra = barrier.resampled(10)
        x, sample = images(10 + extra), Sample(some_digits(12).points)
        reference = sinkhorn_gradient(L1L2(), x, None, sample, 5.0, extra)
        rows = torch.stack([clipped(row, clip) for row in reference])
        close(barrier.clipped(x, None, sample), rows[:10])
        parameter = nn.Parameter(x)
        barrier.backward(parameter * 1, None, sample, [parameter], SeededNoise(0))
        if extra:
            close(parameter.grad[10:].double(), rows[10:])

    @pytest.mark.parametrize("clip", [0.05, 1e3])
    def test_parameter(self, clip: float):
        """The loss as a function of the generator's parameters, end to end by autograd."""
        torch.manual_seed(0)
        generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 64), nn.Tanh()).double()
        parameters = list(generator.parameters())
        latents = torch.rand(14, 4, dtype=torch.float64)
        barrier = mechanism_of(Parameter, clip, 1.1, SquaredEuclidean(), 5.0, 0.4, **EXACT)
        sample = Sample(some_digits(12).points)
        points = generator(latents)
        value = barrier.clipped(points, None, sample, parameters)
        wrt_points = sinkhorn_gradient(SquaredEuclidean(), points, None, sample, 5.0, 4)
        parts = torch.autograd.grad((generator(latents) * wrt_points).sum(), parameters)
        reference = torch.cat([part.flatten() for part in parts])
        close(value, clipped(reference, clip))
        # and what backward sets is that, with noise of the stated size, in the parameters' shapes
        barrier.backward(generator(latents), None, sample, parameters, SeededNoise(4))
        noise = torch.cat([parameter.grad.flatten() for parameter in parameters]) - value
        assert 0.8 < float(noise.std()) / barrier.mechanism.noise_std < 1.2
        assert len(noise) == sum(parameter.numel() for parameter in parameters)

    @pytest.mark.parametrize("debias", [0.0, 0.4])
    def test_an_empty_sample_leaves_the_self_term(self, debias: float):
        barrier = mechanism_of(Batch, 0.5, 1.1, L1L2(), 5.0, debias, **EXACT)
        extra = barrier.resampled(10)
        x, nothing = images(10 + extra), Sample(torch.empty(0, 64))
        reference = sinkhorn_gradient(L1L2(), x, None, nothing, 5.0, extra)
        close(barrier.clipped(x, None, nothing), clipped(reference[:10], 0.5))


class TestNothingLeaksAround:
    def test_a_solve_that_does_not_converge_says_nothing(self):
        barrier = mechanism_of(Batch, 0.5, 1.0, L1L2(), 1e-3, max_iterations=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            value = barrier.clipped(images(10), None, some_digits(40))
        assert bool(torch.isfinite(value).all())

    def test_a_solve_that_fails_on_records_is_a_zero_cross_term(self, monkeypatch: pytest.MonkeyPatch):
        barrier = mechanism_of(Batch, 0.5, 1.0, L1L2(), 1.0)
        x = images(10)
        empty = barrier.clipped(x, None, some_digits(0))
        original = gradients.solve

        def fails(problem, *arguments, **options):
            if problem.y.shape[0] == 13:
                raise ValueError("degenerate")
            return original(problem, *arguments, **options)

        monkeypatch.setattr(gradients, "solve", fails)
        torch.testing.assert_close(barrier.clipped(x, None, some_digits(13)), empty, rtol=0, atol=0)

    def test_what_is_wrong_whatever_the_records_raises(self):
        class Broken(SquaredEuclidean):
            def pairwise(self, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002
                raise ValueError("broken")

        made = mechanism_of(Batch, 0.5, 1.0)
        made.cost = Broken()
        with pytest.raises(ValueError, match="broken"):
            made.clipped(images(10), None, some_digits(9))

    def test_rows_of_the_mechanism(self):
        barrier = mechanism_of(Image, 0.5, 1.0, L1L2(), 1.0, rows=9)
        with pytest.raises(ValueError, match="9 generated images"):
            barrier.clipped(images(10), None, some_digits(4))

    @pytest.mark.parametrize("weight", [1e20, 1e40, 1e90])
    def test_label_weights_beyond_float32(self, weight: float):
        barrier = mechanism_of(Batch, 0.5, 1.1, classes=2, label_weight=weight)
        labels = torch.tensor([0, 1, 0])
        gradient = barrier.clipped(torch.rand(3, 4), labels, Sample(torch.rand(3, 4), labels))
        assert torch.isfinite(gradient).all()

    def test_labels_that_are_no_class_do_not_raise(self):
        barrier = mechanism_of(Batch, 0.5, 1.0, L1L2(), 1.0, classes=CLASSES)
        sample = Sample(some_digits(4).points, torch.tensor([-1, 10, 3, 99]))
        assert bool(torch.isfinite(barrier.clipped(images(10), torch.arange(10), sample)).all())


class TestClipping:
    @pytest.mark.parametrize("scale", [1e-300, 1e-8, 1.0, 1e8, 1e160, 1e300])
    def test_norms_do_not_pass_the_bound(self, scale: float):
        """As real numbers: the squares are added up exactly."""
        generator = torch.Generator().manual_seed(0)
        for bound in (1e-3, 0.5, 0.1 + 0.2, 1e5):
            values = scale * torch.randn(20, 97, dtype=torch.float64, generator=generator)
            rows = clipping.clip_rows(values, bound)
            for row in rows.tolist():
                assert math.fsum(value * value for value in row) <= bound * bound
            whole = clipping.clip_whole(values, bound)
            assert math.fsum(value * value for value in whole.flatten().tolist()) <= bound * bound
            norm = float(values.norm())
            if 2 * bound < norm < 1e150:
                assert float(whole.norm()) == pytest.approx(bound, rel=1e-12)
            if norm < bound / 2:
                assert torch.equal(whole, values)

    def test_what_is_not_finite_becomes_zero(self):
        values = torch.tensor([math.nan, math.inf, -math.inf, 0.25])
        assert clipping.clip_whole(values, 1.0).tolist() == [0.0, 0.0, 0.0, 0.25]

    def test_too_small_a_bound(self):
        with pytest.raises(ValueError, match="too small"):
            clipping.clip_whole(torch.ones(2), 1e-200)
