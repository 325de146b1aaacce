"""Steps of `moments`: what is learnt, against slow references; runs, crashes and resumes; refusals."""

from __future__ import annotations

import dataclasses
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.utils._python_dispatch import TorchDispatchMode

from dpsinkhorn import DPSinkhorn, load
from dpsinkhorn.data import from_arrays, load_dataset
from dpsinkhorn.generators import Mixture, MixtureConfig
from dpsinkhorn.mechanisms.moments import Moments, Squares, Sums
from dpsinkhorn.mechanisms.shared import base
from dpsinkhorn.mechanisms.shared.moment_steps import Coordinates, MomentSteps
from dpsinkhorn.privacy import epsilon, read_ledger
from dpsinkhorn.training import Run, TrainingError, facts_of, load_recipe, make_plan, records, trainer
from dpsinkhorn.training.records import Records
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import make_steps
from dpsinkhorn.training.trial import try_plan
from support.moment_oracles import low_frequencies, reference, scaled_coordinates
from support.runs import (
    AT_THE_END,
    DATA,
    EVERY_BLOCK,
    CrashError,
    Everything,
    bits,
    finished,
    go_on,
    header_step,
    lines,
    steps_on_record,
    tiny_data,
)

CPU = torch.device("cpu")
QUIET = {"sigma": 1e-3, "clip": 20.0}


def recipe(*, steps=6, sigma=1.5, components=2, frequencies=4, clip=7.0, **sections):
    return load_recipe("mixture").replace(
        privacy={"steps": steps, "noise_multiplier": sigma, "clip": clip, **sections.pop("privacy", {})},
        generator={"components": components, "frequencies": frequencies, **sections.pop("generator", {})},
        **sections,
    )


def plan_of(data, *, seed=3, labels="uniform", accountant="rdp", records=None, **options):
    return make_plan(
        recipe(**options),
        facts_of(data, records=records),
        delta=1e-5,
        accountant=accountant,
        labels=labels,
        seed=seed,
    )


def steps_of(data, plan, horizon=None):
    state = TrainingState(plan, CPU)
    steps = make_steps(plan, state, Records(data, CPU), plan.build(), (), horizon=horizon or plan.steps)
    assert isinstance(steps, MomentSteps)
    return state, steps


def all_digits():
    return load_dataset("digits", split="train")


def spectra(data, frequencies):
    config = MixtureConfig(image_shape=data.image_shape, classes=data.classes, frequencies=frequencies)
    return low_frequencies(config, data.points().numpy())


def numbers_of(mixture):
    """The generator's tensors, as numpy has them."""
    return {name: value.detach().double().numpy().copy() for name, value in mixture.named_parameters()}


def coordinates_in(numbers, *, first):
    factor = numbers["factors"][0]
    return scaled_coordinates(
        factor @ factor.T, numbers["centres"], numbers["middles"], numbers["weights"], first=first
    )


