"""Cropping and resizing: the part that is kept lies in the picture, whatever the sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from dpsinkhorn.data import load_dataset
from dpsinkhorn.data.pictures import _box

SIDES = st.integers(1, 5000)
TARGETS = st.integers(1, 4096)


def check_box(height, width, size):
    left, top, right, bottom = _box(height, width, size)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    # centred, of the shape wanted, and it fills the picture one way
    assert math.isclose(left, width - right, abs_tol=1e-6)
    assert math.isclose(top, height - bottom, abs_tol=1e-6)
    assert math.isclose((right - left) * size[0], (bottom - top) * size[1], rel_tol=1e-9)
    assert math.isclose(right - left, width, rel_tol=1e-9) or math.isclose(bottom - top, height, rel_tol=1e-9)


@pytest.mark.parametrize("target", [16, 28, 32, 64])
def test_every_square(target):
    for side in range(1, 1101):
        check_box(side, side, (target, target))


@given(height=SIDES, width=SIDES, tall=TARGETS, wide=TARGETS)
@example(height=29, width=29, tall=28, wide=28)
def test_any_sizes(height, width, tall, wide):
    check_box(height, width, (tall, wide))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_side_that_does_not_divide(tmp_path, dtype):
    """A resize of the whole picture, done by Pillow without a box, is the same."""
    images = np.random.default_rng(0).integers(0, 255, (3, 29, 29)).astype(dtype)
    np.savez(tmp_path / "a.npz", images=images)
    found = load_dataset(tmp_path / "a.npz", size=28).images[..., 0]
    for small, image in zip(found, images, strict=True):
        whole = Image.fromarray(image.astype(np.float32)).resize((28, 28), Image.Resampling.BILINEAR)
        assert np.abs(small - np.asarray(whole)).max() <= 1
