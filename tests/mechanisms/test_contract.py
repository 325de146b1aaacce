"""What every barrier promises: sensitivity on real neighbours, exact noise, shapes that tell nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from dpsinkhorn.mechanisms import batch, image, parameter
from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.parameter import Parameter
from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared import base, clipping, shares
from dpsinkhorn.mechanisms.shared.base import GradientMechanism, Sample
from dpsinkhorn.mechanisms.shared.terms import LossSettings
from dpsinkhorn.ot import L1L2, SquaredEuclidean
from dpsinkhorn.privacy import SeededNoise
from support.barriers import mechanism_of, terms
from support.sanitizer_oracles import CountingNoise, digits, joined, neighbours

CLASSES = 10
N = 20
KINDS = ("record", "batch", "image", "parameter")


class Images(nn.Module):
    """A generator whose parameters are its images, so that gradients can be read off."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.images = nn.Parameter(images.clone())

    def forward(self) -> Tensor:
        return self.images * 1


@dataclass
class Setup:
    """A barrier with public images to go with it."""

    barrier: GradientMechanism
    images: Tensor
    labels: Tensor | None

    def clipped(self, sample: Sample) -> Tensor:
        """What would be noised."""
        generator = Images(self.images)
        arguments = [generator(), self.labels, sample]
        if isinstance(self.barrier, Parameter):
            arguments.append(list(generator.parameters()))
        return self.barrier.clipped(*arguments)

    def update(self, sample: Sample, noise=None) -> Tensor:
        """The gradient that a step leaves in the images."""
        generator = Images(self.images)
        self.barrier.backward(
            generator(), self.labels, sample, list(generator.parameters()), noise or SeededNoise(5)
        )
        return generator.images.grad


def generated(count: int = N, seed: int = 3) -> Tensor:
    """Images as a generator ends in them: tanh, some pixels at exactly -1 as backgrounds are."""
    values = 8 * torch.randn(count, 64, generator=torch.Generator().manual_seed(seed)) - 3
    return torch.tanh(values)


def setup(kind: str, *, images=None, clip=0.5, regularization=1.0, cost=None, labelled=True, n=N) -> Setup:
    cost = cost or L1L2(1.0)
    sigma, classes, quick = 1.3, CLASSES if labelled else 0, {"max_iterations": 200}
    images = generated(n) if images is None else images
    labels = torch.arange(len(images)) % CLASSES if labelled else None
    n = len(images)
    if kind == "record":
        made = mechanism_of(Record, clip, sigma, cost, regularization, batch=60, classes=classes)
    elif kind == "batch":
        made = mechanism_of(Batch, clip, sigma, cost, regularization, classes=classes, **quick)
    elif kind == "image":
        made = mechanism_of(
            Image, clip, sigma, cost, regularization, classes=classes, max_iterations=200, rows=n
        )
    else:
        made = mechanism_of(Parameter, clip, sigma, cost, regularization, classes=classes, **quick)
    return Setup(made, images, labels)


def farthest(case: Setup, persons: bool = False, skip: tuple[str, ...] = ()) -> float:
    """Largest move between neighbours, over the claimed sensitivity. No move may pass 1."""
    largest = 0.0
    for name, before, after in neighbours(case.images, case.labels, persons=persons):
        if name in skip:
            continue
        first, second = case.clipped(before), case.clipped(after)
        assert bool(torch.isfinite(first).all()), name
        assert bool(torch.isfinite(second).all()), name
        move = float((first - second).norm()) / case.barrier.mechanism.sensitivity
        assert move <= 1 + 1e-14, (name, move)
        largest = max(largest, move)
    return largest


