"""Differentially private optimal transport."""

import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpsinkhorn.generators import Variation
    from dpsinkhorn.release import load
    from dpsinkhorn.training import DPSinkhorn

__all__ = ["DPSinkhorn", "Variation", "load"]

__version__ = version("dpsinkhorn")

# Threads that wait for each other by spinning become twenty times slower when another program takes a core.
# OpenMP reads this once, when torch is imported.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Where public names live. They are imported on first use, so that `dpsinkhorn --help` need not wait for them.
_HOMES = {
    "DPSinkhorn": "dpsinkhorn.training",
    "Variation": "dpsinkhorn.generators",
    "load": "dpsinkhorn.release",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpsinkhorn' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
