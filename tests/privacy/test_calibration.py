"""Calibration: what is returned meets the budget, and hardly wastes any of it."""

from __future__ import annotations

import math

import pytest

from dpsinkhorn.privacy import ACCOUNTANTS, CalibrationError, RecordMechanism, calibrate, epsilon
from dpsinkhorn.privacy.accounting import sampled_gaussian

DELTA = 1e-5


@pytest.mark.parametrize(
    ("target", "steps", "rate", "expected"),
    [(10, 1000, 0.1, 1.758), (10, 3000, 0.2, 5.535), (1, 3000, 0.2, 41.0)],
)
def test_known_multipliers(target, steps, rate, expected):
    found = calibrate(target, DELTA, sampling_rate=rate, steps=steps)
    assert found.noise_multiplier == pytest.approx(expected, rel=0.01)
    assert found.epsilon == epsilon(RecordMechanism(1.0, found.noise_multiplier).sampled(rate, steps), DELTA)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("target", [0.3, 3.0, 30.0])
class TestEachFreeSetting:
    """Meets the budget as it stands; a thousandth more would not."""

    def check(self, found, more, target, accountant):
        assert found.epsilon <= target
        assert found.epsilon == epsilon(found.charge, DELTA, accountant)
        assert epsilon(more, DELTA, accountant) > target

    def test_noise(self, target, accountant):
        found = calibrate(target, DELTA, sampling_rate=0.02, steps=2000, accountant=accountant)
        more = sampled_gaussian(found.noise_multiplier * 0.999, 0.02, 2000)
        self.check(found, more, target, accountant)

    def test_rate(self, target, accountant):
        found = calibrate(target, DELTA, noise_multiplier=1.5, steps=2000, accountant=accountant)
        self.check(found, sampled_gaussian(1.5, found.sampling_rate * 1.001, 2000), target, accountant)

    def test_steps(self, target, accountant):
        found = calibrate(target, DELTA, noise_multiplier=3.0, sampling_rate=0.01, accountant=accountant)
        more = sampled_gaussian(3.0, 0.01, found.steps + max(1, found.steps // 1000))
        self.check(found, more, target, accountant)


def test_a_handful_of_steps_is_exact():
    found = calibrate(3.0, DELTA, noise_multiplier=1.0, sampling_rate=0.2)
    assert found.steps < 100
    assert epsilon(sampled_gaussian(1.0, 0.2, found.steps + 1), DELTA) > 3.0


def test_rows_share_a_sample():
    one = calibrate(5.0, DELTA, sampling_rate=0.02, steps=500, accountant="rdp")
    many = calibrate(5.0, DELTA, sampling_rate=0.02, steps=500, rows=16, accountant="rdp")
    assert many.noise_multiplier == pytest.approx(4 * one.noise_multiplier, rel=1e-3)
    assert many.effective_noise_multiplier == pytest.approx(one.noise_multiplier, rel=1e-3)


def test_a_budget_that_allows_everything_gives_the_whole_data_set():
    assert calibrate(10.0, DELTA, noise_multiplier=50.0, steps=10).sampling_rate == 1.0


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_budget_that_one_step_exceeds_raises(accountant):
    with pytest.raises(CalibrationError, match="larger epsilon"):
        calibrate(0.1, DELTA, noise_multiplier=0.3, sampling_rate=0.5, accountant=accountant)


@pytest.mark.parametrize(
    "settings", [{}, {"steps": 10}, {"steps": 10, "sampling_rate": 0.1, "noise_multiplier": 1.0}]
)
def test_exactly_one_setting_is_left_out(settings):
    with pytest.raises(ValueError, match="exactly two"):
        calibrate(1.0, DELTA, **settings)


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_is_a_positive_number(target):
    with pytest.raises(ValueError, match="epsilon"):
        calibrate(target, DELTA, steps=10, sampling_rate=0.1)
    with pytest.raises(ValueError, match="delta"):
        calibrate(1.0, 0.0, steps=10, sampling_rate=0.1)
