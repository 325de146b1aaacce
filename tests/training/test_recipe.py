"""Recipes: those of the package load and say what the papers say; broken ones end in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpsinkhorn.training import Recipe, TrainingError, load_recipe, recipe_names
from dpsinkhorn.training.plan import Facts, Plan, make_plan

# The papers' tables: Δ, σ of Algorithm 1, batch, T, p, m, λ, learning rate, δ. None: not stated.
PAPERS = {
    "paper-first-mnist": ("batch", 0.5, 1.1, 50, 3_400_000, 0.2, 1.0, 0.05, 1e-5, 1e-5),
    "paper-first-fashion": ("batch", 0.5, 1.1, 50, 3_400_000, 0.2, 3.0, 0.05, 1e-5, 1e-5),
    "paper-first-celeba": ("batch", 0.5, 0.8, 200, 1_100_000, None, 0.0, 5.0, 1e-5, 1e-6),
    "paper-final-mnist": ("image", 0.5, 1.5, 50, 160_000, 0.4, 1.0, 0.05, 1e-4, 1e-5),
    "paper-final-fashion": ("image", 0.5, 1.9, 50, 280_000, 0.4, 3.0, 0.05, 1e-5, 1e-5),
    "paper-final-celeba": ("image", 0.5, 1.9, 50, 1_700_000, 0.4, 0.0, 5.0, 1e-5, 1e-6),
    "paper-parameter": ("parameter", 1.0, 1.5, 50, 160_000, 0.0, 0.0, 0.05, 1e-4, 1e-5),
}
MNIST, CELEBA = Facts((1, 28, 28), 10, 60_000, 60_000), Facts((3, 32, 32), 2, 162_770, 162_770)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_round_trips(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description
    assert Recipe.from_json(recipe.to_json()) == recipe
    facts = CELEBA if "celeba" in name or name == "colour" else MNIST
    if name == "digits":
        facts = Facts((1, 8, 8), 10, 1347, 1347)
    few = {"noise_multiplier": 2.0, "steps": min(4, recipe.privacy.steps)}
    config = make_plan(recipe.replace(privacy=few), facts).generator_config
    assert config.image_shape == facts.image_shape


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_settings(name):
    recipe = load_recipe(name)
    mechanism, clip, noise, batch, steps, debias, l1_weight, regularization, rate, delta = PAPERS[name]
    privacy, loss, optimizer = recipe.privacy, recipe.loss, recipe.optimizer
    assert (privacy.mechanism, privacy.clip, privacy.noise_multiplier) == (mechanism, clip, noise)
    assert (privacy.batch, privacy.steps, recipe.delta) == (batch, steps, delta)
    assert loss.generated == batch
    assert loss.generated_per_class is None
    assert (loss.regularization, loss.label_weight) == (regularization, 15.0)
    assert (loss.cost, loss.l1_weight) == ("l1l2" if l1_weight else "sqeuclidean", l1_weight)
    if debias is not None:
        assert loss.debias == debias
    faces = "celeba" in name
    assert (optimizer.learning_rate, optimizer.betas) == (rate, (0.9, 0.999))
    assert optimizer.weight_decay == (2e-5 if faces else 1e-5)  # the released code's, but for faces
    assert (optimizer.ema, optimizer.schedule) == (None, "constant")
    assert recipe.generator["kind"] == ("biggan" if "celeba" in name else "dcgan")
    assert recipe.generator["latent"] == (32 if faces else 16)
    assert (loss.marginals, loss.iterations) == ("balanced", None if faces else 13)
    facts = CELEBA if "celeba" in name else MNIST
    plan = make_plan(recipe.replace(privacy={"steps": 1}), facts)
    config, plan_rate = plan.generator_config, plan.sampling_rate
    expected = (True, "relu", 4) if faces else (True, "leaky_relu", 8)
    assert (config.batch_norm, config.activation, config.embedding) == expected
    assert plan_rate == pytest.approx(batch / facts.records)
    if facts is MNIST:
        assert plan_rate == pytest.approx(1 / 1200)


@pytest.mark.parametrize("name", [name for name in PAPERS if name != "paper-parameter"])
def test_the_papers_without_privacy(name):
    private, plain = load_recipe(name), load_recipe(f"{name}-nonprivate")
    assert plain.privacy.mechanism == "none"
    assert (plain.privacy.batch, plain.loss.generated) == (500, 500)
    assert plain.loss.cost == private.loss.cost
    assert plain.loss.l1_weight == private.loss.l1_weight
    assert plain.loss.regularization == private.loss.regularization
    assert plain.optimizer == private.optimizer
    assert plain.generator == private.generator
    assert plain.loss.transport == private.loss.transport
    if PAPERS[name][5] is not None:
        assert plain.loss.debias == private.loss.debias


class TestWhatThePapersCost:
    def test_first_version(self):
        plan = make_plan(load_recipe("paper-first-mnist"), MNIST)
        assert plan.epsilon == pytest.approx(8.455, abs=2e-3)
        assert plan.published_epsilon is None

    def test_final_version(self):
        plan = make_plan(load_recipe("paper-final-mnist"), MNIST)
        assert plan.epsilon == pytest.approx(844, rel=5e-3)
        assert plan.published_epsilon == pytest.approx(10.02, abs=0.01)
        assert plan.mechanism.rows == 50


def test_a_rate_replaces_a_batch_and_the_other_way_round():
    recipe = load_recipe("paper-first-mnist").replace(privacy={"sampling_rate": 0.5})
    assert (recipe.privacy.sampling_rate, recipe.privacy.batch) == (0.5, None)
    recipe = recipe.replace(privacy={"batch": np.int64(7)})
    assert (recipe.privacy.sampling_rate, recipe.privacy.batch) == (None, 7)
    assert type(recipe.privacy.batch) is int


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ({"iterations": None}, "balanced"),
        ({"iterations": None, "marginals": "classes"}, "within classes"),
        ({"iterations": None, "marginals": 0}, "records' weights relaxed, penalty 0"),
        ({"iterations": 13}, "balanced, stopped early: 13 annealed iterations, not converged"),
    ],
)
def test_transport_in_words_and_in_the_terms(loss, words):
    recipe = load_recipe("paper-final-mnist").replace(loss=loss, privacy={"steps": 1})
    assert recipe.loss.transport == words
    plan = Plan.from_json(json.loads(json.dumps(make_plan(recipe, MNIST).to_json())))
    settings = plan.terms.loss
    found = settings.marginals, settings.iterations
    assert found == (loss.get("marginals", "balanced"), loss.get("iterations"))


def test_plans_within_classes_need_classes():
    recipe = load_recipe("paper-final-mnist").replace(loss={"marginals": "classes", "iterations": None})
    with pytest.raises(TrainingError, match="there are no classes"):
        make_plan(recipe, Facts((1, 28, 28), 0, 60_000, 60_000))


BROKEN = {
    "not TOML": "is not TOML",
    "privacy = 5\ndescription = 'x'": "must be a table",
    "description = 'x'": "lacks a setting",
    "description = 'x'\n[privacy]\nbatch = 1.5": "privacy.batch must be int, not 1.5",
    "description = 'x'\n[privacy]\nbatch = true": "must be int, not True",
    "description = 'x'\n[privacy]\nbatch = 5\nsampling_rate = 0.1": "one of sampling_rate and batch",
    "description = 'x'\n[privacy]": "one of sampling_rate and batch",
    "description = 'x'\n[privacy]\nsampling_rate = 1.5": "at most 1",
    "description = 'x'\n[privacy]\nbatch = 5\nsteps = 0": "privacy.steps must be a positive",
    "description = 'x'\n[privacy]\nbatch = 5\nsteps = 10000000000": "at most 1,000,000,000",
    "description = 'x'\n[privacy]\nbatch = 5\nclip = nan": "privacy.clip must be a positive",
    "description = 'x'\n[privacy]\nbatch = 5\nclip = 1e31": "privacy.clip must be at most 1e+30",
    "description = 'x'\n[privacy]\nbatch = 5\n[optimizer]\nprecision = 'half'": "optimizer.precision must be",
    "description = 'x'\n[privacy]\nbatch = 5\nnoise_multiplier = -1.0": "must be a positive",
    "description = 'x'\n[privacy]\nbatch = 5\nmechanism = 'magic'": "must be one of batch, ",
    "description = 'x'\n[privacy]\nbatch = 5\nspeed = 3": "has no setting 'speed'",
    "description = 'x'\n[privacy]\nbatch = 5\n[loss]\ncost = 3": "loss.cost must be one of",
    "description = 'x'\n[privacy]\nbatch = 5\n[loss]\nself_weight = 2.0": "between 0 and 1",
    "description = 'x'\n[privacy]\nbatch = 5\n[loss]\nl1_weight = -1.0": "0 or a positive",
    "description = 'x'\n[privacy]\nbatch = 5\n[loss]\nmarginals = 'free'": "balanced, classes or a number",
    "description = 'x'\n[privacy]\nbatch = 5\n[loss]\nmarginals = -1": "0 or a positive",
    "description = 'x'\n[privacy]\nbatch = 5\n[loss]\nmarginals = inf": "0 or a positive",
    "description = 'x'\n[privacy]\nbatch = 5\n[loss]\niterations = 0": "loss.iterations must be a positive",
    "description = 'x'\n[privacy]\nbatch = 5\n[loss]\niterations = 9\nmarginals = 0": "leave one of the two",
    "description = 'x'\n[privacy]\nbatch = 5\n[optimizer]\nbetas = [0.9]": "a list of 2",
    "description = 'x'\n[privacy]\nbatch = 5\n[optimizer]\nbetas = 'ab'": "a list of 2",
    "description = 'x'\n[privacy]\nbatch = 5\n[optimizer]\nbetas = [0.9, 1.0]": "below 1",
    "description = 'x'\n[privacy]\nbatch = 5\n[optimizer]\nweight_decay = -1.0": "0 or a positive",
    "description = 'x'\n[privacy]\nbatch = 5\n[optimizer]\nlearning_rate = 'fast'": "must be float",
    "description = 'x'\n[privacy]\nbatch = 5\n[optimizer]\nema = 1.0": "between 0 and 1",
    "description = 'x'\n[privacy]\nbatch = 5\n[optimizer]\nschedule = 'up'": "one of constant, cosine",
    "description = 'x'\ngenerator = 'dcgan'\n[privacy]\nbatch = 5": "must be a table",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_recipe_is_one_line(tmp_path, text):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(TrainingError) as raised:
        load_recipe(tmp_path / "mine.toml")
    assert BROKEN[text] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.toml").mkdir()
    for name, words in (("no.toml", "there is no"), ("binary.toml", "UTF-8"), ("folder.toml", "directory")):
        with pytest.raises(TrainingError, match=words):
            load_recipe(tmp_path / name)
    with pytest.raises(TrainingError, match="unknown recipe 'mnits'; choose"):
        load_recipe("mnits")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"speed": {"fast": True}}, "no section 'speed'"),
        ({"delta": 1e-5}, "no section 'delta'"),
        ({"privacy": 5}, "settings by name"),
        ({"privacy": {"stepps": 5}}, "no setting 'stepps'"),
    ],
)
def test_settings_that_a_recipe_does_not_have(settings, words):
    with pytest.raises(TrainingError, match=words):
        load_recipe("digits").replace(**settings)
