"""The error of everything that has to do with releases."""

__all__ = ["ReleaseError"]


class ReleaseError(ValueError):
    """A release, or a request to one, that cannot be served: what is wrong and what to do, in one line."""
