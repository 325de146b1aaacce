"""Classifiers trained on one set of images and tested on another."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, recall_score
from torch import nn

from dpsinkhorn.evaluation import ClassifierScore, EvaluationError, downstream_utility
from dpsinkhorn.evaluation.classifiers import cnn, fit_network, logistic_sklearn, logistic_torch, mlp, predict
from dpsinkhorn.evaluation.images import on_device


def test_real_digits_in_place_of_synthetic(digits):
    found = downstream_utility(*digits, classes=10, runs=2, patience=8, device="cpu")
    assert [score.name for score in found.scores] == ["logistic", "mlp", "cnn"]
    for score in found.scores:
        assert score.mean > 93, score
    assert (found.trained_on, found.tested_on) == (1347, 450)
    assert [len(score.runs) for score in found.scores] == [1, 2, 2]
    assert found["logistic"].spread is None
    assert found["cnn"].spread == pytest.approx(abs(np.diff(found["cnn"].runs)[0]) / np.sqrt(2))
    assert all(epochs > 8 for epochs in found["mlp"].epochs)


def test_shuffled_labels_are_worth_nothing(digits):
    images, labels, test_images, test_labels = digits
    shuffled = np.random.default_rng(0).permutation(labels)
    found = downstream_utility(
        images, shuffled, test_images, test_labels,
        classes=10, classifiers=["logistic", "mlp"], runs=2, patience=3, device="cpu",
    )  # fmt: skip
    for score in found.scores:
        assert 2 < score.mean < 20, score


def test_logistic_regression_is_scikit_learns(digits):
    images, labels, test_images, test_labels = digits
    images, labels = images[:400], labels[:400]
    model = LogisticRegression(max_iter=5000).fit(images.reshape(400, -1) / np.float32(255), labels)
    guesses = model.predict(test_images.reshape(len(test_images), -1) / np.float32(255))
    found = downstream_utility(
        images, labels, test_images, test_labels, classes=10, classifiers=["logistic"], device="cpu"
    )["logistic"]
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
    ty = torch.from_numpy(np.concatenate([test_labels, labels]))
    ours, reference = logistic_torch(x, y, 10, tx), logistic_sklearn(x, y, tx)
    difference = (ours == ty).double().mean() - (reference == ty).double().mean()
    assert abs(100 * difference) <= 0.2
    assert (ours == reference).double().mean() > 0.99


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
    json.dumps(score.to_json(), allow_nan=False)


@pytest.mark.parametrize("solver", ["sklearn", "torch"])
def test_one_class_only(digits, solver):
    images, _, test_images, test_labels = digits
    score = downstream_utility(
        images[:30], np.full(30, 6), test_images, test_labels,
        classes=10, classifiers=["logistic"], logistic=solver, device="cpu",
    )["logistic"]  # fmt: skip
    assert score.per_class[6] == 100
    assert score.mean == pytest.approx(100 * (test_labels == 6).mean())


@pytest.mark.parametrize("patience", [4, 8])
def test_early_stopping_restores_the_best_weights(digits, patience):
    """With labels half wrong accuracy goes up and down, so that the last weights are not the best."""
    images, labels, _, _ = digits
    wrong = np.random.default_rng(1).random(len(labels)) < 0.5
    noisy = np.where(wrong, np.random.default_rng(2).permutation(labels), labels)
    x, y = on_device(images, "cpu"), torch.from_numpy(noisy)
    fit = fit_network(mlp, x, y, 10, seed=4, patience=patience)
    last = len(fit.history) - 1
    assert fit.history.index(fit.best) == last - patience
    assert fit.history[-1] < fit.best
    accuracy = (predict(fit.network, x[fit.held_out]) == y[fit.held_out]).double().mean()
    assert float(accuracy) == fit.best
    assert len(fit.held_out) == len(images) // 10


def test_held_out_images_are_not_trained_on():
    """A network that can learn everything by heart learns nothing of labels that it was not shown."""
    images = on_device(np.random.default_rng(0).integers(0, 256, (400, 8, 8), dtype=np.uint8), "cpu")
    labels = torch.from_numpy(np.random.default_rng(1).integers(0, 2, 400))
    fit = fit_network(mlp, images, labels, 2, seed=0, patience=40)
    shown = torch.ones(400, dtype=torch.bool)
    shown[fit.held_out] = False
    assert (predict(fit.network, images[shown]) == labels[shown]).double().mean() > fit.best
    assert max(fit.history) < 0.8, "after forty epochs more it would know them all"


def test_seeds(digits):
    images, labels, _, _ = digits
    x, y = on_device(images[:200], "cpu"), torch.from_numpy(labels[:200])
    state = torch.get_rng_state()
    first, again, other = (fit_network(mlp, x, y, 10, seed=seed, patience=2) for seed in (5, 5, 6))
    assert first.history == again.history
    for one, two in zip(first.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(first.held_out, other.held_out)
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers go on as they were"


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 7, 5), (1, 1, 1)])
def test_networks_fit_any_image(shape):
    for build in (mlp, cnn):
        assert build(shape, 4)(torch.zeros(2, *shape)).shape == (2, 4)


def test_the_cnn_is_the_papers():
    layers = list(cnn((1, 28, 28), 10))
    assert [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)] == [32, 64]
    assert [layer.p for layer in layers if isinstance(layer, nn.Dropout)] == [0.5, 0.5]


def test_colour_images():
    """Only the third channel tells the classes apart."""
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (400, 6, 6, 3), dtype=np.uint8)
    labels = draws.integers(0, 2, 400)
    images[..., 2] = np.where(labels == 1, 200, 50)[:, None, None]
    found = downstream_utility(
        images[:300], labels[:300], images[300:], labels[300:],
        classes=2, runs=1, patience=3, device="cpu",
    )  # fmt: skip
    assert all(score.mean > 95 for score in found.scores)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"classifiers": ["forest"]}, "classifiers"),
        ({"classifiers": []}, "classifiers"),
        ({"classifiers": ["mlp", "mlp"]}, "classifiers"),
        ({"runs": 0}, "runs"),
        ({"patience": 0}, "patience"),
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
    score = ClassifierScore("mlp", (90.0, 92.0, 94.0), (80.0, None, 60.0))
    assert (score.mean, score.spread, score.worst_class) == (92.0, 2.0, 2)