class TestWhatIsLearnt:
    """With noise of a thousandth, and wide bounds: textbook estimates, by numpy."""

    def test_means_of_one_component(self):
        data = all_digits()
        state, steps = steps_of(data, plan_of(data, components=1, steps=3, frequencies=8, **QUIET))
        steps.take(3)
        found = state.generator
        values = spectra(data, 8)
        for kind in range(10):
            own = values[data.labels == kind]
            np.testing.assert_allclose(found.middles[kind].detach(), own.mean(0), atol=2e-3)
            np.testing.assert_allclose(found.centres[kind, 0].detach(), own.mean(0), atol=2e-3)
        np.testing.assert_allclose(found.weights.detach().sum(1), np.bincount(data.labels), rtol=1e-4)

    @pytest.mark.parametrize("components", [1, 4])
    def test_covariances_of_clipped_deviations(self, components):
        """The last step: where all else is exact, what is clipped in scaled coordinates, brought back."""
        data = all_digits()
        steps_in_all = 3 if components == 1 else 7
        options = {"components": components, "steps": steps_in_all, "frequencies": 5, **QUIET}
        state, steps = steps_of(data, plan_of(data, **options))
        steps.take(steps_in_all - 1)
        before = numbers_of(state.generator)
        matrix, back, _, radius = coordinates_in(before, first=steps_in_all == 3)
        config = state.generator.config
        points = data.points().numpy()
        _, counts, squares = reference(config, points, data.labels, before["centres"], radius, matrix)
        steps.take(1)
        for kind, factor in enumerate(numbers_of(state.generator)["factors"]):
            expected = back @ (radius**2 * squares[kind] / counts[kind].sum()) @ back.T
            np.testing.assert_allclose(factor @ factor.T, expected, atol=0.01 * np.abs(expected).max())

    def test_the_common_covariance(self):
        data = all_digits()
        state, steps = steps_of(data, plan_of(data, steps=6, frequencies=5, **QUIET))
        steps.take(2)
        values = spectra(data, 5)
        own = np.concatenate([values[data.labels == c] - values[data.labels == c].mean(0) for c in range(10)])
        for factor in state.generator.factors.detach().double().numpy():
            np.testing.assert_allclose(factor @ factor.T, own.T @ own / len(own), atol=2e-3)

    def test_a_component_without_records_is_hardly_drawn(self):
        data = all_digits()
        state, steps = steps_of(data, plan_of(data, components=4, steps=6, frequencies=5, sigma=1.5))
        steps.take(2)
        state.generator.centres.data[:, 3] += 100.0  # nearest to no record
        steps.take(1)
        weights = state.generator.weights.detach()
        shares = weights / weights.sum(1, keepdim=True)
        assert 0 < float(shares[:, 3].max()) < 0.05 < 0.1 < float(shares[:, :3].mean())

    def test_centres_are_moved_as_by_k_means(self):
        """By clipped deviations from the nearest, in coordinates found anew from what was released."""
        data = all_digits()
        state, steps = steps_of(data, plan_of(data, components=4, steps=8, frequencies=6, **QUIET))
        steps.take(2)
        found = state.generator
        points, compared, radii = data.points().numpy(), 0, []
        for step in range(2, 7):
            before = numbers_of(found)
            assert np.abs(before["centres"] - before["centres"][:, :1]).max() > 0.1
            matrix, back, _, radius = coordinates_in(before, first=step == 2)
            radii.append(radius)
            sums, counts, _ = reference(found.config, points, data.labels, before["centres"], radius, matrix)
            steps.take(1)
            after = numbers_of(found)
            for kind in range(10):
                if counts[kind].min() < 0.1 * counts[kind].sum() / 4:
                    continue  # small components are held down; this comparison is not about them
                moved = radius * sums[kind] / counts[kind][:, None] @ back.T
                np.testing.assert_allclose(after["centres"][kind], before["centres"][kind] + moved, atol=5e-3)
                np.testing.assert_allclose(after["weights"][kind], counts[kind], rtol=5e-3)
                compared += 1
        assert compared > 30
        assert radii[-1] < 0.95 * radii[0]  # centres leave less over than the mean does
        steps.take(1)
        assert state.step == 8

    def test_centres_are_shrunk_by_their_noise(self, monkeypatch):
        """With sums that are given, in place of noised ones: the formula, direction by direction."""
        data = all_digits()
        state, steps = steps_of(data, plan_of(data, components=3, steps=6, frequencies=4, **QUIET))
        steps.take(2)
        before = numbers_of(state.generator)
        sigma = steps._sigma = 5.0
        counts = np.random.default_rng(1).uniform(20, 90, (10, 3))
        given = np.random.default_rng(2).normal(0, 9, before["centres"].shape)
        sums = Sums(torch.from_numpy(given), torch.from_numpy(counts))
        monkeypatch.setattr(Moments, "deviations", lambda *_, **__: sums)
        steps.take(1)
        _, _, variances, radius = coordinates_in(before, first=True)
        place = Coordinates.of(
            torch.from_numpy(before["factors"][0])
        )  # eigenvectors have no sign of their own
        matrix = (place.size * place.matrix).numpy()
        even = before["weights"].sum(1) / 3
        for kind in range(10):
            for j in range(3):
                count = max(counts[kind, j], 0.1 * even[kind])
                off = matrix @ (before["centres"][kind, j] - before["middles"][kind])
                off += radius * given[kind, j] / count
                noise = (np.sqrt(1.09) * sigma * radius / count) ** 2
                off *= 0.5 * variances / (0.5 * variances + noise)
                expected = before["middles"][kind] + np.linalg.solve(matrix, off)
                got = numbers_of(state.generator)["centres"][kind, j]
                np.testing.assert_allclose(got, expected, atol=1e-4)

    def test_means_of_rare_classes_are_shrunk_by_their_noise(self, monkeypatch):
        """Towards the mean of all records, where a class is rare; the others stay."""
        data = all_digits()
        state, steps = steps_of(data, plan_of(data, components=2, steps=6, frequencies=4, **QUIET))
        steps.take(1)
        found = state.generator
        before, counts = numbers_of(found)["middles"], np.array([*[1000.0] * 9, 20.0])
        found.weights.data.copy_(torch.tensor(counts).unsqueeze(1).expand(10, 2) / 2)
        sigma = steps._sigma = 5.0
        squares = Squares(torch.diag(torch.arange(1.0, 11.0).double()).unsqueeze(0) * 300, None)
        monkeypatch.setattr(Moments, "squares", lambda *_, **__: squares)
        steps.take(1)
        factor, after = (numbers_of(found)[name] for name in ("factors", "middles"))
        values, vectors = np.linalg.eigh(factor[0] @ factor[0].T)
        common = counts @ before / counts.sum()
        scale = np.sqrt(1.09) * 1.75 * steps._radius * sigma
        excess = np.maximum(0, (scale / counts) ** 2 - (scale / counts.mean()) ** 2)
        kept = values / (values + excess[:, None])
        expected = common + (before - common) @ vectors * kept @ vectors.T
        np.testing.assert_allclose(after, expected, atol=1e-4)
        moved = np.linalg.norm(after - before, axis=1) / np.linalg.norm(before - common, axis=1)
        assert moved[:9].max() < 1e-4 < 0.3 < moved[9] < 1

    def test_samples_have_the_moments_of_the_data(self):
        data = all_digits()
        state, steps = steps_of(data, plan_of(data, components=1, steps=3, frequencies=3, **QUIET))
        steps.take(3)
        mixture = state.generator
        draws = torch.Generator().manual_seed(0)
        latents = torch.rand(20_000, mixture.config.latent, generator=draws)
        labels = torch.zeros(20_000, dtype=torch.int64)
        with torch.no_grad():
            spread = mixture._deviations(latents[:, 1:], labels).numpy()
        expected = np.cov(spectra(data, 3)[data.labels == 0].T, bias=True)
        np.testing.assert_allclose(np.cov(spread.T), expected, atol=0.05)

    def test_components_are_drawn_by_their_weights(self):
        config = MixtureConfig(image_shape=(1, 4, 4), classes=2, components=3, frequencies=2)
        mixture = Mixture(config)
        with torch.no_grad():
            mixture.weights.copy_(torch.tensor([[1.0, 0.0, 3.0], [0.0, 5.0, 0.0]]))
        labels = torch.arange(40_000) % 2
        chosen = mixture._chosen(torch.rand(40_000, generator=torch.Generator().manual_seed(0)), labels)
        shares = torch.bincount(chosen[labels == 0], minlength=3) / 20_000
        np.testing.assert_allclose(shares, [0.25, 0, 0.75], atol=0.02)
        assert (chosen[labels == 1] == 1).all()

    def test_digits_at_epsilon_10(self):
        """Logistic regression on what was drawn, tested on real digits that were never trained on."""
        train, test = all_digits(), load_dataset("digits", split="test")
        model = DPSinkhorn(10.0, 1e-5, recipe="mixture", value_range=train.value_range, random_state=0)
        images, labels = model.fit(train.images, train.labels).sample(5000)
        assert 9.9 < model.privacy_.epsilon <= 10
        assert model.privacy_.mechanism == "moments"
        classifier = LogisticRegression(max_iter=500).fit(images.reshape(5000, -1) / 255, labels)
        real = np.asarray(test.images, dtype=np.float64).reshape(len(test.images), -1) / 16
        assert classifier.score(real, test.labels) > 0.88


