"""Who watches a training changes nothing of it, and scores canaries as well as can be done linearly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpsinkhorn.data import from_arrays
from dpsinkhorn.generators import FlowConfig, MixtureConfig, build_generator
from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.datalens import Votes
from dpsinkhorn.mechanisms.flow import Flow
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.moments import COUNT_SENSITIVITY, DEVIATION_SENSITIVITY, Moments
from dpsinkhorn.mechanisms.parameter import Parameter
from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.record_gradients import StepDraws
from dpsinkhorn.mechanisms.shared.taught import part_of
from dpsinkhorn.mechanisms.shared.terms import Facts, FlowSettings, Terms
from dpsinkhorn.ot import SquaredEuclidean
from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.training import facts_of, load_recipe, make_plan
from dpsinkhorn.training.auditing import audit_run
from dpsinkhorn.training.auditing.observers import (
    FlowObserver,
    MomentsObserver,
    RecordObserver,
    SinkhornObserver,
    TaughtObserver,
)
from dpsinkhorn.training.auditing.observers.evidence import Evidence
from support.barriers import mechanism_of
from support.barriers import moments as moments_of
from support.runs import tiny_arrays
from support.sanitizer_oracles import record_sum

RATE = 0.5
DATA = from_arrays(*tiny_arrays()[:2])
CANARIES = Sample(DATA.points(np.arange(9)) * -1, torch.tensor(DATA.labels[:9]), torch.arange(9))
OTHERS = Sample(DATA.points(np.arange(30, 60)), torch.tensor(DATA.labels[30:60]))
IMAGES = torch.rand(18, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
LABELS = (torch.arange(9) % 3).repeat(2)


def joined(*parts: Sample) -> Sample:
    return Sample(torch.cat([part.points for part in parts]), torch.cat([part.labels for part in parts]))


def picked(sample: Sample, rows) -> Sample:
    return Sample(sample.points[rows], sample.labels[rows])


class TestEvidence:
    def test_is_the_best_linear_estimate(self):
        """Against the covariances of coins and of all steps' releases, written out."""
        random = torch.Generator().manual_seed(1)
        effects = [torch.randn(4, 7, dtype=torch.float64, generator=random) for _ in range(3)]
        noises = [torch.diag(0.5 + torch.rand(7, dtype=torch.float64, generator=random)) for _ in range(3)]
        releases = [torch.randn(7, dtype=torch.float64, generator=random) for _ in range(3)]
        evidence = Evidence(4)
        for effect, noise, release in zip(effects, noises, releases, strict=True):
            residual = release - effect.sum(0) / 2
            evidence.add(
                torch.arange(4),
                effect @ torch.linalg.solve(noise, effect.T),
                effect @ torch.linalg.solve(noise, residual),
            )
        every = torch.cat(effects, dim=1)  # (4, 21)
        covariance = torch.block_diag(*noises) + every.T @ every / 4
        residual = torch.cat(releases) - every.sum(0) / 2
        expected = every @ torch.linalg.solve(covariance, residual) / 4
        torch.testing.assert_close(evidence.scores(), expected)


def watched_record(sigma: float = 1.0, own: float = 0.5) -> tuple[Record, RecordObserver]:
    barrier = mechanism_of(Record, 2.0, sigma, rate=RATE, batch=15.0, own=own, classes=3)
    return barrier, RecordObserver(barrier, CANARIES, OTHERS)


