"""What sampling adds to images: of the stated size, each image its own, nothing where nothing is asked."""

from __future__ import annotations

import math

import pytest
import torch

from dpsinkhorn.generators import DCGANConfig, GeneratorError, Variation, config_from_json, config_to_json


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_none_changes_nothing():
    images = torch.rand(3, 1, 9, 12, generator=random())
    assert Variation()(images, random()) is images
    assert not Variation()
    assert Variation(sharpen=0.1)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 48)])
def test_warp_moves_a_ramp_by_what_is_stated(shape):
    """On an image whose value is its column, the change is the displacement, away from the border."""
    channels, height, width = shape
    ramp = torch.linspace(-1, 1, width).expand(2000, channels, height, width)
    step = 2 / (width - 1)
    for size in (0.3, 0.7):
        moved = (Variation(warp=size)(ramp, random(1)) - ramp) / step
        assert torch.allclose(moved[:, :1].expand_as(moved), moved, atol=1e-4)  # the same in every channel
        # at a point of the grid the displacement is one normal number; in between it is less
        at = moved[:, 0, height - 1, width // 2]
        assert float(moved[:, 0, :, 6:-6].std()) == pytest.approx(0.8 * size, rel=0.2)
        assert abs(float(at.mean())) < 5 * size / math.sqrt(len(at))
        # smooth: neighbours move alike
        assert float((moved[:, 0, :, 7:-6] - moved[:, 0, :, 6:-7]).std()) < 0.4 * size


def test_warp_moves_both_ways():
    down = torch.linspace(-1, 1, 28)[:, None].expand(500, 1, 28, 28)
    moved = Variation(warp=0.7)(down, random()) - down
    assert float(moved[:, :, 6:-6].std()) > 0.3 * 2 / 27


def test_sharpening_steepens_an_edge_and_leaves_planes_alone():
    edge = torch.where(torch.arange(28) < 14, -0.5, 0.5).expand(200, 1, 28, 28)
    sharp = Variation(sharpen=2.0)(edge, random())
    assert torch.equal(sharp[..., :12], edge[..., :12])
    assert torch.equal(sharp[..., 16:], edge[..., 16:])
    overshoot = sharp[:, 0, 5, 14] - 0.5  # strength x (0.5 - blurred 0.25)
    assert float(overshoot.max()) <= 2.0 * 0.25 + 1e-6
    assert float(overshoot.mean()) == pytest.approx(0.25, rel=0.15)
    assert float(overshoot.min()) < 0.05
    assert float(sharp.abs().max()) <= 1


def test_grain_is_white_and_each_image_has_its_own():
    noise = Variation(grain=0.4)(torch.zeros(3000, 1, 12, 12), random())
    sizes = noise.flatten(1).std(1)
    assert float(sizes.max()) == pytest.approx(0.4, rel=0.25)
    assert float(sizes.min()) < 0.02
    assert float(sizes.mean()) == pytest.approx(0.2, rel=0.05)
    assert abs(float((noise[..., 1:] * noise[..., :-1]).mean())) < 1e-3


@pytest.mark.parametrize(
    ("name", "value", "most"),
    [("grain", -0.1, 1), ("grain", 1.5, 1), ("grain", math.nan, 1), ("warp", True, 8), ("sharpen", "1", 16)],
)
def test_bad_numbers_are_one_line(name, value, most):
    with pytest.raises(GeneratorError, match=f"{name} must be a number from 0 to {most}, not"):
        Variation(**{name: value})
    with pytest.raises(GeneratorError, match=f"{name} must be a number"):
        DCGANConfig((1, 28, 28), 10, **{name: value})


def test_configs_carry_it():
    config = DCGANConfig((1, 28, 28), 10, warp=0.7, sharpen=3.0, grain=0.3)
    assert config_from_json(config_to_json(config)).variation == Variation(0.7, 3.0, 0.3)
    old = config_to_json(config)
    for name in ("warp", "sharpen"):  # written before there was either
        del old[name]
    assert config_from_json(old).variation == Variation(grain=0.3)
