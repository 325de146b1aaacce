"""Clocks that jump, forward and back: nothing that matters is told by them."""

from __future__ import annotations

import pytest

from support.fault_campaigns import odd_clocks
from support.kills import in_a_process


def test_a_sample(tmp_path):
    assert in_a_process(odd_clocks, tmp_path, 2, 0)["trainings"] == 2


@pytest.mark.long
def test_many(tmp_path):
    print(f"odd clocks: {in_a_process(odd_clocks, tmp_path, 50, 1)['trainings']} trainings")