class TestRecord:
    def test_shares_are_those_of_the_sanitizer(self):
        """Against the slow reference, record by record."""
        _, observer = watched_record()
        for kind in range(3):
            rows = (LABELS[:9] == kind).nonzero().flatten()
            members = observer._classes[kind]
            shares = observer._shares(members.units, IMAGES[:9].double()[rows])
            for at, row in enumerate(members.canaries.tolist()):
                one = picked(CANARIES, slice(row, row + 1))
                expected = record_sum(SquaredEuclidean(), IMAGES[:9], LABELS[:9], one, 1.0, 2.0)[rows]
                torch.testing.assert_close(shares[at], expected.flatten(), rtol=1e-4, atol=1e-5)

    def test_the_share_of_a_person_is_that_of_all_records(self):
        """Three records each, all of one class: summed, then clipped, as the barrier does."""
        persons = Sample(CANARIES.points, CANARIES.labels.sort().values, torch.arange(9) // 3)
        barrier, _ = watched_record()
        observer = RecordObserver(barrier, persons, OTHERS)
        for kind in range(3):
            rows = (LABELS[:9] == kind).nonzero().flatten()
            members = observer._classes[kind]
            assert members.canaries.tolist() == [kind]
            mine = slice(3 * kind, 3 * kind + 3)
            one = Sample(persons.points[mine], persons.labels[mine], torch.zeros(3, dtype=torch.int64))
            expected = barrier.clipped(IMAGES, LABELS, one)[rows]
            found = observer._shares(members.units, IMAGES[:9].double()[rows])[0]
            torch.testing.assert_close(found, expected.flatten(), rtol=1e-4, atol=1e-5)

    def test_what_is_read_of_a_step(self):
        """V Σ⁻¹ Vᵀ and V Σ⁻¹ (r - E r), with the covariance of noise and sampling written out."""
        barrier, observer = watched_record(sigma=1e-2)
        members = observer._classes[1]
        rows = (LABELS[:9] == 1).nonzero().flatten()
        x, total = IMAGES[:9].double()[rows], torch.randn(48, dtype=torch.float64)
        shares = observer._shares(members.units, x)
        covariance = barrier.mechanism.noise_std**2 * torch.eye(48, dtype=torch.float64)
        count = len(members.canaries)
        for at, share in enumerate(shares):
            covariance += RATE * (1 - RATE) * (0.5 if at < count else 1.0) * torch.outer(share, share)
        effects = RATE * shares[:count]
        precision, along = observer._read(members, x, total)
        residual = total - effects.sum(0) / 2
        torch.testing.assert_close(
            precision, effects @ torch.linalg.solve(covariance, effects.T), rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(
            along, effects @ torch.linalg.solve(covariance, residual), rtol=1e-4, atol=1e-3
        )

    def test_with_little_noise_every_canary_is_found(self):
        """Those in the sample score higher than all that are not."""
        _, observer = watched_record(sigma=1e-3)
        parameter = nn.Parameter(IMAGES.clone())
        taken = [0, 3, 4, 8]
        sample = joined(picked(CANARIES, taken), picked(OTHERS, slice(20)))
        observer.backward(parameter * 1, LABELS, sample, [parameter], SeededNoise(5))
        present = torch.zeros(9, dtype=torch.bool)
        present[taken] = True
        scores = observer.scores()
        assert scores[present].min() > scores[~present].max()


def sinkhorn(kind: str, sigma: float):
    options = (SquaredEuclidean(), 1.0, 0.5, 3)
    if kind == "image":
        return mechanism_of(Image, 0.5, sigma, *options, rows=12)
    if kind == "parameter":
        return mechanism_of(Parameter, 0.5, sigma, *options)
    return mechanism_of(Batch, 0.5, sigma, *options)


class TestNobodyNotices:
    """The same gradient, to the bit, with and without anyone who watches."""

    @pytest.mark.parametrize("kind", ["record", "batch", "image", "parameter"])
    def test_gradients(self, kind):
        if kind == "record":
            barrier, observer = watched_record()
        else:
            barrier = sinkhorn(kind, 1.0)
            observer = SinkhornObserver(barrier, CANARIES, OTHERS)
        torch.manual_seed(0)
        generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 16), nn.Tanh())
        latents, gradients = torch.randn(18, 4), []
        for each in (barrier, observer):
            parameters = list(generator.parameters())
            each.backward(generator(latents), LABELS, OTHERS, parameters, SeededNoise(5))
            gradients.append([parameter.grad.clone() for parameter in parameters])
        assert all(map(torch.equal, *gradients))
        assert observer.mechanism == barrier.mechanism
        assert observer.resampled(12) == barrier.resampled(12)
        assert observer.resampled_learn == barrier.resampled_learn

    def test_sums(self):
        barrier, observer = watched_moments(0.5)
        centres = torch.rand(3, 2, 3)
        plain, seen = (
            each.deviations([OTHERS], centres, 1.0, SeededNoise(2)) for each in (barrier, observer)
        )
        assert torch.equal(plain.deviations, seen.deviations)
        assert torch.equal(plain.counts, seen.counts)
        for pooled in (True, False):
            plain, seen = (
                each.squares([OTHERS], centres, 1.0, SeededNoise(2), pooled=pooled)
                for each in (barrier, observer)
            )
            assert torch.equal(plain.matrices, seen.matrices)


