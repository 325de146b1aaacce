"""Where the privacy barrier stands: one module and one class for each mechanism, and the list of them.

Every module beside this one is a mechanism, of the same name. Command line, recipes, report, audits and the
contract suite read the list, so that a new mechanism is one module, one recipe and one proof.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is slow to import, and `--help` needs names alone
    from dpsinkhorn.mechanisms.shared.base import TrainingMechanism

__all__ = ["NOT_PRIVATE", "find_mechanism", "mechanism_names", "private_names", "register"]

NOT_PRIVATE = "none"
"""The name of the mechanism without privacy."""
_registered: dict[str, type[TrainingMechanism]] = {}


def mechanism_names() -> tuple[str, ...]:
    """Return the names of all mechanisms, training without privacy included.

    >>> {"record", "moments", "batch", "image", "parameter", "none"} <= set(mechanism_names())
    True
    """
    ours = (module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
    return tuple(sorted({*ours, *_registered}))


def private_names() -> tuple[str, ...]:
    """Return the names of the mechanisms that protect anything."""
    return tuple(name for name in mechanism_names() if name != NOT_PRIVATE)


def find_mechanism(name: str) -> type[TrainingMechanism]:
    """Return the mechanism of a name.

    >>> find_mechanism("record").recipe
    'grey'
    """
    if name in _registered:
        return _registered[name]
    if name not in mechanism_names():
        raise ValueError(f"mechanism must be one of {', '.join(mechanism_names())}, not {name!r}")
    for each in vars(importlib.import_module(f"{__name__}.{name}")).values():
        if isinstance(each, type) and getattr(each, "name", None) == name:
            return each
    raise ValueError(f"mechanisms/{name}.py has no class of the name {name}: set its name to the module's")


def register(mechanism: type[TrainingMechanism]) -> type[TrainingMechanism]:
    """Add a mechanism that is defined elsewhere; a class decorator."""
    if mechanism.name in mechanism_names() and mechanism.name not in _registered:
        raise ValueError(f"there is a mechanism {mechanism.name} already; choose another name")
    _registered[mechanism.name] = mechanism
    return mechanism
