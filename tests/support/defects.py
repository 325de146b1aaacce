"""Planting defects in the real code, and asking the suite's own tests whether they notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def wrap(patch: pytest.MonkeyPatch, owner: object, name: str, change: Callable[..., object]) -> None:
    """Put `change` in the place of a function, for the length of a test; it is given the real one first."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda *given, **options: change(real, *given, **options))


def charge_afterwards(self, step, wanted):
    """`Account.reserve`, but steps are granted at once, and charged when the next are asked for."""
    owed = getattr(self, "owed", 0)
    if owed:
        self.ledger.spend(self._charge, run=self.run, steps=owed)
    self.owed = self._affordable(wanted)
    self._covered = step + self.owed
    return self.owed


_ASSERTED = ("call: assert ", "call: AssertionError", "call: Failed: DID NOT RAISE")  # how a test fails


class _Outcomes:
    """A plugin that notes what became of each test."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.reasons: list[str] = []
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
            self.reasons.append(f"{report.when}: {report.longrepr.reprcrash.message}")
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def failing(*nodes: str) -> list[str]:
    """Which of these tests fail, run here and now, in this process, on the code as it stands.

    Every name must match at least one test, and all must fail by an assertion of theirs: a defect that makes
    the code fall over would be noticed by anyone.
    """
    outcomes = _Outcomes()
    names = [str(ROOT / node) for node in nodes]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:terminalreporter", f"--rootdir={ROOT}"]
    status = pytest.main([*options, "-c", str(ROOT / "pyproject.toml"), *names], plugins=[outcomes])
    assert status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"{nodes}: {status!r}"
    for node in nodes:
        assert any(name.startswith(node) for name in outcomes.failed + outcomes.passed), node
    for reason in outcomes.reasons:
        assert reason.startswith(_ASSERTED), reason
    return sorted(set(outcomes.failed))
