"""The errors of the readers. Each message is one line: what is wrong, and what to do."""

from dpsinkhorn.errors import DPSinkhornError

__all__ = ["DataError", "DownloadError"]


class DataError(DPSinkhornError, ValueError):
    """Data that cannot be used as they are."""


class DownloadError(DataError):
    """A data set that could not be had from the network."""
