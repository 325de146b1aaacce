"""Differentially private optimal transport."""

from importlib.metadata import version

__version__ = version("dpsinkhorn")
