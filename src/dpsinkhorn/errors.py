"""What all errors of the package have in common."""

__all__ = ["DPSinkhornError"]


class DPSinkhornError(Exception):
    """What is wrong and what to do, in one line; the command line prints it as it is."""