class TestSensitivity:
    @pytest.mark.parametrize("regularization", [1e-3, 0.05, 1.0, 100.0])
    @pytest.mark.parametrize("kind", KINDS)
    def test_neighbours(self, kind: str, regularization: float):
        assert farthest(setup(kind, regularization=regularization)) > 0.2

    @pytest.mark.parametrize("kind", KINDS)
    def test_persons(self, kind: str):
        skip = () if kind == "record" else ("one more of a thousand",)
        assert farthest(setup(kind), persons=True, skip=skip) > 0.2

    @pytest.mark.parametrize("kind", KINDS)
    def test_without_labels(self, kind: str):
        assert farthest(setup(kind, labelled=False), skip=("one more of a thousand",)) > 0.2

    @pytest.mark.parametrize("kind", KINDS)
    def test_with_wide_bounds(self, kind: str):
        """Where little is clipped the moves are those of the gradients themselves."""
        farthest(setup(kind, clip=20.0))

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_bound_is_attained(self, kind: str):
        """Images at a quarter of the way to one corner: records there pull, one at the other pushes."""
        corner = torch.ones(1, 64)
        case = setup(kind, images=corner.repeat(4, 1) / 4, cost=SquaredEuclidean(), labelled=False)
        if kind == "record":
            before, after = Sample(torch.empty(0, 64)), Sample(corner)
        else:
            before, after = Sample(corner), Sample(torch.cat([corner, -corner]))
        move = float((case.clipped(before) - case.clipped(after)).norm())
        sensitivity = case.barrier.mechanism.sensitivity
        assert 0.999 * sensitivity < move <= sensitivity

    @pytest.mark.parametrize("kind", KINDS)
    def test_tampering_is_noticed(self, kind: str, monkeypatch: pytest.MonkeyPatch):
        """No clipping at all, and rows clipped one by one where the claim is about the whole."""

        def unclipped(values, bound):  # noqa: ARG001
            return values.double()

        if kind == "record":
            monkeypatch.setattr(shares.SumOfShares, "bound", lambda *_, **__: math.inf)
        for module in (batch, image, parameter):
            for name in ("clip_whole", "clip_rows"):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, unclipped)
        with pytest.raises(AssertionError):
            farthest(setup(kind, clip=1e-3))

    def test_rows_clipped_one_by_one_are_noticed(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(batch, "clip_whole", clipping.clip_rows)
        with pytest.raises(AssertionError):
            farthest(setup("batch", clip=1e-3))


def check_noise(case: Setup, sample: Sample, scale: float) -> None:
    """`scale` times the update is noise alone, of the stated variance: a chi-square interval."""
    draws = torch.cat([case.update(sample, SeededNoise(seed)).double().flatten() for seed in range(20)])
    assert len(draws) == 20 * case.images.numel()
    total = float((scale * draws / case.barrier.mechanism.noise_std).square().sum())
    low, high = stats.chi2.interval(1 - 1e-6, len(draws))
    assert low < total < high
    assert abs(float(draws.mean())) < 5 * float(draws.std()) / math.sqrt(len(draws))


class TestNoise:
    @staticmethod
    def silent(kind: str) -> tuple[Setup, list[Sample], float]:
        """Equal images have no self term, and records equal to them no cross term: the gradient is 0."""
        image = digits()[0][:1]
        case = setup(kind, images=image.repeat(N, 1), labelled=False)
        scale = case.barrier.terms.expected_batch if kind == "record" else 1.0
        return case, [Sample(torch.empty(0, 64)), Sample(image.repeat(33, 1))], scale

    @pytest.mark.parametrize("kind", KINDS)
    def test_zero_gradients_leave_the_stated_noise(self, kind: str):
        case, samples, scale = self.silent(kind)
        for sample in samples:
            check_noise(case, sample, scale)

    @pytest.mark.parametrize("kind", KINDS)
    def test_half_the_noise_is_noticed(self, kind: str, monkeypatch: pytest.MonkeyPatch):
        original = base.add_gaussian

        def halved(values, *, noise_multiplier, **options):
            return original(values, noise_multiplier=noise_multiplier / 2, **options)

        monkeypatch.setattr(base, "add_gaussian", halved)
        case, samples, scale = self.silent(kind)
        with pytest.raises(AssertionError):
            check_noise(case, samples[0], scale)

    def test_rows_that_see_no_record_get_no_noise(self):
        made = mechanism_of(Batch, 0.5, 1.0, SquaredEuclidean(), 1.0, debias=0.5)
        case = Setup(made, generated(15), None)
        sample = Sample(digits()[0][:30])
        one, two = case.update(sample, SeededNoise(1)), case.update(sample, SeededNoise(2))
        assert bool((one[:10] != two[:10]).all())
        assert torch.equal(one[10:], two[10:])
        assert 0 < float(one[10:].norm()) <= 0.5 * (1 + 1e-6)


class TestNothingMovesWithTheSample:
    samples = (0, 1, 7, 300)

    @staticmethod
    def sample(size: int) -> Sample:
        points, labels = digits()
        return Sample(points[:size], labels[:size])

    @pytest.mark.parametrize("kind", KINDS)
    def test_shapes_and_draws(self, kind: str):
        case = setup(kind)
        drawn, kept = [], []
        for size in self.samples:
            noise = CountingNoise(9)
            sample = self.sample(size)
            update = case.update(sample, noise)
            assert update.shape == case.images.shape
            assert bool(torch.isfinite(update).all())
            drawn.append(noise.requests)
            scale = case.barrier.terms.expected_batch if kind == "record" else 1.0
            kept.append(scale * update.double().flatten() - case.clipped(sample).flatten())
        assert all(requests == drawn[0] for requests in drawn)
        # and it is the very same noise
        for noise in kept:
            torch.testing.assert_close(noise, kept[0], rtol=1e-5, atol=1e-5)

    def test_what_gets_no_noise_is_the_same_to_the_last_bit(self):
        points = generated(40)
        labels = (torch.arange(20) % CLASSES).repeat(2)
        made = mechanism_of(Record, 1.0, 1.0, L1L2(), 1.0, batch=60, own=0.5, classes=CLASSES)
        own = [made.clipped_sums(points, labels, self.sample(size))[1] for size in self.samples]
        assert all(torch.equal(other, own[0]) for other in own)
        made = mechanism_of(Batch, 1.0, 1.0, L1L2(), 1.0, debias=1.0, classes=CLASSES)
        rows = [made._gradient(points, labels, self.sample(size))[20:] for size in self.samples]
        assert all(torch.equal(other, rows[0]) for other in rows)

    def test_resampled_images(self):
        assert mechanism_of(Batch, 0.5, 1.0, L1L2(), 0.05, debias=0.29).resampled(100) == 29
        own = mechanism_of(Record, 1.0, 1.0, L1L2(), 1.0, batch=4, own=0.3)
        assert own.resampled(100) == 100


class TestInterface:
    @pytest.mark.parametrize("kind", KINDS)
    def test_gradients_replace_what_was_there(self, kind: str):
        case = setup(kind)
        generator = Images(case.images)
        generator.images.grad = torch.full_like(generator.images, 1e9)
        arguments = (case.labels, TestNothingMovesWithTheSample.sample(9), [generator.images])
        case.barrier.backward(generator(), *arguments, SeededNoise(5))
        assert float(generator.images.grad.abs().max()) < 1e6

    @pytest.mark.parametrize("kind", KINDS)
    def test_charges(self, kind: str):
        charge = setup(kind).barrier.mechanism.sampled(0.1, 10)
        multiplier = 1.3 / math.sqrt(N) if kind == "image" else 1.3
        assert charge.event.event.event.noise_multiplier == pytest.approx(multiplier)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"labels": None}, "labels"),
            ({"points": generated()[:, :5]}, "dimension"),
            ({"labels": torch.zeros(3, dtype=torch.int64)}, "labels"),
        ],
    )
    def test_bad_arguments(self, kind: str, change: dict, match: str):
        case = setup(kind)
        arguments = {"points": case.images.clone().requires_grad_(), "labels": case.labels} | change
        points = arguments["points"].requires_grad_() * 1
        with pytest.raises(ValueError, match=match):
            case.barrier.backward(
                points, arguments["labels"], self_sample(), [nn.Parameter(torch.zeros(1))], SeededNoise(0)
            )

    @pytest.mark.parametrize(
        "change",
        [
            *({"regularization": 0.0}, {"regularization": 1e-200}, {"debias": 1.5}, {"label_weight": -1}),
            *(
                {"self_weight": 1.1},
                {"cost": "l1l2", "l1_weight": -1.0},
                {"cost": "l1l2", "l1_weight": 2.0**20},
            ),
        ],
        ids=str,
    )
    def test_bad_settings(self, change: dict[str, object]):
        with pytest.raises(ValueError, match=r"must be|expected"):
            Record(terms(1.0, 1.0, loss=LossSettings(**change)))


def self_sample() -> Sample:
    points, labels = digits()
    return joined(Sample(points[:3], labels[:3]), Sample(points[3:5], labels[3:5]))
