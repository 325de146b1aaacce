"""Record and replay of private transport."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dpsinkhorn.transport import algorithm, direct, noisy, release, two_stage
from dpsinkhorn.transport.replay import replay_transport

METHODS = (
    "direct, entropic",
    "direct, exact",
    "direct, divergence",
    "sliced",
    "smoothed sliced",
    "histogram",
    "linear program",
    "noisy Sinkhorn",
    "two-stage",
    "test, mmd",
    "test, sliced",
    "test, exact",
)


@pytest.fixture
def replayed():
    x, y = np.random.default_rng(0).random((2, 8, 2))

    def replayed():
        return {found.mechanism: found for found in replay_transport(x, y, cost_bound=1.0)}

    return replayed


def test_clean(replayed):
    found = replayed()
    assert tuple(found) == METHODS
    for each in found.values():
        assert each.violations == ()
        assert 0.3 < each.move <= 1
        assert 0 < each.refused < each.neighbours


class TestFound:
    def test_a_sensitivity_that_is_too_small(self, replayed, monkeypatch):
        exact = direct.cost_sensitivity
        monkeypatch.setattr(direct, "cost_sensitivity", lambda *given: exact(*given) / 2)
        found = replayed()
        assert found["direct, exact"].move > 1.5
        assert found["direct, exact"].violations

    def test_paired_as_if_one_point_were_replaced(self, replayed, monkeypatch):
        worst = type(direct.Setting(1, 1, 1.0)).worst
        monkeypatch.setattr(
            direct.Setting, "worst", lambda self, x, y: worst(dataclasses.replace(self, paired=False), x, y)
        )
        assert any("paired" in line for line in replayed()["histogram"].violations)

    def test_a_sensitivity_that_follows_the_data(self, replayed, monkeypatch):
        original, steps = noisy.NoisySinkhorn._sensitivity, algorithm.exact_step

        def by_the_data(self, psi):  # planning has no data
            return original(self, seen[-1].psi.numpy() - float(seen[-1].psi.mean()) if seen else psi)

        seen = []
        monkeypatch.setattr(algorithm, "exact_step", lambda *given: seen.append(steps(*given)) or seen[-1])
        monkeypatch.setattr(noisy.NoisySinkhorn, "_sensitivity", by_the_data)
        assert any("on the neighbour" in line for line in replayed()["noisy Sinkhorn"].violations)

    def test_noise_that_is_left_out(self, replayed, monkeypatch):
        for module in (release, two_stage):
            monkeypatch.setattr(module, "add_laplace", lambda values, **_: values)
        found = replayed()
        assert "1 releases are charged, and 0 were noised" in found["histogram"].violations[0]
        assert "3 releases are charged, and 2 were noised" in found["two-stage"].violations[0]

    def test_half_the_noise(self, replayed, monkeypatch):
        original = release.add_laplace

        def halved(values, *, epsilon, **given):
            return original(values, epsilon=2 * epsilon, **given)

        monkeypatch.setattr(release, "add_laplace", halved)
        assert "charged as laplace noise" in replayed()["direct, exact"].violations[0]
