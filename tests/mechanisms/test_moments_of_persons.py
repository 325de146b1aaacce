"""`moments` with persons: a whole person more moves what is released by no more than is claimed."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from dpsinkhorn import DPSinkhorn, load
from dpsinkhorn.mechanisms.shared import base
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.persons import MOST_RECORDS, Weighing, first_records
from dpsinkhorn.privacy import SeededNoise, epsilon
from dpsinkhorn.privacy.audit import sampled_gaussian_bound
from dpsinkhorn.training import load_recipe, records
from dpsinkhorn.training.auditing import audit_run
from dpsinkhorn.training.records import Records
from support.moment_oracles import exact_norm, in_chunks, moments_of, reference_of_persons
from support.runs import tiny_data
from support.sanitizer_oracles import digits, neighbours

STEPS = ("deviations", "scaled deviations", "squares", "pooled")
WEIGHTS = {"deviations": Fraction(0.3), "squares": Fraction(0.1)}  # of counts


def public(moments, step):
    """Centres, radius and coordinates, made up."""
    config, draws = moments.config, torch.Generator().manual_seed(0)
    k = config.coefficients
    centres = torch.randn(config.kinds, config.components, k, generator=draws)
    turn = torch.linalg.qr(torch.randn(k, k, generator=draws, dtype=torch.float64))[0] / math.sqrt(k)
    return centres, moments.radius, turn if step == "scaled deviations" else None


def what_is_noised(moments, step, sample, chunk):
    parts, given = in_chunks(sample, chunk), public(moments, step)
    if "deviations" in step:
        return moments.clipped_deviations(parts, *given)
    return moments.clipped_squares(parts, *given, pooled=step == "pooled")


def squared_move(step, parts):
    """Of vectors and counts together, over the claim, as a fraction."""
    weight = WEIGHTS["deviations" if "deviations" in step else "squares"] ** 2
    return (exact_norm(parts[0]) + weight * exact_norm(parts[1])) / (1 + weight)


def move(moments, step, before, after, person):
    """How far one person more moves a release: by their own part, whatever the company."""
    first = what_is_noised(moments, step, before, 3)
    second = what_is_noised(moments, step, after, 5)
    own = what_is_noised(moments, step, person, 1)
    for here, there, part in zip(first, second, own, strict=True):
        assert bool(torch.isfinite(there).all())
        for a, b, c in zip(*(each.flatten().tolist() for each in (here, there, part)), strict=True):
            assert Fraction(b) - Fraction(a) == Fraction(c), "a person's part depends on the company"
    share = squared_move(step, own)
    assert share <= 1, f"{math.sqrt(share)} times the claimed sensitivity"
    return float(share)


def crowd(count=40, persons=9):
    points, labels = digits()
    return Sample(points[:count], labels[:count], torch.arange(count) * 7 % persons)


def with_person(base, points, labels, number=4):
    """The others, those with one person more in their midst, and that one alone."""
    shifted = base.groups + (base.groups >= number)
    person = Sample(points, labels, torch.full((len(points),), number))
    order = torch.randperm(len(points) + len(base.points), generator=torch.Generator().manual_seed(1))
    # the person's own records stay in their order: of more than count, the first ones do
    mine = torch.sort(order[order < len(points)]).values
    order[order < len(points)] = mine
    together = [torch.cat([a, b])[order] for a, b in zip(
        (person.points, person.labels, person.groups), (base.points, base.labels, shifted), strict=True
    )]  # fmt: skip
    return base, Sample(*together), person


def hostile():
    """Persons who try to do harm, by name: points and labels."""
    points, labels = digits()
    draws = torch.Generator().manual_seed(2)
    noise = torch.rand(1000, 64, generator=draws) * 2 - 1
    one = points[:1]
    return {
        "one record": (one, labels[:1]),
        "the same record a thousand times": (one.repeat(1000, 1), labels[:1].repeat(1000)),
        "the same record in all classes": (one.repeat(1000, 1), torch.arange(1000) % 10),
        "a thousand of one class": (points[:1000], torch.full((1000,), 3)),
        "a thousand of all classes": (points[:1000], labels[:1000]),
        "noise": (noise, torch.arange(1000) % 10),
        "opposite records": (torch.cat([noise[:500], -noise[:500]]), torch.zeros(1000, dtype=torch.int64)),
        "huge": (1e30 * noise, torch.arange(1000) % 3),
        "not a number": (torch.full((50, 64), math.nan), torch.arange(50) % 10),
        "infinite": (torch.full((3, 64), -math.inf), torch.tensor([0, 0, 9])),
        "labels of no class": (points[:30], torch.tensor([-1, 10, 2**62] * 10)),
        "a few labels of no class": (points[:30], torch.tensor([-1, 4, 99] * 10)),
        "more than count": (torch.ones(MOST_RECORDS + 500, 64), torch.arange(MOST_RECORDS + 500) % 2),
    }


@pytest.mark.parametrize("step", STEPS)
class TestSensitivity:
    def test_hostile_persons(self, step):
        for turn, (name, (points, labels)) in enumerate(hostile().items()):
            moments = moments_of(clip=7.0 if turn % 3 == 2 else 0.5, persons=True)
            found = move(moments, step, *with_person(crowd(), points, labels))
            assert (found == 0) == (name == "labels of no class"), name
            if name == "the same record a thousand times":
                assert found > 0.9

    def test_real_neighbours(self, step):
        moments = moments_of(clip=0.3, persons=True)
        largest = Fraction(0)
        for name, before, after in neighbours(torch.zeros(10, 64), torch.arange(10), persons=True):
            first, second = what_is_noised(moments, step, before, 64), what_is_noised(moments, step, after, 7)
            share = squared_move(step, [b - a for a, b in zip(first, second, strict=True)])
            assert share <= 1, name
            largest = max(largest, share)
        assert largest > 0.99

    def test_without_labels_and_in_colour(self, step):
        draws = torch.Generator().manual_seed(1)
        points = torch.rand(30, 3 * 5 * 4, generator=draws) * 2 - 1
        moments = moments_of((3, 5, 4), classes=0, clip=0.5, persons=True)
        groups = torch.arange(30) // 5
        found = [
            what_is_noised(moments, step, Sample(points[:many], None, groups[:many]), 2) for many in (25, 30)
        ]
        share = squared_move(step, [b - a for a, b in zip(*found, strict=True)])
        assert 0.1 < share <= 1

    @pytest.mark.parametrize("most", [2**26, 2**31])
    def test_with_fewer_digits(self, step, most):
        """Where more records must fit, a person's part is rounded more, and shortened for it."""
        moments = moments_of(clip=0.5, frequencies=3, persons=True, most=most)
        for points, labels in list(hostile().values())[1::3]:
            move(moments, step, *with_person(crowd(), points, labels))


