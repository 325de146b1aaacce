"""What is raised for a config, or the input of a generator, that makes no sense."""

from dpsinkhorn.errors import DPSinkhornError

__all__ = ["GeneratorError"]


class GeneratorError(DPSinkhornError, ValueError):
    """A config, or the input of a generator, that makes no sense: what is wrong and what to do."""
