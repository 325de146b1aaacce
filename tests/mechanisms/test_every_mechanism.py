"""What every mechanism on the list keeps to: neighbours, noise, audit, and its place in the package.

A mechanism of somebody's own (`support/toy_mechanism.py`) goes through the same tests.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import support.toy_mechanism
from dpsinkhorn import load
from dpsinkhorn.data import from_arrays
from dpsinkhorn.mechanisms import find_mechanism, mechanism_names, private_names
from dpsinkhorn.privacy import SeededNoise, epsilon
from dpsinkhorn.training import (
    DPSinkhorn,
    Run,
    TrainingError,
    choose_recipe,
    facts_of,
    load_recipe,
    make_plan,
)
from dpsinkhorn.training.auditing import StepSetting, audit_step, replay_plan, replay_training
from dpsinkhorn.training.auditing.replay import TrainingReplay, first_units, worst_neighbours
from support.runs import bits, crash_at, finished, tiny_data

ROOT = Path(__file__).parents[2]
NAMES = private_names()
OURS = [name for name in mechanism_names() if name != support.toy_mechanism.Pull.name]


def test_the_list():
    assert {"batch", "image", "moments", "none", "parameter", "record"} <= set(OURS)
    assert "pull" in NAMES
    assert "none" not in NAMES
    with pytest.raises(ValueError, match=r"must be one of batch, .*, not 'magic'"):
        find_mechanism("magic")


@pytest.mark.parametrize("name", OURS)
def test_a_module_a_recipe_and_a_proof(name):
    kind = find_mechanism(name)
    assert kind.__module__ == f"dpsinkhorn.mechanisms.{name}"
    assert load_recipe(kind.recipe).privacy.mechanism == name
    proofs = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "proofs").glob("*.md")]
    assert any(f"`{name}`" in proof for proof in proofs) or not kind.private


@pytest.mark.parametrize("name", mechanism_names())
class TestPlans:
    def plan(self, name, **options):
        kind, data = find_mechanism(name), tiny_data()
        recipe = load_recipe(kind.audit_recipe).replace(**kind.audit_settings(data.records))
        if kind.private:
            recipe = recipe.replace(privacy={"noise_multiplier": 2.0})
        return data, make_plan(recipe, facts_of(data), delta=1e-5, accountant="rdp", **options)

    def test_what_is_built_is_what_is_charged(self, name):
        _, plan = self.plan(name)
        built = plan.build()
        assert type(built) is plan.kind is find_mechanism(name)
        assert built.mechanism == plan.mechanism == plan.kind.releases(plan.terms)
        assert plan.private is plan.kind.private
        if plan.private:
            assert epsilon(plan.step_charge, 1e-5) > 0

    def test_numbers_alone_cost_as_much(self, name):
        """As `dpsinkhorn privacy epsilon` has them."""
        _, plan = self.plan(name)
        if plan.private:
            rows = plan.generated if plan.kind.clips_rows else 1
            step = plan.kind.release_of_size(plan.noise_multiplier, rows)
            charges = step.sampled(plan.sampling_rate, 9), plan.mechanism.sampled(plan.sampling_rate, 9)
            assert epsilon(charges[0], 1e-5, "rdp") == pytest.approx(epsilon(charges[1], 1e-5, "rdp"))

    def test_a_run_from_start_to_release(self, name, tmp_path):
        data, plan = self.plan(name, seed=1)
        found = load(finished(tmp_path / "run", plan, data).release_folder)
        assert found.privacy.mechanism == name
        assert found.sample(7)[0].shape == (7, 4, 4)

    def test_mixtures_are_taken_or_refused(self, name):
        kind = find_mechanism(name)
        recipe = load_recipe("mixture" if kind.trains_mixtures else "digits").replace(
            privacy={"mechanism": name, "noise_multiplier": 2.0 if kind.private else None}
        )
        recipe = recipe.with_generator({"kind": "mixture"})
        if kind.trains_mixtures:
            assert make_plan(recipe, facts_of(tiny_data()), delta=1e-5, accountant="rdp").kind is kind
        else:
            with pytest.raises(TrainingError, match="trains networks, not a mixture"):
                make_plan(recipe, facts_of(tiny_data()), delta=1e-5)

    def test_its_words(self, name):
        kind = find_mechanism(name)
        assert kind.summary[0].islower()
        assert not kind.summary.endswith(".")
        assert "\n" not in kind.summary + kind.summary_of_persons


@pytest.mark.parametrize("name", NAMES)
class TestPrivacy:
    def test_the_worst_case_attains_the_sensitivity(self, name):
        case = find_mechanism(name).worst_case(1.0)
        move = float((case.clipped(True) - case.clipped(False)).norm())
        assert 0.999 * case.mechanism.sensitivity < move <= case.mechanism.sensitivity

    def test_real_neighbours_move_by_no_more(self, name):
        data = tiny_data(records=60)
        base = first_units(data, 1000)
        game = TrainingReplay(replay_plan(base, name), base)
        found = [game.own, *game.against(worst_neighbours(base, data))]
        assert [line for outcome in found for line in outcome.violations] == []
        assert not any(outcome.refused for outcome in found)
        assert 0.3 < max(outcome.move for outcome in found) <= 1

    def test_the_noise_has_the_variance_that_is_claimed(self, name):
        case, noise = find_mechanism(name).worst_case(1.5), SeededNoise(4)
        quiet = case.clipped(False)
        draws = np.concatenate([(case.release(False, 1.0, noise) - quiet).numpy() for _ in range(400)])
        low, high = stats.chi2.interval(1 - 1e-6, len(draws))
        assert low < float(np.square(draws / case.mechanism.noise_std).sum()) < high

    def test_an_audit_stays_below_the_claim_and_comes_near(self, name):
        noise = 2.0 if find_mechanism(name).clips_rows else 1.0  # of one of four rows
        setting = StepSetting(name, noise)
        found = audit_step(setting, delta=1e-5, repetitions=500, confidence=0.99, seed=6)
        assert 0.35 * found.claimed < found.bound < found.claimed  # chance leaves room for most scores

    def test_a_seeded_run_is_resumed_to_the_same_bits_or_not_at_all(self, name, tmp_path):
        """Else noise that a crash lost comes again on something else, and is not charged again."""
        data = tiny_data(records=60)
        kind = find_mechanism(name)
        recipe = load_recipe(kind.audit_recipe).replace(**kind.audit_settings(data.records))
        recipe = recipe.replace(privacy={"noise_multiplier": 2.0})
        plan = make_plan(recipe, facts_of(data), delta=1e-5, accountant="rdp", seed=4)
        run = Run.create(tmp_path / "run", plan)
        crash_at(min(2, plan.steps), run, data)
        if kind.learns_in_private:
            with pytest.raises(TrainingError, match=f"a seeded run of {name} cannot be resumed"):
                Run.resume(run.folder).train(data)
        else:
            assert Run.resume(run.folder).train(data)
            whole = finished(tmp_path / "whole", plan, data)
            assert bits(run.folder)["release"] == bits(whole.folder)["release"]

    def test_persons_are_taken_or_refused(self, name):
        data = tiny_data(persons=20)
        kind = find_mechanism(name)
        recipe = load_recipe(kind.audit_recipe).replace(**kind.audit_settings(data.records))
        recipe = recipe.replace(privacy={"noise_multiplier": 2.0})
        if kind.takes_persons:
            assert make_plan(recipe, facts_of(data), delta=1e-5, accountant="rdp").facts.unit == "person"
        else:
            with pytest.raises(TrainingError, match=f"the mechanism {name} protects records"):
                make_plan(recipe, facts_of(data), delta=1e-5, accountant="rdp")


def test_a_mechanism_of_ones_own_is_everywhere(tmp_path, capsys):
    """The estimator, the command line, the report and the audits know it by its name alone."""
    from dpsinkhorn.report import write_report

    images = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
    labels = np.arange(60) % 3
    model = DPSinkhorn(8.0, 1e-4, mechanism="pull", settings={"privacy": {"steps": 5}}, random_state=1)
    assert model.fit(images, labels).sample(4)[0].shape == (4, 6, 6)
    assert model.privacy_.mechanism == "pull"
    data = from_arrays(images, labels)
    recipe = choose_recipe(facts_of(data), mechanism="pull", settings={"privacy": {"steps": 5}})
    run = finished(tmp_path / "run", make_plan(recipe, facts_of(data), budget_epsilon=5.0, seed=2), data)
    page = write_report(run.folder).report.read_text(encoding="utf-8")
    assert "pull: each record's pull on the images of its class is clipped" in page.replace("&#39;", "'")
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    found = replay_training(str(tmp_path / "data.npz"), ["pull"], files=False)
    assert [each.violations for each in found] == [()] * len(found)
    capsys.readouterr()
