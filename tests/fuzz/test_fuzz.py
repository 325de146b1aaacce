"""Every format that is read, with thousands of mutated files: clean errors, little memory, little time."""

from __future__ import annotations

import pytest

from support.fuzz import campaign
from support.fuzz_targets import TARGETS

SLOW = {"checkpoint", "report"}


def check(target: str, count: int, seed: int, folder) -> None:
    found = campaign(target, count, seed, folder)
    print(
        f"{target}: {found.files} files, {found.read} read, {found.refused} refused, "
        f"slowest {1000 * found.slowest:.0f} ms, memory +{found.peak_mib:.0f} MiB"
    )
    assert not found.unclean, found.unclean[0]
    assert found.files == count
    assert found.refused > count / 10, "the mutations are too mild"
    assert found.slowest < 10
    assert found.peak_mib < 1500


@pytest.mark.parametrize("target", TARGETS)
def test_a_sample(target: str, tmp_path):
    check(target, 20 if target in SLOW else 150, 0, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_a_hundred_thousand_in_all(target: str, tmp_path):
    check(target, 800 if target in SLOW else 12_000, 1, tmp_path)