@pytest.mark.parametrize("step", STEPS)
def test_against_the_reference(step):
    """Persons one by one, in numpy; one has more records than count."""
    points, labels = digits()
    points, labels = points[:1300], labels[:1300].clone()
    labels[::50] = 99
    groups = torch.arange(1300) % 40
    groups[150:] = 12
    moments = moments_of(persons=True, clip=3.0)
    centres, radius, matrix = public(moments, step)
    found = what_is_noised(moments, step, Sample(points, labels, groups), 11)
    expected = reference_of_persons(
        moments.config, points.numpy(), labels.numpy(), groups.numpy(),
        centres.numpy(), radius, None if matrix is None else matrix.numpy(),
    )  # fmt: skip
    place = 0 if "deviations" in step else 2 if step == "squares" else 4
    np.testing.assert_allclose(found[0], expected[place], atol=0.02)
    np.testing.assert_allclose(found[1], expected[place + 1], rtol=3e-3, atol=0.02)


class TestWeights:
    def weights(self, units, cells, *, squared=False):
        persons = torch.zeros(len(units), dtype=torch.int64)
        return Weighing(0.3, 31, squared=squared)(units.double(), persons, torch.tensor(cells))[0]

    def test_independent_records_weigh_one_over_the_root(self):
        for squared in (False, True):
            assert float(self.weights(torch.eye(4), [0, 1, 2, 3], squared=squared)[0]) == pytest.approx(0.5)

    def test_what_is_short_keeps_its_weight(self):
        for squared in (False, True):
            assert self.weights(torch.eye(4) / 4, [0, 1, 2, 3], squared=squared).tolist() == [1.0] * 4

    def test_equal_records_are_clipped_together(self):
        same = torch.eye(4)[:1].repeat(100, 1)
        for squared in (False, True):
            assert float(self.weights(same, [0] * 100, squared=squared)[0]) == pytest.approx(0.01)

    def test_the_first_records_count(self):
        groups = torch.tensor([5] * 1500 + [2] * 3)
        rows, persons = first_records(groups)
        assert rows.tolist() == [1500, 1501, 1502, *range(MOST_RECORDS)]
        assert persons.tolist() == [0] * 3 + [1] * MOST_RECORDS


