"""`kill -9` of real processes at random moments: nothing that was used or promised is ever missing.

Each campaign checks after every kill; see `support/kill_campaigns.py` and `file_campaigns.py`.
"""

from __future__ import annotations

import time

import pytest

from support import file_campaigns, kill_campaigns
from support.kills import in_a_process


def survive(name: str, campaign, folder, kills: int, *arguments) -> None:
    started = time.monotonic()
    found = in_a_process(campaign, folder, kills, *arguments)
    assert found["kills"] >= kills
    counts = ", ".join(f"{count} {what}" for what, count in found.items())
    print(f"{name}: {counts}; {time.monotonic() - started:.0f} s")


class TestASample:
    def test_trainings(self, tmp_path):
        survive("trainings", kill_campaigns.trainings, tmp_path, 12, 0, 3)

    def test_releases(self, tmp_path):
        survive("releases", file_campaigns.releases, tmp_path, 12, 0)

    def test_shared_ledgers(self, tmp_path):
        survive("shared ledgers", file_campaigns.shared_ledgers, tmp_path, 12, 0)


@pytest.mark.long
class TestHundreds:
    def test_trainings(self, tmp_path):
        survive("trainings", kill_campaigns.trainings, tmp_path, 600, 1)

    def test_releases(self, tmp_path):
        survive("releases", file_campaigns.releases, tmp_path, 300, 1)

    def test_shared_ledgers(self, tmp_path):
        survive("shared ledgers", file_campaigns.shared_ledgers, tmp_path, 600, 1)


@pytest.mark.long
class TestDefectsAreNoticed:
    """The campaigns can fail: each of these defects ends one with an assertion."""

    @pytest.mark.parametrize(
        ("campaign", "defect"),
        [
            (kill_campaigns.trainings, kill_campaigns.ledger_afterwards),
            (kill_campaigns.trainings, kill_campaigns.checkpoints_in_place),
            (file_campaigns.releases, file_campaigns.releases_in_place),
            (file_campaigns.shared_ledgers, file_campaigns.ledger_without_a_head),
        ],
    )
    def test_planted(self, tmp_path, campaign, defect):
        kinds = (3,) if campaign is kill_campaigns.trainings else ()
        with pytest.raises(AssertionError):
            in_a_process(campaign, tmp_path, 300, 2, *kinds, defect)
