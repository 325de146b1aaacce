"""Mechanism `flow`: what a record adds is its own, sums are exact, sketch and steps share one budget."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dpsinkhorn.data import from_arrays
from dpsinkhorn.generators import FlowConfig, build_generator
from dpsinkhorn.mechanisms.flow import Flow
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.record_gradients import RecordGradients, StepDraws, flow_loss
from dpsinkhorn.mechanisms.shared.terms import Facts, FlowSettings, Terms
from dpsinkhorn.privacy import epsilon, read_ledger
from dpsinkhorn.privacy.charges import flatten
from dpsinkhorn.training import Request, Run, TrainingError, facts_of, load_recipe, make_plan, plan_for
from support.runs import EVERY_BLOCK, CrashError, bits, crash_at, finished, tiny_arrays, tiny_data

SHAPE, CLASSES = (1, 5, 6), 3  # odd sizes are padded
RANDOM = torch.Generator().manual_seed(0)


def terms(clip=0.05, grouped=False, draws=3, **options):
    config = FlowConfig(image_shape=SHAPE, classes=CLASSES, channels=4)
    facts = Facts(SHAPE, CLASSES, 100, 50 if grouped else 100, grouped=grouped)
    return Terms(
        facts,
        clip,
        noise_multiplier=1.0,
        sampling_rate=0.07,
        steps=5,
        generated=1,
        generator=config,
        flow=FlowSettings(draws=draws, **options),
    )


def sample_of(count, persons=None, seed=0):
    random = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 30, generator=random) * 2 - 1
    labels = torch.randint(CLASSES, (count,), generator=random)
    groups = None if persons is None else torch.randint(persons, (count,), generator=random).sort().values
    return Sample(points, labels, groups)


def some(sample, rows):
    parts = (sample.points, sample.labels, sample.groups)
    return Sample(*(None if part is None else part[rows] for part in parts))


@pytest.fixture(scope="module")
def network():
    """A network all of whose layers have slopes: at first the last ones are 0."""
    found = build_generator(FlowConfig(image_shape=SHAPE, classes=CLASSES, channels=4), seed=1)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in found.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return found


@pytest.fixture
def draws():
    return StepDraws(SHAPE, 3, torch.Generator().manual_seed(3))


class TestDraws:
    def test_a_record_draws_the_same_in_any_company(self, draws):
        sample = sample_of(20)
        every, few = draws(sample), draws(some(sample, [7, 3]))
        for name in ("times", "noises"):
            assert torch.equal(getattr(every, name)[[7, 3]], getattr(few, name))
        assert every.rows.tolist() == [[row] * 3 for row in range(20)]

    def test_times_are_rounded_in_one_way(self, monkeypatch):
        """Also by a library that rounds in another way where more numbers go through a function together."""
        plain, sample = torch.sigmoid, sample_of(20)
        monkeypatch.setattr(torch, "sigmoid", lambda values: plain(values) + 1e-6 * values.numel())
        draws = StepDraws(SHAPE, 9, torch.Generator().manual_seed(3))  # as many as in no other test
        assert torch.equal(draws(sample).times[[7, 3]], draws(some(sample, [7, 3])).times)

    def test_steps_labels_and_pixels_draw_anew(self, draws):
        sample = sample_of(1)
        other = StepDraws(SHAPE, 3, torch.Generator().manual_seed(4))
        touched = sample.points.clone()
        touched[0, 0] += 2.0**-10
        found = [
            draws(sample),
            other(sample),
            draws(Sample(sample.points, (sample.labels + 1) % CLASSES)),
            draws(Sample(touched, sample.labels)),
        ]
        assert len({tuple(each.noises[0].tolist()) for each in found}) == 4

    def test_their_law(self):
        drawn = StepDraws(SHAPE, 4, torch.Generator().manual_seed(0))(sample_of(4000))
        uniform = torch.special.ndtr(torch.logit(drawn.times.double()))
        for part in range(4):  # a time in each quarter
            assert bool((uniform[:, part] * 4).floor().eq(part).all())
        assert abs(float(uniform.mean()) - 0.5) < 0.005
        counts = torch.bincount(drawn.noises.flatten(), minlength=4096)
        assert len(counts) == 4096
        assert float((counts - counts.double().mean()).square().mean() / counts.double().mean()) < 1.2

    def test_a_person_draws_among_their_own_records_alone(self, draws):
        sample = sample_of(30, persons=8)
        every = draws(sample)
        persons = sample.groups.unique()
        for place, person in enumerate(persons.tolist()):
            own = (sample.groups == person).nonzero().flatten()
            alone = draws(some(sample, own))
            assert set(every.rows[place].tolist()) <= set(own.tolist())
            assert len(set(every.rows[place].tolist())) == min(3, len(own))  # in turn
            assert torch.equal(own[alone.rows[0]], every.rows[place])
            assert torch.equal(alone.times[0], every.times[place])


class TestSums:
    def test_against_autograd_one_by_one(self, network, draws):
        sample, built = sample_of(11), Flow(terms())
        found = built.clipped(network, sample, draws)
        drawn, wanted, norms = draws(sample), torch.zeros_like(found), []
        for row in range(11):
            image = sample.points[[row] * 3].view(3, *SHAPE)
            loss = flow_loss(
                network.network,
                image,
                sample.labels[[row] * 3],
                drawn.times[row],
                draws.noises[drawn.noises[row]],
            ).mean()
            slopes = torch.autograd.grad(loss, list(network.parameters()))
            gradient = torch.cat([slope.flatten() for slope in slopes]).double()
            norms.append(float(gradient.norm()))
            wanted += gradient * min(1.0, 0.05 / norms[-1])
        assert min(norms) > 0.05  # all are clipped
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)

    @pytest.mark.parametrize("clip", [0.05, 100.0])
    @pytest.mark.parametrize("persons", [None, 35])
    def test_a_unit_adds_the_same_in_any_company(self, network, draws, clip, persons):
        """Bit for bit: in another place, another order, another number of chunks; and no more than C."""
        built = Flow(terms(clip, grouped=persons is not None))
        sample = sample_of(40, persons)
        one = sample.groups == sample.groups[4] if persons else torch.arange(40) == 4
        every, without, alone = (
            built.clipped(network, part, draws) for part in (sample, some(sample, ~one), some(sample, one))
        )
        assert torch.equal(every - without, alone)
        if persons is None:  # a person's records have their turns in their order
            order = torch.randperm(40, generator=RANDOM)
            assert torch.equal(built.clipped(network, some(sample, order), draws), every)
        assert 0 < float(alone.norm()) <= clip
        if clip < 1:
            assert float(alone.norm()) > 0.999 * clip

    def test_of_the_classes_a_record_moves_its_own_alone(self, network, draws):
        sample, built = sample_of(9), Flow(terms())
        names = [name for name, _ in network.named_parameters()]
        rows = torch.split(
            built.clipped_rows(network, sample, draws), [each.numel() for each in network.parameters()], dim=1
        )
        columns = rows[names.index("network.kinds.weight")].view(9, -1, CLASSES)
        own = torch.nn.functional.one_hot(sample.labels, CLASSES).bool()
        assert torch.equal(columns.abs().sum(1) > 0, own)

    def test_an_empty_sample_and_labels_of_no_class_add_nothing(self, network, draws):
        built, sample = Flow(terms()), sample_of(6)
        nothing = torch.zeros(network.config.parameters, dtype=torch.float64)
        assert torch.equal(built.clipped(network, some(sample, []), draws), nothing)
        none = Sample(sample.points, torch.tensor([-1, 3, 99, -5, 3, 4]))
        assert torch.equal(built.clipped(network, none, draws), nothing)

    def test_pixels_that_are_no_numbers(self, network, draws):
        built, sample = Flow(terms()), sample_of(3)
        points = sample.points.clone()
        points[1] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -7.0]).repeat(6)
        wild = built.clipped(network, Sample(points, sample.labels), draws)
        rest = built.clipped(network, some(sample, [0, 2]), draws)
        assert float((wild - rest).norm()) <= 0.05

    def test_a_gradient_that_overflows_adds_nothing(self, network, draws):
        broken = build_generator(network.config, seed=1)
        with torch.no_grad():
            for parameter in broken.parameters():
                parameter.fill_(1e30)
        found = Flow(terms()).clipped(broken, sample_of(3), draws)
        assert float(found.norm()) == 0

    @pytest.mark.parametrize("what", ["gradient", "norm"])
    def test_a_device_that_mixes_records_is_refused(self, network, monkeypatch, what):
        fresh = build_generator(network.config, seed=1)
        gradients = RecordGradients(fresh, 1.0, 2**20, draws=2, chunk=32)
        gradients.check_places()
        original = RecordGradients._gradients

        def mixing(self, images, *others):
            """A relative error in one inner layer, whose gradients are 0 at first."""
            found, inner = original(self, images, *others), self.network.network.middle[1].first.weight
            if what == "norm":
                return dataclasses.replace(found, squares=found.squares * (1 + 1e-12 * float(images.sum())))
            wrong = {inner: found.parts[inner] * (1 + 1e-6 * images.sum())}
            return dataclasses.replace(found, parts={**found.parts, **wrong})

        monkeypatch.setattr(RecordGradients, "_gradients", mixing)
        with pytest.raises(ValueError, match="depends on its place among the others"):
            gradients.check_places()


class TestSampling:
    @pytest.mark.parametrize("evaluations", [2, 20])
    def test_what_has_no_noise_left_is_not_asked_for_its_velocity(self, network, monkeypatch, evaluations):
        """Where every image is the same one, the velocity towards it has no value at time 1."""
        drawn = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(0)) * 2 - 1
        calls = []

        def towards(images, times, labels):  # noqa: ARG001
            calls.append(float(times[0]))
            return (drawn - images) / (1 - times).view(-1, 1, 1, 1)

        config = dataclasses.replace(network.config, evaluations=evaluations)
        flow = build_generator(config, seed=0)
        monkeypatch.setattr(flow.network, "forward", towards)
        latents = torch.rand(4, 30, generator=torch.Generator().manual_seed(1))
        images = flow(latents, torch.zeros(4, dtype=torch.int64))
        torch.testing.assert_close(images, drawn.expand(4, -1, -1, -1), rtol=0, atol=1e-5)
        assert len(calls) == evaluations - 1
        assert max(calls) < 1


class TestBudget:
    def test_sketch_and_steps_share_it(self):
        data = tiny_data(records=600)
        plan = plan_for(data, Request(epsilon=8.0, recipe="flow", settings={"privacy": {"steps": 20}}))
        assert 0.99 * 8 < plan.epsilon <= 8
        steps, sketch = plan.charges
        assert plan.preparations == (sketch,)
        (sums,) = flatten(sketch.event)
        assert sums.count == plan.recipe.flow.sketch_steps
        assert epsilon(sketch, plan.delta) < epsilon(steps, plan.delta) < plan.epsilon

    @pytest.mark.parametrize("share", [0.01, 0.3])
    def test_its_share_is_one_of_variance(self, share):
        given = dataclasses.replace(terms(share=share), steps=400, sampling_rate=0.1, noise_multiplier=2.0)
        sketch = Flow.preparation(given)
        (sums,) = flatten(sketch.event)
        of_sketch = sums.count / sums.event.event.noise_multiplier**2
        of_steps = 400 * 0.1**2 * (torch.tensor(0.25).exp() - 1)
        assert of_sketch / (of_sketch + of_steps) == pytest.approx(share, rel=1e-5)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"flow": {"share": 1.0}}, "flow.share must be below 1"),
            ({"flow": {"draws": 0}}, "flow.draws must be a positive number"),
            ({"flow": {"sketch_steps": 3}}, "at least 4 steps"),
            ({"loss": {"self_weight": 0.5}}, "loss.self_weight plays no part"),
        ],
    )
    def test_settings_that_are_refused(self, changes, message):
        with pytest.raises(TrainingError, match=message):
            plan_for(tiny_data(records=600), Request(epsilon=8.0, recipe="flow", settings=changes))

    def test_others_have_no_use_for_its_settings(self):
        with pytest.raises(TrainingError, match=r"flow.draws plays no part in the recipe mixture"):
            plan_for(tiny_data(records=600), Request(epsilon=8.0, settings={"flow": {"draws": 2}}))


def tiny_flow(data, **options):
    recipe = load_recipe("flow").replace(**Flow.audit_settings(data.records))
    recipe = recipe.replace(privacy={"noise_multiplier": 1.5}, flow={"updates": 80})
    return make_plan(recipe, facts_of(data), delta=1e-5, accountant="rdp", seed=4, **options)


class TestRuns:
    def test_a_crash_while_it_learns_from_the_sketch(self, tmp_path):
        """The sketch is not released again, and what follows is the same to the last bit."""
        data = tiny_data(records=40)
        plan = tiny_flow(data)
        whole = finished(tmp_path / "whole", plan, data)
        run, seen = Run.create(tmp_path / "crashed", plan), []

        def stop(progress):
            seen.append(progress.block)
            return progress.block.updates >= 40

        assert not run.train(data, saving=EVERY_BLOCK, watch=stop)
        assert seen[-1].updates == 40
        assert seen[-1].updates_in_all == 80
        assert {block.step for block in seen} == {0}
        resumed = Run.resume(run.folder)
        assert resumed.train(data, saving=EVERY_BLOCK)
        assert bits(resumed.folder) == bits(whole.folder)

    def test_sketches_that_crashes_lost_stay_within_the_runs_own_epsilon(self, tmp_path):
        """Also on a ledger that allows others more."""
        data = tiny_data(records=40)
        plan = dataclasses.replace(tiny_flow(data), seed=None)
        ledger = tmp_path / "shared.jsonl"
        run = Run.create(tmp_path / "run", plan, ledger=ledger, budget=20 * plan.budget_epsilon)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Flow, "prepare", lambda *_: (_ for _ in ()).throw(CrashError))
            for _ in range(30):
                with pytest.raises((CrashError, TrainingError)) as raised:
                    Run.resume(run.folder).train(data)
                if raised.type is TrainingError:
                    break
        assert "used up this run's own epsilon" in str(raised.value)
        assert epsilon(read_ledger(ledger).total(), plan.delta, "rdp") <= plan.budget_epsilon

    def test_a_resumed_run_tries_its_device(self, tmp_path, monkeypatch):
        data, tried = tiny_data(records=40), []
        run = Run.create(tmp_path / "run", tiny_flow(data))
        crash_at(2, run, data)
        monkeypatch.setattr(Flow, "check_device", lambda *_: tried.append(True))
        assert Run.resume(run.folder).train(data)
        assert tried == [True]

    def test_a_crash_in_the_steps(self, tmp_path):
        data = tiny_data(records=40)
        plan = tiny_flow(data)
        run = Run.create(tmp_path / "run", plan)
        crash_at(2, run, data)
        assert Run.resume(run.folder).train(data)
        whole = finished(tmp_path / "whole", plan, data)
        assert bits(run.folder)["release"] == bits(whole.folder)["release"]

    def test_persons(self, tmp_path):
        images, labels, groups = tiny_arrays(records=60, persons=15)
        data = from_arrays(images, labels, groups=groups)
        run = finished(tmp_path / "run", tiny_flow(data), data)
        assert run.plan.facts.unit == "person"
