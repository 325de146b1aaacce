"""The error of everything that has to do with releases."""

from dpsinkhorn.errors import DPSinkhornError

__all__ = ["ReleaseError"]


class ReleaseError(DPSinkhornError, ValueError):
    """A release, or a request to one, that cannot be served: what is wrong and what to do, in one line."""
