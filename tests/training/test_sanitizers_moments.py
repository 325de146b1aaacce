"""`moments`: sensitivity of every kind of step on real neighbours, exact sums, noise, audits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from dpsinkhorn.privacy import MomentsMechanism, SeededNoise, epsilon
from dpsinkhorn.privacy.audit import sampled_gaussian_bound, threshold_bound
from dpsinkhorn.training.sanitizers import Sample
from support.moment_oracles import exact_norm, in_chunks, low_frequencies, moments_of, reference
from support.sanitizer_oracles import digits, neighbours

STEPS = ("means", "common covariance", "centres", "covariances")
CLIPS = (0.3, 7.0, 30.0)  # all is clipped; some is; nothing is


def public(moments, step, seed=0):
    """The centres that a step of this kind works with: made up, all over the place, some of them equal."""
    config, draws = moments.config, torch.Generator().manual_seed(seed)
    components = config.components if step in ("centres", "covariances") else 1
    centres = torch.randn(config.kinds, components, config.coefficients, generator=draws)
    if step == "means":
        return torch.zeros_like(centres)
    if components > 2:
        centres[:, 1] = centres[:, 0]
    return centres


def what_is_noised(moments, step, sample, *, chunk=64, centres=None):
    """All numbers that a step releases, before the noise, scaled so that the claim is a move of 1."""
    centres = public(moments, step) if centres is None else centres
    parts = in_chunks(sample, chunk)
    if step in ("means", "centres"):
        radius = 1.75 * moments.radius if step == "means" else moments.radius
        sums, counts = moments._deviations(parts, centres, radius)
        return torch.cat([sums.flatten(), counts.flatten()]), 2
    return moments._squares(parts, centres, pooled=step == "common covariance").flatten(), 1


def farthest(moments, step, pairs, **options):
    """Largest squared move between neighbours over the squared claim; computed without any rounding."""
    largest = Fraction(0)
    for name, before, after in pairs:
        first, squared = what_is_noised(moments, step, before, chunk=64, **options)
        second, _ = what_is_noised(moments, step, after, chunk=7, **options)
        assert bool(torch.isfinite(second).all()), name
        move = exact_norm(second - first) / squared
        assert move <= 1, (name, float(move))
        largest = max(largest, move)
    return float(largest)


@pytest.mark.parametrize("step", STEPS)
class TestSensitivity:
    @pytest.mark.parametrize("clip", CLIPS)
    def test_neighbours(self, step, clip):
        moments = moments_of(clip=clip)
        pairs = neighbours(torch.zeros(10, 64), torch.arange(10))
        assert farthest(moments, step, pairs) > (0.99 if clip < 1 else 0.01)

    def test_without_labels(self, step):
        moments = moments_of(classes=0, clip=1.0)
        assert farthest(moments, step, neighbours(torch.zeros(1, 64), None)) > 0.99

    def test_a_class_without_records(self, step):
        points, labels = digits()
        kept = labels < 9
        before = Sample(points[kept][:80], labels[kept][:80])
        for one in (points[labels == 9][:1], torch.full((1, 64), math.nan), torch.ones(1, 64) * 1e30):
            after = Sample(torch.cat([before.points, one]), torch.cat([before.labels, torch.tensor([9])]))
            assert farthest(moments_of(clip=0.5), step, [("the first of its class", before, after)]) > 0.99

    def test_removed_from_the_front(self, step):
        """All others move up by one place, and into other chunks: their shares must not notice."""
        points, labels = digits()
        after, before = Sample(points[:200], labels[:200]), Sample(points[1:200], labels[1:200])
        assert farthest(moments_of(clip=0.5), step, [("the first", before, after)]) > 0.99

    def test_colour(self, step):
        draws = torch.Generator().manual_seed(1)
        after = Sample(torch.rand(30, 3 * 5 * 4, generator=draws) * 2 - 1, torch.arange(30) % 2)
        before = Sample(after.points[:-1], after.labels[:-1])
        moments = moments_of((3, 5, 4), classes=2, clip=0.5)
        assert farthest(moments, step, [("one", before, after)]) > 0.99

    def test_ties_between_centres(self, step):
        """Records half way between centres, where a last bit would decide which sum they go to."""
        moments = moments_of(classes=0, components=2, clip=0.5)
        shift = torch.zeros(moments.config.coefficients)
        shift[0] = 1 / 64
        grey = torch.zeros(1, 64)
        middle = moments.coefficients(grey)[0].float()
        centres = torch.stack([middle - shift, middle + shift])[None]
        if step in ("means", "common covariance"):
            centres = centres[:, :1]
        many = grey.repeat(500, 1)
        pairs = [("one more", Sample(many), Sample(torch.cat([torch.rand(1, 64), many])))]
        assert farthest(moments, step, pairs, centres=centres) > 0.99


class TestExact:
    @pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 4), (1, 1, 9), (1, 28, 28)])
    @pytest.mark.parametrize("frequencies", [1, 4, 100])
    def test_coefficients(self, shape, frequencies):
        moments = moments_of(shape, frequencies=frequencies)
        points = torch.rand(12, math.prod(shape), generator=torch.Generator().manual_seed(0)) * 2 - 1
        found = moments.coefficients(points)
        np.testing.assert_allclose(found, low_frequencies(moments.config, points), atol=2e-6)

    def test_the_generator_turns_them_back_into_images(self):
        """With all frequencies, a mixture without spread renders the image that its centre is."""
        from dpsinkhorn.generators import build_generator, draw_latents

        points, _ = digits()
        moments = moments_of(classes=0, components=1, frequencies=15)
        generator = build_generator(moments.config, seed=0)
        with torch.no_grad():
            generator.centres.copy_(moments.coefficients(points[:1])[None])
            generator.factors.zero_()
            image = generator(draw_latents(1, moments.config.latent), None)
        torch.testing.assert_close(image.flatten(), points[0], atol=1e-5, rtol=0)

    @pytest.mark.parametrize("step", STEPS)
    def test_sums_do_not_depend_on_order_or_company(self, step):
        points, labels = digits()
        moments = moments_of()
        whole, _ = what_is_noised(moments, step, Sample(points[:500], labels[:500]), chunk=500)
        order = torch.randperm(500, generator=torch.Generator().manual_seed(3))
        for chunk in (1, 13, 499):
            other, _ = what_is_noised(moments, step, Sample(points[order], labels[order]), chunk=chunk)
            assert torch.equal(whole, other)

    @pytest.mark.parametrize("step", STEPS)
    def test_a_sum_is_that_of_its_records_as_fractions(self, step):
        points, labels = digits()
        moments = moments_of(frequencies=3)
        total = None
        for row in range(60):
            one, _ = what_is_noised(moments, step, Sample(points[row : row + 1], labels[row : row + 1]))
            exact = [Fraction(value) for value in one.tolist()]
            total = exact if total is None else [a + b for a, b in zip(total, exact, strict=True)]
        whole, _ = what_is_noised(moments, step, Sample(points[:60], labels[:60]))
        assert [Fraction(value) for value in whole.tolist()] == total

    @pytest.mark.parametrize("clip", CLIPS)
    def test_against_the_reference(self, clip):
        """Records one by one, in numpy: up to the grids, whose steps are public."""
        points, labels = digits()
        moments = moments_of(clip=clip)
        centres = public(moments, "centres")
        labels = labels[:300].clone()
        labels[::50] = 99  # of no class
        sample = [Sample(points[:300], labels)]
        sums, counts = moments._deviations(sample, centres, moments.radius)
        squares = moments._squares(sample, centres, pooled=False)
        expected = reference(
            moments.config, points[:300].numpy(), labels.numpy(), centres.numpy(), moments.radius
        )
        np.testing.assert_array_equal(counts, expected[1])
        np.testing.assert_allclose(sums, expected[0], atol=300 * 2e-4)
        np.testing.assert_allclose(squares, expected[2], atol=300 * 2e-4)
        np.testing.assert_allclose(squares.sum(0), moments._squares(sample, centres, pooled=True)[0])

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    @pytest.mark.parametrize("step", STEPS)
    def test_a_gpu_finds_the_same_bits(self, step):
        points, labels = digits()
        moments = moments_of()
        here, _ = what_is_noised(moments, step, Sample(points[:500], labels[:500]))
        there, _ = what_is_noised(
            moments,
            step,
            Sample(points[:500].cuda(), labels[:500].cuda()),
            centres=public(moments, step).cuda(),
        )
        assert torch.equal(here, there.cpu())

    def test_too_many_records_for_exact_sums_are_refused(self):
        with pytest.raises(ValueError, match="lower frequencies") as error:
            moments_of((1, 64, 64), classes=0, frequencies=60, most=2**40)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("clip", [1e-40, 1e40])
    def test_a_clip_out_of_range_is_refused(self, clip):
        with pytest.raises(ValueError, match="clip"):
            moments_of(clip=clip)

    @pytest.mark.parametrize("clip", [1e-28, 1e28])
    def test_an_extreme_clip(self, clip):
        moments = moments_of(clip=clip)
        pairs = neighbours(torch.zeros(10, 64), torch.arange(10))
        for step in STEPS:
            farthest(moments, step, pairs)


class TestNoise:
    """With no records at all, what is released is the noise."""

    def values(self, sigma=1.7):
        moments = moments_of(sigma=sigma)
        noise = SeededNoise(8)
        empty = [Sample(torch.empty(0, 64), torch.empty(0, dtype=torch.int64))]
        found = {"deviations": [], "counts": [], "diagonal": [], "above": []}
        k = moments.config.coefficients
        rows, columns = torch.triu_indices(k, k, 1)
        for _ in range(30):
            sums = moments.deviations(empty, public(moments, "centres"), moments.radius, noise)
            found["deviations"].append(sums.deviations.flatten())
            found["counts"].append(sums.counts.flatten())
            squares = moments.squares(empty, public(moments, "covariances"), noise, pooled=False)
            assert torch.equal(squares, squares.mT)
            found["diagonal"].append(squares.diagonal(dim1=1, dim2=2).flatten())
            found["above"].append(squares[:, rows, columns].flatten())
        return {name: torch.cat(values).numpy() for name, values in found.items()}

    def test_variances(self):
        """The claim is noise σ on each coordinate of what moves by at most 1, squares counted above once."""
        sigma = 1.7
        scales = {"deviations": math.sqrt(2), "counts": math.sqrt(2), "diagonal": 1, "above": math.sqrt(0.5)}
        for name, values in self.values(sigma).items():
            scaled = values / (scales[name] * sigma)
            low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(scaled)) / len(scaled)
            assert low < (scaled**2).mean() < high, name
            assert stats.kstest(scaled, "norm").pvalue > 1e-6, name

    def test_all_coordinates_of_a_step_are_counted_for_rounding(self, monkeypatch):
        """The lattice widens the noise by what all numbers of the release cost together."""
        from dpsinkhorn.training.sanitizers import moments as module

        seen = []
        original = module.add_gaussian

        def watch(values, **options):
            seen.append((values.numel(), options["coordinates"], options["sensitivity"]))
            return original(values, **options)

        monkeypatch.setattr(module, "add_gaussian", watch)
        moments = moments_of()
        kinds, k = 10, moments.config.coefficients
        moments.squares([], public(moments, "covariances"), SeededNoise(0), pooled=False)
        moments.deviations([], public(moments, "centres"), 1.0, SeededNoise(0))
        assert seen[0] == (kinds * k, kinds * k * (k + 1) // 2, 1.0)
        assert seen[1] == (kinds * k * (k - 1) // 2, kinds * k * (k + 1) // 2, pytest.approx(math.sqrt(0.5)))
        assert seen[2] == (kinds * 3 * (k + 1),) * 2 + (pytest.approx(math.sqrt(2)),)


class TestAudit:
    """A canary alone, or nothing: what the real code releases of it, against the claim."""

    @pytest.mark.parametrize("step", STEPS)
    def test_below_the_claim_and_above_half_of_it(self, step):
        moments = moments_of((1, 2, 2), classes=2, components=2, clip=0.5, sigma=1.0, frequencies=3)
        centres = public(moments, step)
        canary = Sample(torch.ones(1, 4), torch.tensor([1]))
        nothing = Sample(torch.empty(0, 4), torch.empty(0, dtype=torch.int64))

        def released(sample, noise):
            if step in ("means", "centres"):
                sums = moments.deviations([sample], centres, moments.radius, noise)
                return torch.cat([sums.deviations.flatten(), sums.counts.flatten()]) / math.sqrt(2)
            return moments.squares([sample], centres, noise, pooled=step == "common covariance").flatten()

        move = what_is_noised(moments, step, canary, centres=centres)[0]
        if step in ("means", "centres"):
            move = moments._deviations([canary], centres, moments.radius)
            move = torch.cat([part.flatten() for part in move]) / math.sqrt(2)
        assert 0.999 < float(move.norm()) <= 1
        noise = SeededNoise(4)
        present, absent = (
            np.array([float(released(sample, noise) @ move) for _ in range(1200)])
            for sample in (canary, nothing)
        )
        claimed = epsilon(MomentsMechanism(0.5, 1.0).charge(), 1e-5)
        found = sampled_gaussian_bound(
            present - 0.5, absent - 0.5, sampling_rate=1.0, steps=1, delta=1e-5, confidence=0.95
        )
        assert claimed / 2 < found.epsilon < claimed
        assert 0 < threshold_bound(present, absent, delta=1e-5).epsilon < claimed