class TestOddData:
    @pytest.mark.parametrize(
        "data",
        [
            tiny_data(labelled=False),
            tiny_data(records=1, classes=1),
            tiny_data(records=3),
            from_arrays(np.zeros((20, 4, 4), np.uint8), np.zeros(20, np.int64), classes=5),
            from_arrays(np.random.default_rng(0).integers(0, 65536, (60, 4, 5, 3), dtype=np.uint16)),
            from_arrays(np.random.default_rng(0).random((30, 1, 1)), np.arange(30) % 2, value_range=(0, 1)),
        ],
        ids=["unlabelled", "one record", "one of each", "empty classes", "colour, 16 bit", "one pixel"],
    )
    def test_trains_and_draws(self, tmp_path, data):
        run = finished(tmp_path / "run", plan_of(data, seed=None), data)
        release = load(run.folder)
        images, labels = release.sample(50)
        assert len(images) == 50
        assert (labels is None) == (data.labels is None)
        assert release.releasable

    def test_class_frequencies_can_be_released(self, tmp_path):
        images = np.random.default_rng(0).integers(0, 255, (400, 4, 4), dtype=np.uint8)
        data = from_arrays(images, (np.arange(400) % 4 == 0).astype(np.int64))
        run = finished(tmp_path / "run", plan_of(data, labels="released", seed=None), data)
        assert load(run.folder).label_probabilities == pytest.approx((0.75, 0.25), abs=0.3)

    def test_a_dry_run(self):
        data = all_digits()
        for options in ({}, {"components": 1, "steps": 3}):
            assert try_plan(plan_of(data, **options), CPU).seconds > 0
        assert try_plan(plan_of(tiny_data(persons=20)), CPU).seconds > 0


