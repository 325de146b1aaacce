"""The protocol of DPImageBench: its networks, and epochs that are chosen twice."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from dpsinkhorn.data import from_arrays
from dpsinkhorn.evaluation import EvaluationError, evaluate_images, find_protocol
from dpsinkhorn.evaluation.architectures import mlp, resnet, resnext, wide_resnet
from dpsinkhorn.evaluation.images import on_device
from dpsinkhorn.evaluation.networks import Lesson, Network, _running_mean, fit_network, probabilities

SMALL = (partial(resnet, depth=8), partial(wide_resnet, depth=10, factor=1), partial(resnext, depth=11))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 7, 5)])
@pytest.mark.parametrize("build", SMALL)
def test_networks_fit_any_image(build, shape):
    network = build(shape, 4)
    assert network(torch.zeros(2, *shape)).shape == (2, 4)
    maps = [layer.stride for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert maps.count((2, 2)) == 4, "two stages halve the image, in branch and shortcut"


def test_an_epoch_is_chosen_by_private_images_too(digits):
    """These have other labels, so that the two choices differ, and each is the best by its own images."""
    images, labels, tests, _ = digits
    x, y = on_device(images, "cpu"), torch.from_numpy(labels)
    others = x[:300], torch.from_numpy(np.random.default_rng(0).integers(0, 10, 300))
    spec = Network(mlp, epochs=12)
    fit = fit_network(spec, x, y, 10, seed=0, sensitive=others)
    plain = fit_network(spec, x, y, 10, seed=0)
    assert fit.history == plain.history, "private images decide on nothing else"
    right = [
        float((probabilities(network, others[0]).argmax(1) == others[1].numpy()).mean())
        for network in (fit.network, fit.by_sensitive)
    ]
    assert right[1] > right[0]
    verdict = spec.classify(Lesson(x, y, 10, on_device(tests, "cpu"), 0, others))
    assert not np.array_equal(verdict.probabilities, verdict.by_sensitive)


def test_the_learning_rate_falls(digits):
    x, y = on_device(digits[0], "cpu"), torch.from_numpy(digits[1])
    still = fit_network(Network(mlp, epochs=4, decay=(2, 0.0)), x, y, 10, seed=0).history
    assert still[1] != still[0]
    assert still[1] == still[2] == still[3], "a rate of 0 moves nothing"


def test_the_running_mean_forgets_the_first_weights():
    layer = nn.Linear(1, 1, bias=False)
    mean = _running_mean(layer, 0.9)
    expected = 0.0
    for step in range(200):
        layer.weight.data.fill_(float(step))
        mean.update_parameters(layer)
        expected += (step - expected) * (1.0 if not step else max(0.1, 9 / (10 + step)))
    assert float(mean.module.weight.detach()) == pytest.approx(expected)
    assert 185 < expected < 195


def test_all_of_it(digits):
    """Tiny networks in the place of the large ones."""
    images, labels, tests, truth = digits
    protocol = find_protocol("dpimagebench")
    tiny = {
        name: dataclasses.replace(spec, build=build, epochs=3, batch=32)
        for (name, spec), build in zip(protocol.classifiers.items(), (SMALL[0], mlp, mlp), strict=True)
    }
    training, test = from_arrays(images, labels, classes=10), from_arrays(tests, truth, classes=10)
    found = evaluate_images(
        images[:240],
        labels[:240],
        test,
        training=training,
        protocol=dataclasses.replace(protocol, classifiers=tiny),
        parts=["resnet", "resnext", "real"],
        device="cpu",
    )
    assert [score.name for score in found.utility.scores] == ["resnet", "resnext"]
    for utility in (found.utility, found.real):
        assert all(score.by_sensitive is not None for score in utility.scores)
        mean, best = utility.mean_and_best(by_sensitive=True)
        assert mean == pytest.approx(sum(score.by_sensitive.mean for score in utility.scores) / 2)
        assert best >= mean
    assert found.utility.to_json()["classifiers"][0]["by_sensitive"]["mean"] > 0
    assert found.real.trained_on == 240


def test_images_that_choose_are_not_trained_on():
    protocol = find_protocol("dpimagebench")
    aside = protocol.set_aside(1200)
    assert len(set(aside.tolist())) == 100
    assert np.ptp(aside) > 1000, "they may come sorted by class"
    assert len(find_protocol("paper").set_aside(1200)) == 0


def test_parts_of_other_protocols_are_refused(digits):
    images, labels, tests, truth = digits
    with pytest.raises(EvaluationError, match=r"resnet.*in the protocol dpimagebench"):
        evaluate_images(
            images, labels, from_arrays(tests, truth), protocol="dpimagebench", parts=["cnn"], device="cpu"
        )
