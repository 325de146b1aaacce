"""Plans: every number that privacy depends on, settled from public facts; their trial, and their types."""

from __future__ import annotations

import json
import math
import time

import pytest
import torch

from dpsinkhorn.ot import L1L2, Cityblock, SquaredEuclidean
from dpsinkhorn.privacy import compose, epsilon
from dpsinkhorn.training import Plan, TrainingError, make_plan, trial
from dpsinkhorn.training.plan import Facts
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import FixedSteps, PlainSteps, make_steps
from support.runs import MECHANISMS, tiny_data, tiny_plan, tiny_recipe

FACTS = Facts((1, 4, 4), 3, 90, 90)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("labels", ["uniform", "released", (3, 1, 0)])
def test_a_plan_survives_json(mechanism, labels):
    if mechanism == "none" and labels == "released":
        return
    plan = make_plan(tiny_recipe(mechanism), FACTS, labels=labels, accountant="rdp", seed=5)
    text = json.dumps(plan.to_json(), allow_nan=False)
    assert Plan.from_json(json.loads(text)) == plan


@pytest.mark.parametrize("mechanism", ["record", "image"])
@pytest.mark.parametrize("budget", [0.5, 8.0])
def test_the_noise_is_the_least_that_keeps_the_budget(mechanism, budget):
    plan = make_plan(tiny_recipe(mechanism, steps=50), FACTS, budget_epsilon=budget)
    assert 0.99 * budget < plan.epsilon <= budget
    assert plan.budget_epsilon == budget


@pytest.mark.parametrize("budget", [1.0, 8.0])
def test_released_frequencies_share_the_budget(budget):
    plan = make_plan(tiny_recipe(steps=50), FACTS, budget_epsilon=budget, labels="released")
    alone = make_plan(tiny_recipe(steps=50), FACTS, budget_epsilon=budget)
    assert 0.98 * budget < plan.epsilon <= budget
    assert plan.noise_multiplier > alone.noise_multiplier
    assert plan.epsilon == pytest.approx(epsilon(compose(*plan.charges), plan.delta, "pld"))
    assert len(plan.charges) == 2


def test_frequencies_that_cost_more_than_the_budget():
    with pytest.raises(TrainingError, match="what comes before the first step takes all of it"):
        make_plan(tiny_recipe(), FACTS, budget_epsilon=0.01, labels="released", accountant="rdp")


def test_with_a_noise_multiplier_the_budget_is_what_it_costs():
    plan = make_plan(tiny_recipe(), FACTS)
    assert plan.noise_multiplier == 1.5
    assert plan.budget_epsilon == pytest.approx(plan.epsilon, rel=1e-8)
    assert plan.budget_epsilon >= plan.epsilon


def test_without_privacy():
    plan = make_plan(tiny_recipe("none"), FACTS)
    assert (plan.budget_epsilon, plan.epsilon, plan.noise_multiplier) == (math.inf, math.inf, 0.0)
    assert not plan.private


@pytest.mark.parametrize(
    ("mechanism", "options", "words"),
    [
        ("record", {"budget_epsilon": 0}, "epsilon must be a positive"),
        ("record", {"budget_epsilon": -1}, "epsilon must be a positive"),
        ("record", {"budget_epsilon": math.nan}, "epsilon must be a positive"),
        ("record", {"budget_epsilon": math.inf}, "epsilon must be a positive"),
        ("record", {"delta": 0}, "delta must be between"),
        ("record", {"delta": 1}, "delta must be between"),
        ("record", {"seed": -1}, "a seed is a whole number"),
        ("record", {"seed": 2**64}, "a seed is a whole number"),
        ("record", {"labels": "fair"}, "labels must be uniform, released"),
        ("record", {"labels": (0.5, 0.5)}, "2 label probabilities for 3 classes"),
        ("record", {"labels": (1.0, -1.0, 1.0)}, "zero or positive"),
        ("record", {"labels": (0.0, 0.0, 0.0)}, "not all zero"),
        ("record", {"labels": (math.nan, 1.0, 1.0)}, "zero or positive"),
        ("none", {"budget_epsilon": 5}, "training without privacy has no epsilon"),
        ("none", {"labels": "released"}, "training without privacy"),
    ],
)
def test_what_cannot_be(mechanism, options, words):
    with pytest.raises(TrainingError, match=words) as raised:
        make_plan(tiny_recipe(mechanism), FACTS, **options)
    assert "\n" not in str(raised.value)


def test_a_recipe_without_noise_needs_a_budget():
    with pytest.raises(TrainingError, match="needs a budget: give epsilon"):
        make_plan(tiny_recipe(privacy={"noise_multiplier": None}), FACTS)


def test_an_epsilon_that_cannot_be_met():
    recipe = tiny_recipe(privacy={"steps": 10**9, "sampling_rate": 1.0})
    with pytest.raises(TrainingError, match="cannot be met with 1000000000 steps at sampling rate 1"):
        make_plan(recipe, FACTS, budget_epsilon=1e-3, accountant="rdp")


@pytest.mark.parametrize("privacy", [{"batch": 91, "sampling_rate": None}, {"sampling_rate": 0.01}])
def test_fewer_records_than_one_batch(privacy):
    with pytest.raises(TrainingError, match="90 records are fewer than one expected batch"):
        make_plan(tiny_recipe(privacy=privacy), FACTS)


def test_no_records():
    with pytest.raises(TrainingError, match="the data set is empty"):
        make_plan(tiny_recipe(), Facts((1, 4, 4), 3, 0, 0))