class TestRuns:
    def test_two_runs_are_equal(self, tmp_path):
        plan = plan_of(DATA)
        finished(tmp_path / "a", plan, DATA)
        finished(tmp_path / "b", plan, DATA, saving=AT_THE_END)
        assert bits(tmp_path / "a") == bits(tmp_path / "b")
        finished(tmp_path / "c", dataclasses.replace(plan, seed=4), DATA)
        assert bits(tmp_path / "a")["release"] != bits(tmp_path / "c")["release"]

    @pytest.mark.parametrize("labels", ["uniform", "released"])
    def test_interrupted_equals_uninterrupted(self, tmp_path, labels):
        plan = plan_of(DATA, labels=labels)
        finished(tmp_path / "whole", plan, DATA)
        interrupted = 0
        for trial in range(4):
            choices = random.Random(trial)
            folder = tmp_path / f"broken-{trial}"
            interrupted += go_on(folder, plan, DATA, 0.4, choices, saving=AT_THE_END)
            assert bits(folder) == bits(tmp_path / "whole")
            assert steps_on_record(folder / "ledger.jsonl", plan.step_charge) == plan.steps
        assert interrupted >= 4

    @pytest.mark.parametrize("trial", range(4))
    def test_a_lost_step_of_a_secure_run_is_charged_anew(self, tmp_path, monkeypatch, trial):
        """Every pass over the records finds itself paid for; a run that lost steps ends with fewer."""
        plan = plan_of(DATA, seed=None, accountant="pld")
        folder, choices = tmp_path / "run", random.Random(trial)
        used = []
        real = records.Records.every

        def every(self):
            used.append(1)
            assert len(used) <= steps_on_record(folder / "ledger.jsonl", plan.step_charge)
            if choices.random() < 0.3:
                raise CrashError
            return real(self)

        monkeypatch.setattr(records.Records, "every", every)
        run, crashes = Run.create(folder, plan), 0
        while True:
            try:
                assert run.train(DATA, saving=AT_THE_END)
                break
            except CrashError:
                crashes += 1
                run = Run.resume(folder)
            except TrainingError:  # all of the budget went into steps that were lost
                break
        on_record = steps_on_record(folder / "ledger.jsonl", plan.step_charge)
        assert on_record == len(used) == plan.steps
        assert header_step(folder) == plan.steps - crashes
        if run.done:
            privacy = load(folder).privacy
            total = read_ledger(folder / "ledger.jsonl").total()
            assert privacy.epsilon == pytest.approx(epsilon(total, plan.delta, "pld"), rel=1e-9)
            assert privacy.epsilon <= plan.budget_epsilon

    def test_a_step_is_saved_as_soon_as_it_is_taken(self, tmp_path):
        plan = plan_of(DATA, seed=None)
        run, seen = Run.create(tmp_path / "run", plan), []

        def watch(progress):
            seen.append((progress.block.step, progress.block.steps))
            if len(seen) == 4:
                raise CrashError
            return False

        with pytest.raises(CrashError):
            run.train(DATA, saving=AT_THE_END, watch=watch)
        assert seen == [(1, 1), (2, 1), (3, 1), (4, 1)]
        assert header_step(run.folder) == 4

    def test_statistics(self, tmp_path):
        finished(tmp_path / "run", plan_of(DATA), DATA, saving=EVERY_BLOCK)
        found = lines(tmp_path / "run")
        assert [line["step"] for line in found] == [1, 2, 3, 4, 5, 6]
        assert all(line["gradient_norm"] > 0 for line in found)

    @pytest.mark.parametrize("horizon", [1, 2, 3, 4, 5])
    def test_a_run_that_ends_early_still_has_a_generator(self, horizon):
        plan = plan_of(DATA)
        state, steps = steps_of(DATA, plan, horizon=horizon)
        steps.take(horizon)
        for name, value in state.generator.state_dict().items():
            assert bool(torch.isfinite(value).all()), name

    def test_another_solver_finds_the_same(self, monkeypatch):
        """Devices differ in the signs of eigenvectors; what is learnt is the same, with the same noise."""
        data, real = all_digits(), torch.linalg.eigh

        def turned(matrix):
            values, vectors = real(matrix)
            signs = torch.ones_like(values)
            signs[..., ::3] = -1
            return values, vectors * signs.unsqueeze(-2)

        learnt = []
        for solver in (real, turned):
            monkeypatch.setattr(torch.linalg, "eigh", solver)
            state, steps = steps_of(data, plan_of(data, components=1, frequencies=8))
            steps.take(6)
            learnt.append(numbers_of(state.generator))
        for name in ("weights", "middles", "centres"):
            np.testing.assert_allclose(learnt[0][name], learnt[1][name], atol=1e-5)
        first, second = (found["factors"] @ found["factors"].transpose(0, 2, 1) for found in learnt)
        assert np.linalg.norm(first - second) <= 1e-4 * np.linalg.norm(first)

    def test_private_data_are_seen_through_noised_sums_only(self, monkeypatch):
        """With fixed sums in place of noised ones, all data sets are asked the same, and teach the same."""
        from dpsinkhorn.mechanisms import moments

        monkeypatch.setattr(base, "add_gaussian", lambda values, **_: torch.ones_like(values))
        asked = []
        real = moments.Moments.clipped_units

        def units(self, records, centres, radius, coordinates, *summed):
            asked[-1].append(
                (
                    centres,
                    torch.tensor(radius, dtype=torch.float64),
                    torch.empty(0) if coordinates is None else coordinates,
                )
            )
            return real(self, records, centres, radius, coordinates, *summed)

        monkeypatch.setattr(moments.Moments, "clipped_units", units)
        learnt = []
        for seed, count in ((0, 90), (1, 75)):
            asked.append([])
            data = tiny_data(records=count, seed=seed)
            state, steps = steps_of(data, plan_of(data))
            steps.take(6)
            learnt.append(state.generator.state_dict())
        assert all(torch.equal(learnt[0][name], learnt[1][name]) for name in learnt[0])
        assert len(asked[0]) == len(asked[1]) == 6
        for first, second in zip(*asked, strict=True):
            assert all(torch.equal(mine, other) for mine, other in zip(first, second, strict=True))


