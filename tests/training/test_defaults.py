"""The rule for what is trained where no recipe was named, and what to expect of it: public numbers alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpsinkhorn.data import from_arrays
from dpsinkhorn.training import Facts, Request, TrainingError, choose_recipe, load_recipe, make_plan, plan_for
from dpsinkhorn.training.advice import expectation
from dpsinkhorn.training.recipe import DELTA


def facts(shape=(1, 28, 28), records=60_000, classes=10, persons=None):
    return Facts(shape, classes, records, persons or records, grouped=persons is not None)


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (1, 16, 16), (1, 28, 28), (3, 32, 32), (1, 64, 64), (3, 64, 64)]
)
@pytest.mark.parametrize("epsilon", [0.5, 20.0])
@pytest.mark.parametrize("records", [500, 10**6])
def test_on_a_cpu_it_is_a_mixture_that_can_be_trained(shape, epsilon, records):
    recipe = choose_recipe(facts(shape, records), epsilon=epsilon)
    assert recipe.name == "mixture"
    noise = recipe.replace(privacy={"noise_multiplier": 1.0})  # nothing need be calibrated
    plan = make_plan(noise, facts(shape, records), accountant="rdp")
    plan.build()  # which checks that sums are exact
    assert plan.delta == DELTA


@pytest.mark.parametrize(
    ("known", "epsilon", "asked", "name"),
    [
        (facts(), 10.0, {}, "grey"),
        (facts(), 3.0, {}, "grey"),
        (facts(), 2.9, {}, "mixture"),
        (facts(records=50_000), 10.0, {}, "grey"),
        (facts(records=49_999), 20.0, {}, "mixture"),
        (facts(records=6_000_000), 2.9, {}, "mixture"),
        (facts((1, 33, 20)), 10.0, {}, "mixture"),
        (facts((1, 8, 8)), 10.0, {}, "mixture"),
        (facts((3, 32, 32)), 10.0, {}, "mixture"),
        (facts(), 10.0, {"quick": True}, "mixture"),
        (facts(), None, {"quick": True}, "mixture"),
        (facts(), 10.0, {"settings": {"privacy": {"steps": 7}}}, "grey"),
        (facts(), 1.0, {"settings": {"privacy": {"steps": 7}}}, "mixture"),
        (facts(), 1.0, {"mechanism": "record"}, "grey"),
        (facts((1, 8, 8)), 1.0, {"mechanism": "record"}, "digits"),
        (facts((3, 32, 32)), 1.0, {"mechanism": "record"}, "colour"),
        (facts(), 10.0, {"mechanism": "moments"}, "mixture"),
        (facts(), 10.0, {"mechanism": "batch"}, "paper-first-mnist"),
        (facts(), 10.0, {"mechanism": "none"}, "paper-final-mnist-nonprivate"),
        (facts(), 10.0, {"recipe": "paper-first-mnist"}, "paper-first-mnist"),
    ],
)
def test_the_rule(known, epsilon, asked, name):
    assert choose_recipe(known, epsilon=epsilon, **{"quick": False, **asked}).name == name


def test_persons_get_a_mixture():
    assert choose_recipe(facts(persons=1000), epsilon=10, quick=True).name == "mixture"


def test_more_records_or_epsilon_allow_more_components():
    found = [
        choose_recipe(facts(records=n), recipe="mixture", epsilon=e)
        for n, e in ((500, 1.0), (6000, 10.0), (60_000, 1.0), (60_000, 10.0), (10**6, 10.0))
    ]
    assert [recipe.generator["components"] for recipe in found] == [2, 8, 8, 24, 32]
    assert [recipe.generator["frequencies"] for recipe in found] == [16, 16, 16, 20, 20]
    assert [recipe.privacy.steps for recipe in found] == [4, 6, 6, 6, 6]


def test_the_smallest_class_decides_where_shares_are_stated():
    usual, rare, even = (
        plan_for_shares(labels) for labels in ("uniform", (9.0, *[1.0] * 9), tuple([0.1] * 10))
    )
    assert rare.recipe.generator["components"] < usual.recipe.generator["components"]
    assert even.recipe == usual.recipe
    expected = choose_recipe(facts(records=round(6000 / 18 * 10)), epsilon=10.0)
    assert rare.recipe.generator == expected.generator
    assert rare.delta == usual.delta
    with pytest.raises(TrainingError, match="2 label probabilities for 10 classes"):
        plan_for_shares((0.1, -0.2))


def plan_for_shares(labels):
    images, kinds = np.zeros((6000, 28, 28), np.uint8), np.arange(6000) % 10
    return plan_for(from_arrays(images, kinds, classes=10), Request(epsilon=10.0, labels=labels, quick=True))


def test_a_file_and_a_recipe_are_taken_as_they_are():
    recipe = load_recipe("mixture").replace(generator={"components": 5})
    assert choose_recipe(facts(records=500), recipe=recipe, epsilon=1.0) == recipe


def test_settings_change_the_plan_that_would_have_been_made():
    usual = choose_recipe(facts(), epsilon=1.0)
    changed = choose_recipe(facts(), epsilon=1.0, settings={"generator": {"grain": 0.0}})
    assert changed == usual.replace(generator={"grain": 0.0})
    with pytest.raises(
        TrainingError, match=r"optimizer.ema plays no part in the recipe mixture.* such as record"
    ):
        choose_recipe(facts(), epsilon=1.0, settings={"optimizer": {"ema": 0.9}})
    with pytest.raises(TrainingError, match=r"a mixture has no field 'latent'; it has .*components"):
        make_plan(usual.replace(generator={"latent": 3}), facts(), budget_epsilon=1.0)
    with pytest.raises(TrainingError, match=r"at most 100 steps.*--mechanism record"):
        make_plan(usual.replace(privacy={"steps": 3000}), facts(), budget_epsilon=1.0)


def test_a_mechanism_replaces_that_of_a_named_recipe():
    chosen = choose_recipe(facts(), recipe="grey", mechanism="batch")
    assert chosen == load_recipe("grey").replace(privacy={"mechanism": "batch"})


def test_delta_is_the_papers_only_where_their_recipe_is_named():
    few = {"privacy": {"steps": 1, "noise_multiplier": 5.0}}
    for name, delta in (("colour", DELTA), ("mixture", DELTA), ("paper-first-celeba", 1e-6)):
        recipe = load_recipe(name)
        assert recipe.delta in (None, delta)
    assert make_plan(load_recipe("paper-first-celeba").replace(**few), facts((3, 32, 32))).delta == 1e-6


def planned(epsilon, labels="uniform", **known):
    noise = {"privacy": {"noise_multiplier": 1.0}}  # nothing need be calibrated
    recipe = load_recipe("grey" if "persons" in known else "mixture").replace(**noise)
    plan = make_plan(recipe, facts(**known), labels=labels, accountant="rdp")
    object.__setattr__(plan, "budget_epsilon", epsilon)
    return expectation(plan)


class TestWhatIsExpected:
    @pytest.mark.parametrize(
        ("epsilon", "known", "level"),
        [
            (10.0, {"records": 50, "classes": 2}, "hopeless"),
            (10.0, {"records": 3000, "classes": 200}, "hopeless"),
            (1.0, {"records": 3882, "classes": 2, "labels": (0.1, 0.9)}, "hopeless"),
            (1.0, {"records": 3882, "classes": 2}, "fine"),
            (10.0, {"records": 900}, "weak"),
            (1.0, {"records": 1347, "shape": (1, 8, 8)}, "weak"),
            (10.0, {"records": 1347, "shape": (1, 8, 8)}, "fine"),
            (10.0, {"records": 60_000}, "fine"),
            (10.0, {"records": 1200, "shape": (3, 32, 32), "classes": 2}, "weak"),
            (10.0, {"records": 2000, "shape": (3, 32, 32)}, "hopeless"),
            (10.0, {"records": 50_000, "shape": (3, 32, 32)}, "fine"),
            (10.0, {"records": 60_000, "persons": 300}, "hopeless"),
            (1.0, {"records": 3000, "classes": 0}, "fine"),
        ],
    )
    def test_the_level(self, epsilon, known, level):
        assert planned(epsilon, **known).level == level

    def test_what_it_would_take_is_enough(self):
        text = str(planned(1.0, records=1000))
        assert text == (
            "about 100 records a class at epsilon 1 are too few: images will be noise. It takes about 400 a "
            "class, or an epsilon of 4"
        )
        assert planned(1.0, records=4000).level == planned(4.0, records=1000).level == "weak"
        assert "fewer than 400 will be noise, one of fewer than 1,000 will look poor" in str(
            planned(1.0, records=4000)
        )

    def test_of_stated_shares_the_smallest_is_named(self):
        text = str(planned(2.0, labels=(0.9, 0.1), records=2900, classes=2))
        assert text.startswith("about 290 records in the smallest class at epsilon 2: classifiers")
        assert text.endswith("single images will look poor")  # no other class has fewer
        few = str(planned(1.0, labels=(0.9, 0.1), records=2900, classes=2))
        assert few.endswith("It takes about 400 in the smallest class, or an epsilon of 1.4")

    def test_nothing_is_said_of_what_was_not_measured(self):
        network = load_recipe("grey").replace(privacy={"noise_multiplier": 2.0, "steps": 5})
        assert expectation(make_plan(network, facts(), accountant="rdp")) is None
        plain = load_recipe("paper-final-mnist-nonprivate")
        assert expectation(make_plan(plain, facts())) is None

    @pytest.mark.parametrize(("people", "level"), [(1000, "hopeless"), (10_000, None)])
    def test_record_is_hopeless_where_noise_drowns_all_that_persons_can_add(self, people, level):
        grey = load_recipe("grey").replace(privacy={"noise_multiplier": 7.79})
        plan = make_plan(grey, facts(records=3 * people, persons=people), accountant="rdp")
        object.__setattr__(plan, "budget_epsilon", 10.0)
        expected = expectation(plan)
        assert (expected and expected.level) == level
        if expected:  # 7.79 sqrt(500 x 784) / 200
            assert "24 times as long" in expected.text

    def test_a_hopeless_plan_is_refused_unless_asked_for(self):
        data = from_arrays(np.zeros((50, 28, 28), np.uint8), np.arange(50) % 2)
        request = Request(epsilon=10.0, accountant="rdp")
        with pytest.raises(TrainingError, match=r"too few.*--anyway") as raised:
            plan_for(data, request)
        assert "\n" not in str(raised.value)
        assert math.isfinite(plan_for(data, Request(epsilon=10.0, accountant="rdp", anyway=True)).epsilon)


class TestFlowSizes:
    @pytest.mark.parametrize(
        ("records", "epsilon", "classes", "channels"),
        [
            (2000, 10.0, 10, 16),
            (5000, 3.0, 10, 16),
            (5000, 10.0, 10, 16),
            (10_000, 10.0, 10, 32),
            (14_000, 10.0, 2, 48),
            (14_000, 20.0, 2, 64),
        ],
    )
    def test_few_records_get_few_steps_and_no_more_channels_than_noise_allows(
        self, records, epsilon, classes, channels
    ):
        known = facts(records=records, classes=classes)
        recipe = choose_recipe(known, recipe="flow", epsilon=epsilon)
        assert recipe.generator["channels"] == channels
        assert (recipe.privacy.batch, recipe.privacy.steps, recipe.flow.draws) == (records // 4, 100, 8)
        assert (recipe.flow.updates, recipe.flow.update_rate) == (2000, 4e-3)  # of a small network
        plan = make_plan(recipe, known, budget_epsilon=epsilon)
        noise = plan.noise_multiplier * math.sqrt(plan.generator_config.parameters) / (records // 4)
        assert noise < 0.5 or channels == 16

    def test_many_records_get_the_recipe_as_it_is(self):
        recipe, plain = choose_recipe(facts(), recipe="flow", epsilon=10.0), load_recipe("flow")
        assert recipe.generator == plain.generator
        assert recipe.optimizer == plain.optimizer
        assert (recipe.privacy.batch, recipe.privacy.steps) == (4096, plain.privacy.steps)

    def test_what_is_asked_for_stays(self):
        settings = {"generator": {"channels": 24}, "privacy": {"steps": 7}}
        recipe = choose_recipe(facts(records=5000), recipe="flow", epsilon=10.0, settings=settings)
        assert (recipe.generator["channels"], recipe.privacy.steps, recipe.privacy.batch) == (24, 7, 1250)