class TestSinkhorn:
    def test_parameters_are_compared_through_the_generator(self):
        """<Jᵀ s, r> by a product with each canary's own gradient of the parameters."""
        barrier = sinkhorn("parameter", 1.0)
        observer = SinkhornObserver(barrier, CANARIES, OTHERS)
        torch.manual_seed(0)
        generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 16), nn.Tanh()).double()
        parameters, latents = list(generator.parameters()), torch.randn(18, 4, dtype=torch.float64)
        points = generator(latents)
        expected = barrier.clipped(points, LABELS, OTHERS, parameters)
        observer.backward(generator(latents), LABELS, OTHERS, parameters, SeededNoise(5))
        surprise = torch.cat([parameter.grad.flatten() for parameter in parameters]) - expected
        for at in range(9):
            one = picked(CANARIES, slice(at, at + 1))
            share = torch.zeros(18, 16, dtype=torch.float64)
            share[:12] = record_sum(SquaredEuclidean(), points[:12].detach(), LABELS[:12], one, 1.0, math.inf)
            pulled = torch.autograd.grad(generator(latents), parameters, share)
            product = torch.cat([part.flatten() for part in pulled]) @ surprise
            assert float(observer.scores()[at]) == pytest.approx(float(product), rel=1e-3, abs=1e-4)

    @pytest.mark.parametrize("kind", ["batch", "image", "parameter"])
    def test_a_canary_scores_higher_in_the_batch_than_out_of_it(self, kind):
        higher = []
        for at in range(9):
            scores = []
            for sample in (OTHERS, joined(OTHERS, picked(CANARIES, [at]))):
                observer = SinkhornObserver(sinkhorn(kind, 1e-3), CANARIES, OTHERS)
                parameter = nn.Parameter(IMAGES.clone())
                observer.backward(parameter * 1, LABELS, sample, [parameter], SeededNoise(5))
                scores.append(float(observer.scores()[at]))
            higher.append(scores[1] > scores[0])
        assert sum(higher) >= 8


def watched_moments(sigma: float) -> tuple[Moments, MomentsObserver]:
    config = MixtureConfig(image_shape=(1, 4, 4), classes=3, components=2, frequencies=2)
    moments = moments_of(config, 2.0, sigma, 1000)
    return moments, MomentsObserver(moments, CANARIES, OTHERS)


