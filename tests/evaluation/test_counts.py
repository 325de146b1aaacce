"""Precision and recall must not depend on how many synthetic images are drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpsinkhorn.data import from_arrays, load_dataset
from dpsinkhorn.evaluation import compare_images, evaluate_images, images_of, load_features, precision_recall
from dpsinkhorn.evaluation.images import on_device

TRAIN, TEST = (load_dataset("digits", split=split) for split in ("train", "test"))


def drawn(count, seed=0):
    """Digits with grain: a generator that has all of the diversity, and some noise."""
    draws = np.random.default_rng(seed)
    images = images_of(TRAIN)[draws.integers(0, TRAIN.records, count)].astype(int)
    return np.clip(images + draws.normal(0, 12, images.shape), 0, 255).astype(np.uint8)


def likeness(images, training):
    plain = from_arrays(images_of(TEST), name="plain")
    return evaluate_images(images, None, plain, training=training, features="cnn", device="cpu").likeness


@pytest.mark.parametrize("training", [TRAIN, None], ids=["training images", "halves"])
def test_recall_does_not_depend_on_the_count(training):
    number = 450 if training else 225
    found = {count: likeness(drawn(count), training) for count in (450, 1347, 8000)}
    recalls = [one.diversity.recall for one in found.values()]
    assert [one.compared for one in found.values()] == [number] * 3
    assert max(recalls) - min(recalls) < 0.1  # a share of 225 varies by 0.03
    precisions = [one.diversity.precision for one in found.values()]
    assert max(precisions) - min(precisions) < 0.1


def test_both_columns_have_the_same_number():
    """Fewest of training images, then of synthetic ones; figures are those of equal sets, computed apart."""
    few = from_arrays(images_of(TRAIN)[:100], name="few")
    assert likeness(drawn(300), few).compared == 100
    assert likeness(drawn(60), TRAIN).compared == 60
    x, y, z = (on_device(images, "cpu") for images in (drawn(60), images_of(TEST), images_of(TRAIN)[:60]))
    network = load_features("cnn", y, None, 0)
    found = compare_images(network, x, y, z)
    # as many are compared as there are: all of the synthetic and training images, in any order
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:60]
    real = network.features(y)[rows]
    assert found.diversity == precision_recall(real, network.features(x))
    assert found.real_diversity == precision_recall(real, network.features(z))
    assert found.to_json()["compared"] == 60


def test_images_may_come_sorted():
    """Those compared are not the first: a list by class would have some classes only."""
    order = np.argsort(TRAIN.labels, kind="stable")
    found = likeness(images_of(TRAIN)[order], None)
    assert found.compared == 225
    assert found.diversity.recall > 0.6


def test_the_same_choice_in_every_evaluation():
    assert likeness(drawn(700), TRAIN).to_json() == likeness(drawn(700), TRAIN).to_json()
