"""Nearest training images, and the picture that must not be passed on."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from dpsinkhorn.evaluation import (
    EvaluationError,
    beside_picture,
    curator_path,
    nearest_neighbours,
    neighbours,
    neighbours_picture,
)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3)])
@pytest.mark.parametrize("cells", [2**24, 600])
def test_against_all_pairs(shape, cells, monkeypatch):
    monkeypatch.setattr(neighbours, "_CELLS", cells)
    draws = np.random.default_rng(0)
    synthetic = draws.integers(0, 256, (20, *shape), dtype=np.uint8)
    training = draws.integers(0, 256, (150, *shape), dtype=np.uint8)
    found = nearest_neighbours(synthetic, training, device="cpu")
    a, b = (images.reshape(len(images), -1) / 255 for images in (synthetic, training))
    pairs = np.linalg.norm(a[:, None] - b[None], axis=2)
    assert (found.indices == pairs.argmin(1)).all()
    np.testing.assert_allclose(found.distances, pairs.min(1))


def test_a_copied_record_is_found(digits):
    images = digits[0]
    found = nearest_neighbours(images[[17, 1200]], images, device="cpu")
    assert found.indices.tolist() == [17, 1200]
    assert found.distances.tolist() == [0, 0]


@pytest.mark.parametrize("colour", [False, True])
def test_picture(tmp_path, digits, colour):
    synthetic, training = digits[2][:7], digits[0]
    if colour:
        synthetic, training = (np.repeat(images[..., None], 3, axis=3) for images in (synthetic, training))
    found = nearest_neighbours(synthetic, training, device="cpu")
    path = neighbours_picture(synthetic, training, found, tmp_path / "near.png")
    assert path == tmp_path / "near-CURATOR-ONLY.png"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    with Image.open(path) as picture:
        pixels = np.asarray(picture)
    red = (pixels == (176, 0, 32)).all(2)
    assert red[0].all(), "a banner across the picture"
    assert (pixels[:30] > 200).all(2).any(), "with white text on it"
    # the first pair: 8 x 8 images, each pixel drawn as 7 x 7
    left = pixels[38 : 38 + 56 : 7, 12 : 12 + 56 : 7, 0]
    right = pixels[38 : 38 + 56 : 7, 70 : 70 + 56 : 7, 0]
    assert (left == synthetic[0].reshape(8, 8, -1)[..., 0]).all()
    assert (right == training[found.indices[0]].reshape(8, 8, -1)[..., 0]).all()


def test_classes_side_by_side(tmp_path, digits):
    """Real images are on the right, of the class of their line; a class that one side lacks is left out."""
    images, labels, tests, truth = digits
    some = np.isin(labels, (2, 5))
    path = beside_picture(images[some], labels[some], tests, truth, ["", "", "two"], tmp_path / "both.png")
    assert path.name == "both-CURATOR-ONLY.png"
    with Image.open(path) as picture:
        pixels = np.asarray(picture)
    assert (pixels[0] == (176, 0, 32)).all(), "a banner across the picture"
    assert pixels.shape[0] == 34 + 2 * (56 + 4) + 12, "two lines"
    for line, k in enumerate((2, 5)):
        top = 34 + 60 * line + 4
        drawn = pixels[top : top + 56 : 7, -12 - 6 * 58 : -12 : 7, 0]
        assert (drawn[:, :8] == tests[truth == k][0].reshape(8, 8)).all()
    one = beside_picture(images, None, tests, truth, [], tmp_path / "one.png")
    with Image.open(one) as picture:
        assert picture.height == 34 + 60 + 12


def test_names():
    assert curator_path("a/b.png").as_posix() == "a/b-CURATOR-ONLY.png"
    assert curator_path("b-CURATOR-ONLY.png").name == "b-CURATOR-ONLY.png"
    with pytest.raises(EvaluationError, match=r"\.png"):
        curator_path("b.jpg")


def test_bad_input(tmp_path, digits):
    with pytest.raises(EvaluationError, match="size"):
        nearest_neighbours(digits[0], np.zeros((3, 9, 9), np.uint8), device="cpu")
    found = nearest_neighbours(digits[2][:2], digits[0], device="cpu")
    with pytest.raises(EvaluationError, match="cannot write"):
        neighbours_picture(digits[2][:2], digits[0], found, tmp_path / "no" / "near.png")