class TestMoments:
    centres = torch.rand(3, 2, 3, generator=torch.Generator().manual_seed(3))
    taken = (0, 3, 4, 8)

    def step(self, observer, step, records=None):
        records = records or [joined(OTHERS, picked(CANARIES, list(self.taken)))]
        if step == "deviations":
            observer.deviations(records, self.centres, 1.0, SeededNoise(1))
        else:
            observer.squares(records, self.centres, 1.0, SeededNoise(1), pooled=step == "pooled")

    def effects(self, observer, step):
        """Each canary's part of the sums, as the barrier itself has it, in units of σ."""
        rows = []
        for at in range(9):
            one = [picked(CANARIES, slice(at, at + 1))]
            if step == "deviations":
                sums, counts = observer.clipped_deviations(one, self.centres, 1.0)
                parts = [sums.flatten() / DEVIATION_SENSITIVITY, counts.flatten() / COUNT_SENSITIVITY]
                rows.append(torch.cat(parts))
            else:
                squares, _ = observer.clipped_squares(one, self.centres, 1.0, pooled=step == "pooled")
                rows.append(squares.flatten())
        return torch.stack(rows)

    @pytest.mark.parametrize("step", ["deviations", "pooled", "squares"])
    def test_effects_of_persons(self, step):
        """Three canaries with three records each, as one vector each; two of them are in."""
        owners = torch.arange(9) // 3
        canaries = Sample(CANARIES.points, CANARIES.labels, owners)
        moments = moments_of(watched_moments(1.0)[0].config, 2.0, 1e-4, 1000, persons=True)
        nobody = Sample(OTHERS.points[:0], OTHERS.labels[:0], owners[:0])
        observer = MomentsObserver(moments, canaries, nobody)
        self.step(observer, step, [Sample(canaries.points[:6], canaries.labels[:6], owners[:6])])
        effects = []
        for number in range(3):
            own = owners == number
            one = [Sample(canaries.points[own], canaries.labels[own], owners[own])]
            weight, parts = 0.3, moments.clipped_deviations(one, self.centres, 1.0)
            if step != "deviations":
                weight, parts = 0.1, moments.clipped_squares(one, self.centres, 1.0, pooled=step == "pooled")
            joined_parts = torch.cat([parts[0].flatten(), weight * parts[1].flatten()])
            effects.append(joined_parts / math.sqrt(1 + weight**2))
        gram = torch.stack(effects) @ torch.stack(effects).T
        torch.testing.assert_close(observer._evidence._precision * 1e-8, gram, rtol=1e-3, atol=1e-4)
        assert (observer.scores() > 0).tolist() == [True, True, False]

    @pytest.mark.parametrize("step", ["deviations", "pooled", "squares"])
    def test_effects_are_those_of_the_sanitizer(self, step):
        """With next to no noise what is left of the release is the sum of those that are in, less a half."""
        sigma = 1e-4
        _, observer = watched_moments(sigma)
        self.step(observer, step)
        effects = self.effects(observer, step)
        coins = torch.full((9,), -0.5, dtype=torch.float64)
        coins[list(self.taken)] = 0.5
        gram = effects @ effects.T
        torch.testing.assert_close(observer._evidence._precision * sigma**2, gram, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(observer._evidence._along * sigma**2, gram @ coins, rtol=0, atol=1e-2)

    def test_steps_together_find_every_canary(self):
        _, observer = watched_moments(1e-3)
        for step in ("deviations", "pooled", "squares"):
            self.step(observer, step)
        present = torch.zeros(9, dtype=torch.bool)
        present[list(self.taken)] = True
        assert observer.scores()[present].min() > observer.scores()[~present].max()


class TestFlow:
    def build(self, sigma):
        facts = Facts((1, 4, 4), 3, 90, 90)
        config = FlowConfig(image_shape=(1, 4, 4), classes=3, channels=4)
        terms = Terms(facts, 1e-3, sigma, RATE, 4, 1, config, flow=FlowSettings(draws=2))
        watched = Flow(terms)
        return watched, FlowObserver(watched, CANARIES, OTHERS), build_generator(config, seed=0)

    def test_watching_changes_nothing(self):
        watched, observer, network = self.build(1.0)
        sample, draws = joined(OTHERS, picked(CANARIES, [1, 4])), StepDraws((1, 4, 4), 2, torch.Generator())
        released = [each.released(network, sample, draws, SeededNoise(1)) for each in (watched, observer)]
        assert torch.equal(*released)

    def test_canaries_that_are_in_score_higher(self):
        """With little noise and everyone in every other sample."""
        _, observer, network = self.build(0.05)
        included = torch.tensor([True, False, True, True, False, False, True, False, True])
        data, random, noise = joined(OTHERS, picked(CANARIES, included)), torch.Generator(), SeededNoise(2)
        for _ in range(25):
            taken = torch.rand(len(data.points), generator=random) < RATE
            draws = StepDraws((1, 4, 4), 2, random)
            observer.released(network, picked(data, taken), draws, noise)
        scores = observer.scores()
        assert float(scores[included].mean() - scores[~included].mean()) > 0.5
        assert roughly_sorted(scores, included) >= 0.85


def roughly_sorted(scores, included):
    """Of pairs of a canary that is in and one that is not, how many are told apart."""
    return float((scores[included][:, None] > scores[~included]).double().mean())


def critic_recipe(name: str, **privacy):
    kind = find_mechanism(name)
    recipe = load_recipe(kind.audit_recipe).replace(**kind.audit_settings(DATA.records))
    return recipe.replace(privacy=privacy)


class TestOtherSystems:
    """Little noise: what is released tells who is in, as far as the observer knows what each would do."""

    @pytest.mark.parametrize(
        ("name", "privacy", "least"),
        [
            ("dp_merf", {"noise_multiplier": 0.15}, 0.9),
            ("dp_cgan", {"noise_multiplier": 0.05, "sampling_rate": 0.5, "steps": 5}, 0.75),
            ("datalens", {"noise_multiplier": 0.3, "sampling_rate": 0.02}, 0.8),
            ("g_pate", {"noise_multiplier": 0.3, "sampling_rate": 0.02}, 0.8),
            ("gs_wgan", {"noise_multiplier": 0.01, "sampling_rate": 0.1, "steps": 30}, 0.65),
        ],
    )
    def test_scores_tell_who_is_in(self, name, privacy, least, monkeypatch):
        monkeypatch.setattr("dpsinkhorn.training.auditing.run._bounds", lambda *_: None)
        found = audit_run(DATA, critic_recipe(name, **privacy), delta=1e-5, canaries=30, seed=0)
        inside, outside = found.step_scores[found.included], found.step_scores[~found.included]
        assert float((inside[:, None] > outside).mean()) > least

    def test_bounds(self):
        recipe = critic_recipe("dp_merf", noise_multiplier=0.15)
        found = audit_run(DATA, recipe, delta=1e-5, canaries=60, seed=0)
        assert 1 < found.every_step.steinke.epsilon < found.every_step.f_dp_gaussian.epsilon < found.claimed

    def test_of_critics_each_part_is_as_with_or_without_its_canary(self):
        """So that of the residual of votes nothing is left but noise, given the coins."""
        recipe = critic_recipe("datalens", noise_multiplier=1.0, sampling_rate=0.02)
        plan = make_plan(recipe, facts_of(DATA, records=100), delta=1e-5, accountant="rdp", seed=0)
        watched = Votes(plan.terms)
        observer = TaughtObserver(watched, CANARIES, OTHERS)
        taken = [0, 3, 4, 8]
        critics = observer.critics(joined(OTHERS, picked(CANARIES, taken)), torch.Generator().manual_seed(1))
        for _ in range(3):
            critics.learn(IMAGES[: plan.generated], LABELS[: plan.generated])
        places = part_of(CANARIES, watched.parts).tolist()
        assert len(set(places)) == len(places)
        for part in range(watched.parts):
            shadow, _ = critics.shadows[part in [places[at] for at in taken]]
            assert all(
                torch.equal(*(each.layers[layer][part] for each in (critics, shadow))) for layer in range(6)
            )
        without, with_canaries = (each for each, _ in critics.shadows)
        assert [
            not torch.equal(without.layers[0][part], with_canaries.layers[0][part])
            for part in range(watched.parts)
        ] == [part in places for part in range(watched.parts)]