class Elsewhere(torch.Tensor):
    """Stands for a tensor on another device: it can be brought here, or written to, and nothing else."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        assert function in (torch.Tensor.cpu, torch.Tensor.detach, torch.Tensor.copy_), function
        found = super().__torch_function__(function, types, arguments, named)
        return found.as_subclass(torch.Tensor) if function is torch.Tensor.cpu else found


def sent_elsewhere(release):
    def sent(*given, **named):
        found = release(*given, **named)
        there = {
            name: value.as_subclass(Elsewhere) for name, value in vars(found).items() if value is not None
        }
        return dataclasses.replace(found, **there)

    return sent


class TestDevices:
    """Sums over records are the same bits on all devices; what follows them is computed on the CPU."""

    @pytest.mark.parametrize("persons", [None, 20])
    def test_what_follows_the_noise_is_computed_here(self, persons, monkeypatch):
        """Else what stands for tensors of another device would say so."""
        data = tiny_data(persons=persons)
        plan = plan_of(data, components=3)
        expected, steps = steps_of(data, plan)
        steps.take(6)
        state, steps = steps_of(data, plan)
        own = [parameter.detach().as_subclass(Elsewhere) for parameter in state.parameters]
        learner = SimpleNamespace(**{**vars(state), "parameters": own, "generator": state.generator})
        monkeypatch.setattr(Moments, "deviations", sent_elsewhere(Moments.deviations))
        monkeypatch.setattr(Moments, "squares", sent_elsewhere(Moments.squares))
        moved = MomentSteps(learner, Records(data, CPU), plan.build(), horizon=6)
        moved.take(6)
        for one, other in zip(expected.parameters, own, strict=True):
            assert torch.equal(one.detach(), other.as_subclass(torch.Tensor))
        assert all(type(change) is torch.Tensor for change in learner.gradients)

    @pytest.mark.parametrize("persons", [None, 20])
    def test_sums_that_another_processor_takes_leave_the_same_bits(self, persons, monkeypatch):
        """One that adds up in another order, and divides by a number as PyTorch does on a GPU."""
        data = tiny_data(persons=persons)
        data = dataclasses.replace(
            data, images=(data.images / 255).astype(np.float32), value_range=(0.1, 0.7)
        )
        plan, used, released = plan_of(data, components=3, sigma=1e-5, frequencies=5), set(), []
        for processor in (Operations, AnotherProcessor):
            released.append([])
            with monkeypatch.context() as patch:
                for owner, name in ((Moments, "deviations"), (Moments, "squares"), (Records, "_points")):
                    real = getattr(owner, name)
                    patch.setattr(owner, name, computed_by(processor, real, used, released[-1]))
                steps_of(data, plan)[1].take(6)
        assert {"mm", "sum", "index_add_", "div_"} <= used
        assert len(released[0]) > 12
        assert all(torch.equal(one, other) for one, other in zip(*released, strict=True))

    def test_nothing_is_drawn_there(self):
        kind = plan_of(DATA).kind
        assert [kind.learns_on(torch.device(device)) for device in ("cuda", "cpu")] == [CPU, CPU]

    def test_what_is_asked_is_computed_number_by_number(self):
        """Sums of public numbers, whose order is a library's own, would differ in their last bits."""
        moments = plan_of(DATA, components=3).build()
        k = moments.config.coefficients
        centres = 1e3 * torch.randn(4, 3, k, generator=torch.Generator().manual_seed(0))
        with Operations() as used:
            moments.place(centres)
            moments._matrix(centres[0, :1] * torch.ones(k, 1))
        assert {"mul", "add", "cat", "sqrt_", "reciprocal", "round_"} <= used.names
        assert not [name for name in used.names if re.search("sum|norm|mm|dot|mean", name)]


