"""The tables and figures of the DP-Sinkhorn papers, done again: their numbers beside ours and a proved ε."""

from dpsinkhorn.reproduction.errors import ReproductionError
from dpsinkhorn.reproduction.reproduce import Reproduction, reproduce
from dpsinkhorn.reproduction.rows import ITEMS, VERSIONS, Row, rows_of
from dpsinkhorn.reproduction.scales import FULL, QUICK, SCALES, Scale
from dpsinkhorn.reproduction.tables import NOT_A_GUARANTEE, Line, to_tables

__all__ = [
    "FULL",
    "ITEMS",
    "NOT_A_GUARANTEE",
    "QUICK",
    "SCALES",
    "VERSIONS",
    "Line",
    "Reproduction",
    "ReproductionError",
    "Row",
    "Scale",
    "reproduce",
    "rows_of",
    "to_tables",
]
