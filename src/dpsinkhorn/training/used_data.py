"""Which data were trained on before, so that runs on the same data without a common ledger are noticed.

The curator's own note of it is a file in the user's state folder that nobody else may read. A line has a
digest of a run's images, keyed with a random number of this file alone. The digest depends on private data:
it is never written into a run folder, a release or a report.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from dpsinkhorn.data import Dataset
from dpsinkhorn.files import write_new
from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.training.plan import Plan

_SWITCH = "DPSINKHORN_USED_DATA"


def note_use(dataset: Dataset, plan: Plan, run: str | None, ledger: Path | None) -> str | None:
    """Note that a run uses these data, and return a warning where another one did on another ledger.

    Without a `run` nothing is noted. Runs that are not for release, seeded or without privacy, are left out.
    Where the note cannot be read or written, the warning says so.
    """
    path = _note_path()
    if path is None or not plan.private or plan.seed is not None:
        return None
    try:
        key, uses = _read(path)
        digest, place = dataset.digest(key), None if ledger is None else str(ledger.resolve())
        same = [use for use in uses if use["digest"] == digest]
        if run is not None and run not in {use["run"] for use in same}:
            line = {
                "digest": digest,
                "run": run,
                "ledger": place,
                "epsilon": plan.epsilon,
                "delta": plan.delta,
            }
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return (
            f"whether these data were trained on before is not known, since {path} cannot be used "
            f"({' '.join(str(error).split())}); mend or remove it, or set {_SWITCH} to another file or to off"
        )
    return _warning(
        [use for use in same if use["run"] != run and (place is None or use["ledger"] != place)], plan
    )


def _warning(uses: list[dict[str, Any]], plan: Plan) -> str | None:
    if not uses:
        return None
    more = f" and {len(uses) - 1} more" if len(uses) > 1 else ""
    epsilon, delta = (sum(use[name] for use in uses) for name in ("epsilon", "delta"))
    return (
        f"these data were trained on before ({uses[-1]['run']}, epsilon {format_epsilon(uses[-1]['epsilon'])}"
        f"{more}), on another ledger: together with this run that costs up to epsilon "
        f"{format_epsilon(epsilon + plan.epsilon)} at delta {delta + plan.delta:g}, and no release says so. "
        "Give all runs on the same data one ledger (--ledger)"
    )


def _note_path() -> Path | None:
    """Return where uses are noted: the file that DPSINKHORN_USED_DATA names, or none where it is `off`."""
    stated = os.environ.get(_SWITCH)
    if stated:
        return None if stated == "off" else Path(stated).expanduser()
    return platformdirs.user_state_path("dpsinkhorn", appauthor=False) / "used-data.jsonl"


def _read(path: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the key and all uses, but for torn lines; begin the file where there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):  # another process was first
            write_new(
                path, json.dumps({"version": 1, "key": os.urandom(32).hex()}).encode() + b"\n", mode=0o600
            )
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    uses = []
    for line in lines:
        with suppress(ValueError):
            uses.append(json.loads(line))
    return bytes.fromhex(json.loads(first)["key"]), uses
