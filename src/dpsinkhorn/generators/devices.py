"""Where networks run."""

from __future__ import annotations

import torch

from dpsinkhorn.generators.errors import GeneratorError

__all__ = ["choose_device"]


def choose_device(
    device: torch.device | str | None = None, error: type[Exception] = GeneratorError
) -> torch.device:
    """Return the device named, by default a GPU where there is one; raise `error` where there is none such.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found).cpu()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise error(f"there is no device {device!s} here; name cpu or cuda, or leave it out")
    return found
