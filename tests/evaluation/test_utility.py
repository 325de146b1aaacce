"""Classifiers trained on one set of images and tested on another."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score, roc_auc_score
from torch import nn

from dpsinkhorn.evaluation import PROTOCOLS, ClassifierScore, EvaluationError, downstream_utility
from dpsinkhorn.evaluation.architectures import Halving, authors_cnn, cnn, linear, mlp
from dpsinkhorn.evaluation.images import on_device
from dpsinkhorn.evaluation.networks import Lesson, Network, fit_network, probabilities
from dpsinkhorn.evaluation.protocols import Logistic


def test_real_digits_in_place_of_synthetic(digits):
    seen = []
    found = downstream_utility(
        *digits, classes=10, sets=2, device="cpu", progress=lambda *now: seen.append(now)
    )
    assert [score.name for score in found.scores] == ["logistic", "forest", "mlp", "cnn"]
    for score in found.scores:
        assert score.mean > 90, score
        assert score.balanced_accuracy == pytest.approx(score.accuracy, abs=1), "classes are alike"
        assert min(score.roc_auc) > 0.99
        assert score.spread == pytest.approx(abs(np.diff(score.accuracy)[0]) / np.sqrt(2))
        done = [part for name, part in seen if name == score.name]
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, 1)
    assert (found.trained_on, found.tested_on) == (673, 450), "each set has half of them"
    assert sum(found.trained_by_class) == 1346
    assert found["mlp"].epochs == (100, 100)
    assert found["forest"].epochs == ()


def test_shuffled_labels_are_worth_nothing(digits):
    images, labels, test_images, test_labels = digits
    shuffled = np.random.default_rng(0).permutation(labels)
    found = downstream_utility(
        images, shuffled, test_images, test_labels,
        classes=10, classifiers=["logistic", "forest"], device="cpu",
    )  # fmt: skip
    for score in found.scores:
        assert 2 < score.mean < 20, score


def test_logistic_regression_is_scikit_learns(digits):
    images, labels, test_images, test_labels = digits
    images, labels = images[:400], labels[:400]
    model = LogisticRegression(max_iter=5000).fit(images.reshape(400, -1) / np.float32(255), labels)
    pixels = test_images.reshape(len(test_images), -1) / np.float32(255)
    guesses = model.predict(pixels)
    found = downstream_utility(
        images, labels, test_images, test_labels, classes=10, protocol="paper", classifiers=["logistic"],
        device="cpu",
    )["logistic"]  # fmt: skip
    area = roc_auc_score(test_labels, model.predict_proba(pixels), multi_class="ovr", average="macro")
    assert found.roc_auc == pytest.approx((area,))
    assert found.balanced_accuracy == pytest.approx((100 * balanced_accuracy_score(test_labels, guesses),))
    assert found.mean == pytest.approx(100 * accuracy_score(test_labels, guesses))
    per_class = recall_score(test_labels, guesses, average=None)
    np.testing.assert_allclose(found.per_class, 100 * per_class)
    assert found.worst_class == int(np.argmin(per_class))


@pytest.mark.parametrize("rows", [slice(0, 300), slice(500, 1300)])
def test_torch_agrees_with_scikit_learn(digits, rows):
    """Within 0.2 points, on all images that there are, so that one image is less than that."""
    images, labels, test_images, test_labels = digits
    x, y = on_device(images[rows], "cpu"), torch.from_numpy(labels[rows])
    tx = on_device(np.concatenate([test_images, images]), "cpu")
    ty = np.concatenate([test_labels, labels])
    ours, reference = (
        Logistic(solver=solver).classify(Lesson(x, y, 10, tx, 0))[0].argmax(1)
        for solver in ("torch", "sklearn")
    )
    assert abs(100 * ((ours == ty).mean() - (reference == ty).mean())) <= 0.2
    assert (ours == reference).mean() > 0.99


def test_a_poorly_served_class_shows(digits):
    images, labels, test_images, test_labels = digits
    mixed = np.where(labels == 3, 8, labels)
    score = downstream_utility(
        images, mixed, test_images, test_labels, classes=10, classifiers=["logistic"], device="cpu"
    )["logistic"]
    assert score.worst_class == 3
    assert score.per_class[3] == 0
    assert score.per_class[0] > 90
    found = score.to_json()
    assert found["worst_class"] == 3
    assert found["worst_class_accuracy"] == 0


def test_classes_without_images(digits):
    """A class may be missing among the synthetic images, and another among the real ones."""
    images, labels, test_images, test_labels = digits
    have, tested = labels != 4, test_labels != 7
    score = downstream_utility(
        images[have], labels[have], test_images[tested], test_labels[tested],
        classes=10, classifiers=["logistic"], device="cpu",
    )["logistic"]  # fmt: skip
    assert score.per_class[4] == 0
    assert score.per_class[7] is None
    assert score.worst_class == 4
    present = [value for value in score.per_class if value is not None]
    assert score.balanced_accuracy == pytest.approx((np.mean(present),))
    json.dumps(score.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", ["logistic", "forest"])
def test_one_class_only(digits, name):
    images, _, test_images, test_labels = digits
    score = downstream_utility(
        images[:30], np.full(30, 6), test_images, test_labels, classes=10, classifiers=[name], device="cpu"
    )[name]
    assert score.per_class[6] == 100
    assert score.mean == pytest.approx(100 * (test_labels == 6).mean())
    assert score.roc_auc == (0.5,)
    of_one = downstream_utility(
        images[:30], np.full(30, 6), test_images[:5], np.full(5, 6),
        classes=10, classifiers=[name], device="cpu",
    )[name]  # fmt: skip
    assert of_one.to_json()["roc_auc"] is None


def test_rare_classes():
    """What hardly tells a class of a tenth shows in the balanced accuracy and the area, not in accuracy."""
    draws = np.random.default_rng(0)
    labels, truth = draws.integers(0, 2, 400), (draws.random(1000) < 0.1).astype(int)
    images, tested = (
        np.clip(draws.normal(100 + 10 * kinds[:, None, None], 40, (len(kinds), 4, 4)), 0, 255).astype(
            np.uint8
        )
        for kinds in (labels, truth)
    )
    mostly = np.where(draws.random(400) < 0.8, 0, labels)  # the rare class is called the other as a rule
    score = downstream_utility(
        images, mostly, tested, truth, classes=2, classifiers=["logistic"], device="cpu"
    )["logistic"]
    flat = [part.reshape(len(part), -1) / np.float32(255) for part in (images, tested)]
    model = LogisticRegression(max_iter=100).fit(flat[0], mostly)
    assert score.mean > 85
    assert score.balanced_accuracy == pytest.approx((50,), abs=3)
    assert score.roc_auc == pytest.approx((roc_auc_score(truth, model.predict_proba(flat[1])[:, 1]),))
    assert score.roc_auc[0] > 0.6


@pytest.mark.parametrize("patience", [4, 8])
def test_early_stopping_restores_the_best_weights(digits, patience):
    """With labels half wrong accuracy goes up and down, so that the last weights are not the best."""
    images, labels, _, _ = digits
    wrong = np.random.default_rng(1).random(len(labels)) < 0.5
    noisy = np.where(wrong, np.random.default_rng(2).permutation(labels), labels)
    x, y = on_device(images, "cpu"), torch.from_numpy(noisy)
    fit = fit_network(Network(mlp, patience=patience), x, y, 10, seed=4)
    last = len(fit.history) - 1
    assert fit.history.index(fit.best) == last - patience
    assert fit.history[-1] < fit.best
    guesses = probabilities(fit.network, x[fit.held_out]).argmax(1)
    assert (guesses == noisy[fit.held_out]).mean() == fit.best
    assert len(fit.held_out) == len(images) // 10


def test_held_out_images_are_not_trained_on():
    """A network that can learn everything by heart learns nothing of labels that it was not shown."""
    images = on_device(np.random.default_rng(0).integers(0, 256, (400, 8, 8), dtype=np.uint8), "cpu")
    labels = torch.from_numpy(np.random.default_rng(1).integers(0, 2, 400))
    fit = fit_network(Network(mlp, patience=40), images, labels, 2, seed=0)
    shown = torch.ones(400, dtype=torch.bool)
    shown[fit.held_out] = False
    assert (probabilities(fit.network, images[shown]).argmax(1) == labels[shown].numpy()).mean() > fit.best
    assert max(fit.history) < 0.8, "after forty epochs more it would know them all"


def test_seeds(digits):
    images, labels, _, _ = digits
    x, y = on_device(images[:200], "cpu"), torch.from_numpy(labels[:200])
    state = torch.get_rng_state()
    first, again, other = (fit_network(Network(mlp, epochs=3), x, y, 10, seed=seed) for seed in (5, 5, 6))
    assert first.history == again.history
    for one, two in zip(first.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(first.held_out, other.held_out)
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers go on as they were"


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 7, 5), (1, 1, 1)])
def test_networks_fit_any_image(shape):
    for build in (linear, mlp, cnn, authors_cnn):
        assert build(shape, 4)(torch.zeros(2, *shape)).shape == (2, 4)


def test_the_cnn_is_the_papers():
    layers = list(cnn((1, 28, 28), 10))
    assert [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)] == [32, 64]
    assert [layer.p for layer in layers if isinstance(layer, nn.Dropout)] == [0.5, 0.5]


def test_dropout_of_one_half():
    values = torch.rand(50, 7, 9, 9).add_(1).to(memory_format=torch.channels_last)
    torch.manual_seed(0)
    seen = Halving()(values)
    kept = seen != 0
    assert torch.equal(seen[kept], 2 * values[kept])
    for axes in ((1, 2, 3), (0, 2, 3), (0, 1)):  # of each image, map and place
        part = values.numel() / kept.float().mean(axes).numel()
        assert (kept.float().mean(axes) - 0.5).abs().max() < 5 * 0.5 / part**0.5
    assert not torch.equal(Halving()(values) != 0, kept)
    assert torch.equal(Halving().eval()(values), values)


class TestTheAuthorsProtocol:
    specs = PROTOCOLS["authors"].classifiers

    def test_it_is_their_released_codes(self):
        layers = list(authors_cnn((1, 28, 28), 10))
        assert [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)] == [32, 64, 128]
        assert sum(isinstance(layer, nn.MaxPool2d) for layer in layers) == 2
        assert [layer.p for layer in layers if isinstance(layer, nn.Dropout2d)] == [0.5]
        assert [layer.out_features for layer in layers if isinstance(layer, nn.Linear)] == [128, 10]
        settings = {
            name: (spec.optimizer, spec.learning_rate, spec.weight_decay, spec.patience, spec.epochs)
            for name, spec in self.specs.items()
            if isinstance(spec, Network)
        }
        assert settings == {
            "logistic": ("adam", 1e-4, 1e-6, 10, 1000),
            "mlp": ("adam", 1e-4, 0.0, 30, 300),
            "cnn": ("sgd", 1e-3, 0.0, 60, 500),
        }

    def test_the_last_tenth_stops_it(self, digits):
        x, y = on_device(digits[0][:200], "cpu"), torch.from_numpy(digits[1][:200])
        fit = fit_network(self.specs["mlp"].shortened(), x, y, 10, seed=0)
        assert sorted(fit.held_out.tolist()) == list(range(180, 200))

    def test_pixels_are_in_minus_one_to_one(self):
        images = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
        told = [probabilities(nn.Flatten(), images, symmetric=symmetric)[0] for symmetric in (True, False)]
        logits = [np.log(one[1] / one[0]) for one in told]
        assert logits == pytest.approx([2, 1])

    def test_sgd_learns(self, digits):
        images, labels, test_images, test_labels = digits
        x, tx = on_device(images, "cpu"), on_device(test_images, "cpu")
        spec = dataclasses.replace(self.specs["cnn"], build=linear, epochs=40, learning_rate=0.1)
        verdict = spec.classify(Lesson(x, torch.from_numpy(labels), 10, tx, 0))
        assert (verdict.probabilities.argmax(1) == test_labels).mean() > 0.85
        assert verdict.epochs == 40


def test_colour_images():
    """Only the third channel tells the classes apart."""
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (400, 6, 6, 3), dtype=np.uint8)
    labels = draws.integers(0, 2, 400)
    images[..., 2] = np.where(labels == 1, 200, 50)[:, None, None]
    found = downstream_utility(
        images[:300], labels[:300], images[300:], labels[300:],
        classes=2, device="cpu",
    )  # fmt: skip
    assert all(score.mean > 95 for score in found.scores)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"classifiers": ["svm"]}, "classifiers"),
        ({"protocol": "thorough"}, "quick, paper, authors"),
        ({"classifiers": []}, "classifiers"),
        ({"classifiers": ["mlp", "mlp"]}, "classifiers"),
        ({"sets": 0}, "sets"),
        ({"seed": -1}, "seed"),
        ({"device": "abacus"}, "device"),
        ({"classes": 9}, "labels"),
        ({"images": np.zeros((1347, 9, 9), np.uint8)}, "they must agree"),
        ({"images": np.zeros((1347, 8, 8))}, "uint8"),
        ({"images": np.zeros((0, 8, 8), np.uint8)}, "uint8"),
        ({"labels": np.zeros(3, np.int64)}, "one for each"),
        ({"labels": np.zeros(1347)}, "whole numbers"),
    ],
)
def test_bad_input(digits, changes, part):
    names = ("images", "labels", "test_images", "test_labels")
    arguments = {"classes": 10, **dict(zip(names, digits, strict=True)), **changes}
    with pytest.raises(EvaluationError, match=part) as caught:
        downstream_utility(**arguments)
    assert "\n" not in str(caught.value)


def test_too_few_images(digits):
    images, labels, *test = digits
    with pytest.raises(EvaluationError, match="20 images"):
        downstream_utility(images[:19], labels[:19], *test, classes=10, classifiers=["mlp"], device="cpu")


def test_mean_and_spread():
    score = ClassifierScore("mlp", (90.0, 92.0, 94.0), (70.0, 71.0, 72.0), (), (80.0, None, 60.0))
    assert (score.mean, score.spread, score.worst_class) == (92.0, 2.0, 2)
    found = score.to_json()
    assert (found["balanced_accuracy"], found["balanced_accuracy_spread"]) == (71.0, 1.0)