def test_all_that_is_released_has_its_noise(monkeypatch):
    """Squares of persons come with counts: variances, and all numbers of a step are counted together."""
    seen, original = [], base.add_gaussian

    def watch(values, **options):
        seen.append((values.numel(), options["coordinates"], options["sensitivity"]))
        return original(values, **options)

    monkeypatch.setattr(base, "add_gaussian", watch)
    moments, noise, sigma = moments_of(sigma=1.7, persons=True), SeededNoise(3), 1.7
    k = moments.config.coefficients
    released = [moments.squares([], *public(moments, "")[:2], noise, pooled=False) for _ in range(60)]
    total = 10 * k * (k + 1) // 2 + 10
    root = math.sqrt(1.01)
    sizes = (root, root * math.sqrt(0.5), root / 0.1)
    assert [each[:2] for each in seen[:3]] == [(10 * k, total), (total - 10 * k - 10, total), (10, total)]
    assert [each[2] for each in seen[:3]] == pytest.approx(sizes)
    rows, columns = torch.triu_indices(k, k, 1)
    parts = (
        [each.matrices.diagonal(dim1=1, dim2=2) for each in released],
        [each.matrices[:, rows, columns] for each in released],
        [each.counts for each in released],
    )
    for size, values in zip(sizes, parts, strict=True):
        scaled = torch.cat([value.flatten() for value in values]).numpy() / (size * sigma)
        low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(scaled)) / len(scaled)
        assert low < (scaled**2).mean() < high


@pytest.mark.parametrize("step", STEPS)
def test_an_audit_of_a_step(step):
    """A person with 30 records, or nobody: below the claim, and above half of it."""
    moments = moments_of((1, 2, 2), classes=2, components=2, clip=0.5, sigma=1.0, frequencies=3, persons=True)
    centres, radius, matrix = public(moments, step)
    person = Sample(torch.ones(30, 4), torch.arange(30) % 2, torch.zeros(30, dtype=torch.int64))
    weight = float(WEIGHTS["deviations" if "deviations" in step else "squares"])

    def scaled(values, counts):
        return torch.cat([values.flatten(), weight * counts.flatten()]) / math.sqrt(1 + weight**2)

    def released(sample, noise):
        if "deviations" in step:
            sums = moments.deviations(sample, centres, radius, noise, coordinates=matrix)
            return scaled(sums.deviations, sums.counts)
        squares = moments.squares(sample, centres, radius, noise, pooled=step == "pooled")
        return scaled(squares.matrices, squares.counts)

    along = scaled(*what_is_noised(moments, step, person, 1))
    assert 0.99 < float(along.norm()) <= 1
    noise = SeededNoise(4)
    present, absent = (
        np.array([float(released(sample, noise) @ along) for _ in range(500)]) for sample in ([person], [])
    )
    claimed = epsilon(moments.mechanism.charge(), 1e-5)
    found = sampled_gaussian_bound(
        present - 0.5, absent - 0.5, sampling_rate=1.0, steps=1, delta=1e-5, confidence=0.95
    )
    assert claimed / 2 < found.epsilon < claimed


def test_an_audit_of_a_whole_run():
    """With made-up persons among the others; a replay is in `test_replay_game.py`."""
    recipe = load_recipe("mixture").replace(
        privacy={"noise_multiplier": 1.0, "clip": 2.0}, generator={"components": 2, "frequencies": 4}
    )
    found = audit_run(tiny_data(persons=30), recipe, delta=1e-5, canaries=80, seed=0)
    assert found.plan.facts.unit == "person"
    assert 1 < found.every_step.f_dp_gaussian.epsilon < found.claimed


