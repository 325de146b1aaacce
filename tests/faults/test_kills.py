"""`kill -9` of real processes at random moments: nothing that was used or promised is ever missing.

Each campaign checks after every kill; see `support/kill_campaigns.py` for what.
"""

from __future__ import annotations

import time

import pytest

from support import kill_campaigns as campaigns
from support.kills import in_a_process


def survive(name: str, campaign, folder, kills: int, *arguments) -> None:
    started = time.monotonic()
    found = in_a_process(campaign, folder, kills, *arguments)
    assert found["kills"] >= kills
    counts = ", ".join(f"{count} {what}" for what, count in found.items())
    print(f"{name}: {counts}; {time.monotonic() - started:.0f} s")


class TestASample:
    def test_trainings(self, tmp_path):
        survive("trainings", campaigns.trainings, tmp_path, 12, 0, 3)

    def test_releases(self, tmp_path):
        survive("releases", campaigns.releases, tmp_path, 12, 0)

    def test_shared_ledgers(self, tmp_path):
        survive("shared ledgers", campaigns.shared_ledgers, tmp_path, 12, 0)


@pytest.mark.long
class TestHundreds:
    def test_trainings(self, tmp_path):
        survive("trainings", campaigns.trainings, tmp_path, 600, 1)

    def test_releases(self, tmp_path):
        survive("releases", campaigns.releases, tmp_path, 300, 1)

    def test_shared_ledgers(self, tmp_path):
        survive("shared ledgers", campaigns.shared_ledgers, tmp_path, 600, 1)


@pytest.mark.long
class TestDefectsAreNoticed:
    """The campaigns can fail: each of these defects ends one with an assertion."""

    @pytest.mark.parametrize(
        ("campaign", "defect"),
        [
            (campaigns.trainings, campaigns.ledger_afterwards),
            (campaigns.trainings, campaigns.checkpoints_in_place),
            (campaigns.releases, campaigns.releases_in_place),
            (campaigns.shared_ledgers, campaigns.ledger_without_a_head),
        ],
    )
    def test_planted(self, tmp_path, campaign, defect):
        kinds = (10,) if campaign is campaigns.trainings else ()
        with pytest.raises(AssertionError):
            in_a_process(campaign, tmp_path, 300, 2, *kinds, defect)