class Operations(TorchDispatchMode):
    """Notes which operations are made."""

    def __init__(self, names=None):
        super().__init__()
        self.names = set() if names is None else names

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*arguments, **(named or {}))


class AnotherProcessor(Operations):
    """Adds up from the last to the first, and divides by a number by way of the reciprocal."""

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        name, given = function.overloadpacket.__name__, list(arguments)
        if name in ("div", "div_") and not isinstance(given[1], torch.Tensor):
            return getattr(given[0], name.replace("div", "mul"))(1 / given[1])
        if name == "mm":
            given = [given[0].flip(1), given[1].flip(0)]
        elif name == "sum":
            given[0] = given[0].flip(given[1] if len(given) > 1 else tuple(range(given[0].ndim)))
        elif name == "index_add_":
            given[2:4] = given[2].flip(0), given[3].flip(given[1])
        return super().__torch_dispatch__(function, types, tuple(given), named)


def computed_by(processor, real, used, released):
    def computed(*given, **named):
        with processor(used):
            found = real(*given, **named)
        numbers = [found] if isinstance(found, torch.Tensor) else vars(found).values()
        released.extend(each for each in numbers if each is not None)
        return found

    return computed


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"privacy": {"sampling_rate": 0.5}}, "sampling rate"),
            ({"steps": 3}, "at least 4 steps"),
            ({"steps": 2, "components": 1}, "at least 3 steps"),
            ({"optimizer": {"ema": 0.9}}, "ema"),
            ({"privacy": {"mechanism": "record"}}, "belong together"),
            ({"generator": {"components": 0}}, "components"),
            ({"generator": {"latent": 12}}, "no field 'latent'"),
            ({"generator": {"components": 4096, "frequencies": 4096}}, None),
        ],
    )
    def test_settings(self, options, words):
        if words is None:
            plan_of(DATA, **options)
            return
        with pytest.raises(TrainingError, match=words) as error:
            plan_of(DATA, **options)
        assert "\n" not in str(error.value)

    def test_another_generator(self):
        other = load_recipe("digits").replace(
            privacy={"mechanism": "moments", "sampling_rate": 1.0, "noise_multiplier": 1.0}
        )
        with pytest.raises(TrainingError, match="mixture"):
            make_plan(other, facts_of(DATA))

    def test_a_plan_that_was_edited(self):
        plan = plan_of(DATA)
        edited = plan.to_json()
        edited["sampling_rate"] = 0.5
        with pytest.raises(TrainingError, match="sampling rate"):
            type(plan).from_json(edited)

    def test_too_much_for_exact_sums(self, tmp_path):
        data = tiny_data(labelled=False, shape=(64, 64))
        plan = plan_of(data, frequencies=80, components=1, records=2**40)
        with pytest.raises(TrainingError, match="lower frequencies"):
            Run.create(tmp_path / "run", plan)
        assert not (tmp_path / "run").exists()


def test_blocks_are_of_one_step(monkeypatch):
    """However quick they are: each costs a large part of the budget."""
    monkeypatch.setattr(trainer, "_next_block", lambda _steps, _seconds: 1000)
    plan = plan_of(DATA)
    blocks = trainer.Trainer(plan, DATA, CPU, Everything(6)).blocks()
    assert [block.steps for block in blocks] == [1] * 6
