"""All measures in one result."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpsinkhorn.data import from_arrays, load_dataset
from dpsinkhorn.evaluation import NOT_PRIVATE, EvaluationError, evaluate_images, images_of

TRAIN, TEST = (load_dataset("digits", split=split) for split in ("train", "test"))
FEW = from_arrays(images_of(TRAIN)[:300], TRAIN.labels[:300], classes=10, name="few")
QUICK = {"parts": ["logistic", "real", "frechet", "precision-recall"], "device": "cpu"}


def test_real_images_are_as_good_as_it_gets():
    seen, estimates = [], []
    found = evaluate_images(
        images_of(FEW),
        FEW.labels,
        TEST,
        training=FEW,
        estimated=estimates.append,
        progress=lambda *now: seen.append(now),
        **QUICK,
    )
    assert found.real["logistic"].mean == pytest.approx(found.utility["logistic"].mean, abs=0.5)
    assert found.real.trained_on == 300
    assert found.utility["logistic"].mean > 85
    assert found.likeness.frechet == pytest.approx(found.likeness.floor)
    assert found.likeness.diversity.recall > 0.7
    parts = {"logistic", "features", "precision-recall"}
    assert {part for part, _ in seen} == parts == set(estimates[0])
    assert all(0 < seconds < 600 for seconds in estimates[0].values())
    assert all(max(done for part, done in seen if part == one) == 1 for one in parts)


def test_noise_is_bad_in_every_way():
    draws = np.random.default_rng(0)
    noise = draws.integers(0, 256, (500, 8, 8), dtype=np.uint8)
    found = evaluate_images(noise, draws.integers(0, 10, 500), TEST, training=FEW, **QUICK)
    assert found.utility["logistic"].mean < 40
    assert found.likeness.frechet > 10 * found.likeness.floor
    assert found.likeness.diversity.recall < 0.1


def test_json_says_that_it_is_not_private():
    found = evaluate_images(images_of(TRAIN)[:200], TRAIN.labels[:200], TEST, **QUICK).to_json()
    assert found["private"] is False
    assert found["warning"] == NOT_PRIVATE
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["likeness"]["name"] == "frechet-cnn"
    assert "half" in found["likeness"]["floor_from"]
    assert len(found["utility"]["classifiers"][0]["per_class"]) == 10


def test_without_labels():
    plain = from_arrays(images_of(TEST), name="plain")
    found = evaluate_images(images_of(TRAIN), None, plain, **QUICK)
    assert found.utility is None
    assert found.likeness.name == "frechet-random-cnn"
    assert found.to_json()["utility"] is None


@pytest.mark.parametrize(
    ("images", "labels", "part"),
    [
        (np.zeros((30, 9, 8), np.uint8), np.zeros(30, np.int64), "9 x 8 grey .* 8 x 8 grey"),
        (np.zeros((30, 8, 8, 3), np.uint8), np.zeros(30, np.int64), "colour"),
        (np.zeros((30, 8, 8), np.uint8), np.full(30, 10), "class 10 but digits has 10"),
    ],
)
def test_images_that_cannot_be_compared(images, labels, part):
    with pytest.raises(EvaluationError, match=part):
        evaluate_images(images, labels, TEST, **QUICK)


def test_labels_of_one_side_only():
    plain = from_arrays(images_of(TEST), name="plain")
    with pytest.raises(EvaluationError, match="plain has no labels"):
        evaluate_images(images_of(TRAIN), TRAIN.labels, plain, **QUICK)


def test_too_few_real_images():
    few = from_arrays(images_of(TEST)[:5], name="few")
    with pytest.raises(EvaluationError, match="too few"):
        evaluate_images(images_of(TRAIN), None, few, **QUICK)


def test_sixteen_bits_and_floats_as_eight():
    """Real images come to the scale of the synthetic ones, whatever they are stored as."""
    eight = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    for images in (eight, eight.astype(np.uint16) * 257, eight / np.float32(255)):
        assert (images_of(from_arrays(images)) == eight).all()
    colour = np.stack([eight, eight // 2, eight // 3], axis=3)
    assert (images_of(from_arrays(colour)) == colour).all()
    assert (images_of(from_arrays(colour / np.float32(255))) == colour).all()


def test_parts_can_be_left_out():
    arrays = images_of(FEW), FEW.labels, TEST
    found = evaluate_images(*arrays, training=FEW, parts=["logistic"], device="cpu")
    assert found.real is found.likeness is None
    found = evaluate_images(*arrays, training=FEW, parts=["frechet"], device="cpu")
    assert found.utility is found.real is found.likeness.diversity is None
    found = evaluate_images(*arrays, training=FEW, parts=["precision-recall"], device="cpu").likeness
    assert found.frechet is None
    assert found.diversity.recall > 0.5
    for wrong in ([], ["real", "frechet"], ["logistic", "logistic"], ["svm"]):
        with pytest.raises(EvaluationError, match="part"):
            evaluate_images(*arrays, parts=wrong)


def test_real_classes_in_another_order():
    """The column of real data would be wrong, silently."""
    names = np.array([chr(ord("a") + k) for k in range(10)])
    test, other = (
        from_arrays(images_of(FEW), names[FEW.labels], classes=list(order)) for order in (names, names[::-1])
    )
    arrays = images_of(FEW), FEW.labels, test
    with pytest.raises(EvaluationError, match="in another order; state the classes"):
        evaluate_images(*arrays, training=other, parts=["logistic", "real"], device="cpu")
    assert evaluate_images(*arrays, training=other, parts=["logistic"], device="cpu").real is None


def test_real_sets_are_as_many_and_as_large():
    found = evaluate_images(
        images_of(TRAIN)[:400], TRAIN.labels[:400], TEST, training=TRAIN, sets=4,
        parts=["logistic", "real"], device="cpu",
    )  # fmt: skip
    assert found.utility.trained_on == found.real.trained_on == 100
    assert len(set(found.real["logistic"].accuracy)) > 1, "each time others"


def test_classifiers_of_the_authors_see_black():
    """Below mid-grey synthetic images are black to them, and real ones as they are."""
    grey = (images_of(FEW) // 4).astype(np.uint8)
    blank = evaluate_images(
        grey, FEW.labels, TEST, training=FEW, protocol="authors", parts=["forest", "real"], device="cpu"
    )
    assert blank.utility["forest"].mean < 20
    assert blank.real["forest"].mean > 80
