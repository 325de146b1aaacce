"""What tests of run folders share."""

from __future__ import annotations

import random

import pytest

from dpsinkhorn.training import records, trainer


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 1 to 4 steps at random: what is learnt must not depend on them."""
    choices = random.Random(5)
    monkeypatch.setattr(trainer, "_next_block", lambda _steps, _seconds: choices.randint(1, 4))


@pytest.fixture
def draws(monkeypatch):
    """Counts the private samples that are really drawn, by a step number each."""
    counted = []
    real = records.Records.draw

    def draw(self, rate, noise):
        counted.append(rate)
        return real(self, rate, noise)

    monkeypatch.setattr(records.Records, "draw", draw)
    return counted