class TestDefectsAreNoticed:
    def strike(self, step, name="the same record a thousand times", clip=0.5):
        points, labels = hostile()[name]
        return move(moments_of(clip=clip, persons=True), step, *with_person(crowd(), points, labels))

    def plant(self, monkeypatch, weigh):
        real = Weighing.__call__
        monkeypatch.setattr(Weighing, "__call__", lambda self, *given: weigh(real, self, *given))

    @pytest.mark.parametrize("step", STEPS)
    def test_no_clip(self, step, monkeypatch):
        def as_if_small(real, self, units, persons, cells):
            weights, _ = real(Weighing(1e-9, self._bits, squared=self._squared), 0 * units, persons, cells)
            return weights, (units * weights.unsqueeze(1) * 2.0**self._bits).round() * 2.0**-self._bits

        self.plant(monkeypatch, as_if_small)
        with pytest.raises(AssertionError, match="times the claimed sensitivity"):
            self.strike(step)

    @pytest.mark.parametrize("step", STEPS)
    def test_records_that_are_taken_as_independent(self, step, monkeypatch):
        def each_by_itself(real, self, units, persons, cells):
            return real(self, units, persons, torch.arange(len(cells)))

        self.plant(monkeypatch, each_by_itself)
        with pytest.raises(AssertionError, match="times the claimed sensitivity"):
            self.strike(step)

    @pytest.mark.parametrize("step", ["deviations", "squares"])
    def test_counts_that_are_not_clipped(self, step, monkeypatch):
        def without_counts(real, self, *given):
            return real(Weighing(1e-9, self._bits, squared=self._squared), *given)

        self.plant(monkeypatch, without_counts)
        with pytest.raises(AssertionError, match="times the claimed sensitivity"):
            self.strike(step, clip=1e6)

    def test_weights_off_the_grid(self, monkeypatch):
        def with_all_digits(real, self, *given):
            return real(Weighing(self._count_weight, 70, squared=self._squared), *given)

        self.plant(monkeypatch, with_all_digits)
        with pytest.raises(AssertionError, match="company"):
            self.strike("deviations", "noise")


class TestRuns:
    def test_samples_hold_whole_persons(self, monkeypatch):
        monkeypatch.setattr(records, "at_a_time", lambda _: 8)
        data = tiny_data(persons=20)
        parts = list(Records(data, torch.device("cpu")).every())
        groups = torch.cat([part.groups for part in parts])
        assert len(parts) > 5
        assert groups.tolist() == sorted(data.groups.tolist())
        numbers = [number for part in parts for number in part.groups.unique().tolist()]
        assert len(numbers) == len(set(numbers))

    def test_what_would_break_the_promise_is_refused(self):
        whole, given = crowd(), public(moments_of(), "")
        split = [
            Sample(whole.points[a:b], whole.labels[a:b], whole.groups[a:b]) for a, b in ((0, 20), (20, 40))
        ]
        with pytest.raises(ValueError, match="one sample"):
            moments_of(persons=True).clipped_deviations(split, *given)
        with pytest.raises(ValueError, match="groups"):
            moments_of().clipped_deviations([whole], *given)
        with pytest.raises(ValueError, match="groups"):
            moments_of(persons=True).clipped_deviations([Sample(whole.points, whole.labels)], *given)

    @pytest.mark.parametrize("labels", ["uniform", "released"])
    def test_a_release_says_whom_it_protects(self, tmp_path, labels):
        data = tiny_data(records=180, persons=80)
        model = DPSinkhorn(8.0, 1e-4, recipe="mixture", labels=labels, accountant="rdp")
        model.fit(data.images, data.labels, groups=data.groups).save(tmp_path / "release")
        found = load(tmp_path / "release").privacy
        assert (found.unit, found.mechanism, found.epsilon <= 8) == ("person", "moments", True)

    def test_more_records_of_each_person_are_worth_more(self):
        """Digits in the hands of 60 persons, far more than one of each: the same ε, better means."""
        points, labels = digits()
        images = ((points + 1) * 127.5).round().to(torch.uint8).view(-1, 8, 8).numpy()
        groups = np.arange(1500) % 60
        errors = {}
        for name, rows in (("all", slice(0, 1500)), ("one each", slice(0, 60))):
            settings = {"generator": {"components": 1, "frequencies": 5}, "privacy": {"steps": 3}}
            model = DPSinkhorn(
                8.0, 1e-5, recipe="mixture", random_state=0, settings=settings, accountant="rdp", anyway=True
            )
            model.fit(images[rows], labels[rows].numpy(), groups=groups[rows])
            drawn, kinds = model.sample(4000, random_state=0)
            off = [drawn[kinds == kind].mean(0) - images[labels == kind].mean(0) for kind in range(10)]
            errors[name] = np.abs(off).mean()
        assert errors["all"] < 0.7 * errors["one each"]


def test_persons_of_one_record_each_are_as_records():
    points, labels = digits()
    plain, grouped = moments_of(), moments_of(persons=True)
    for step in STEPS:
        first = what_is_noised(plain, step, Sample(points[:200], labels[:200]), 50)
        second = what_is_noised(grouped, step, Sample(points[:200], labels[:200], torch.arange(200)), 50)
        np.testing.assert_allclose(first[0], second[0], atol=200 * 2e-4)