def test_more_classes_than_images():
    recipe = tiny_recipe(loss={"generated_per_class": None, "generated": 2})
    with pytest.raises(TrainingError, match="2 generated images cannot show all 3 classes"):
        make_plan(recipe, FACTS)
    assert make_plan(recipe, Facts((1, 4, 4), 0, 90, 90)).generated == 2


def test_an_unknown_generator():
    recipe = tiny_recipe().with_generator({"kind": "diffusion"})
    with pytest.raises(TrainingError, match="generator: "):
        make_plan(recipe, FACTS)


def test_unlabelled_data_have_no_frequencies():
    with pytest.raises(TrainingError, match="no labels whose frequencies"):
        make_plan(tiny_recipe(), Facts((1, 4, 4), 0, 90, 90), labels="released")
    assert make_plan(tiny_recipe(), Facts((1, 4, 4), 0, 90, 90)).labels == ()


def test_given_shares_are_scaled_to_one():
    assert make_plan(tiny_recipe(), FACTS, labels=(3, 1, 0)).labels == (0.75, 0.25, 0.0)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_is_charged_is_what_is_done(mechanism):
    plan = tiny_plan(tiny_data(), mechanism)
    barrier = plan.build()
    assert barrier.mechanism.sampled(plan.sampling_rate, 1) == plan.step_charge
    if mechanism == "image":
        assert plan.mechanism.rows == plan.generated


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ({"cost": "sqeuclidean"}, SquaredEuclidean),
        ({"cost": "cityblock"}, Cityblock),
        ({"cost": "l1l2", "l1_weight": 3.0}, L1L2),
        ({"cost": "l1l2", "l1_weight": 0.0}, SquaredEuclidean),
    ],
)
def test_costs(loss, kind):
    assert type(tiny_recipe(loss=loss).loss.ground_cost) is kind


def test_the_largest_sample_is_public():
    assert tiny_plan(tiny_data(records=90)).terms.largest_sample == 2**20
    assert tiny_plan(tiny_data(records=90), records=50).terms.largest_sample == 2**20
    assert tiny_plan(tiny_data(records=90), records=2**20).terms.largest_sample == 2**22


def test_learning_rates():
    cosine = make_plan(tiny_recipe(schedule="cosine"), FACTS)
    state = TrainingState(cosine, torch.device("cpu"))
    rates = [state.rate_at(step, 10) for step in range(11)]
    assert rates[0] == pytest.approx(1e-2)
    assert rates[5] == pytest.approx(5e-3)
    assert rates[10] == pytest.approx(0, abs=1e-12)
    assert rates == sorted(rates, reverse=True)
    constant = make_plan(tiny_recipe(schedule="constant"), FACTS)
    state = TrainingState(constant, torch.device("cpu"))
    assert {state.rate_at(step, 10) for step in range(11)} == {1e-2}


api = pytest.importorskip("mypy.api")

CONFIG = """
[mypy]
follow_imports = skip
ignore_missing_imports = true
[mypy-dpsinkhorn.training.estimator]
follow_imports = silent
"""
USE = """
from dpsinkhorn.training.estimator import DPSinkhorn

model = DPSinkhorn(epsilon=3.0)
model.fit([]).sample(5, random_state=1)
model.set_params(delta=1e-6).get_params()
{line}
"""


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", ""),
        ("model.fitt([])", '"DPSinkhorn" has no attribute "fitt"'),
        ("DPSinkhorn()", 'Missing positional argument "epsilon"'),
        ("model.sample(5, seed=1)", 'Unexpected keyword argument "seed"'),
    ],
)
def test_what_is_wrong_is_seen(line, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    (tmp_path / "use.py").write_text(USE.format(line=line))
    out, _, status = api.run(["use.py", "--cache-dir", str(tmp_path.parent / "mypy-cache")])
    assert (status, error in out) == (int(bool(error)), True), out


CPU = torch.device("cpu")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "options", [{}, {"labelled": False}, {"persons": 20}], ids=["", "unlabelled", "persons"]
)
def test_every_kind_of_plan_can_be_tried(mechanism, options):
    plan = tiny_plan(tiny_data(**options), mechanism, steps=1000)
    found = trial.try_plan(plan, CPU)
    assert 0 < found.seconds < 1000
    assert found.memory_bytes > 2**20


def test_memory_does_not_tell_a_size_that_is_not_public():
    """The process has read the data by then, and its memory shows how many there are."""
    plan = tiny_plan(tiny_data(), steps=1000, records=100)
    assert not plan.facts.size_is_public
    assert trial.try_plan(plan, CPU).memory_bytes is None


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, FixedSteps), ({"labelled": False}, FixedSteps), ({"persons": 20}, PlainSteps)],
    ids=["labelled", "unlabelled", "persons"],
)
def test_steps_are_tried_as_they_are_taken(options, kind, monkeypatch):
    """In fixed shapes where the training has them, as on a GPU."""
    made = []

    def make(*arguments, **given):
        made.append(make_steps(*arguments, **given, capture=False))
        return made[-1]

    monkeypatch.setattr(trial, "make_steps", make)
    found = trial.try_plan(tiny_plan(tiny_data(**options), steps=1000), CPU)
    assert isinstance(made[0], kind)
    assert 0 < found.seconds < 1000


def test_a_step_that_takes_long_is_timed_once(monkeypatch):
    taken = []

    def step(count):
        taken.append(count)
        time.sleep(0.02)

    assert 0.02 <= trial._least(step, 3, 4, CPU) < 5
    assert taken == [3] * 4
    taken.clear()
    monkeypatch.setattr(trial, "_LONG", 0.01)
    assert trial._least(step, 3, 4, CPU) >= 0.02
    assert taken == [3]
