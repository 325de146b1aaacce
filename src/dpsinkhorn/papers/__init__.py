"""The tables and figures of the DP-Sinkhorn papers, done again: their numbers beside ours and a proved ε."""

from dpsinkhorn.errors import ReproductionError
from dpsinkhorn.papers.comparison import Compared, Comparison, LeftOut, compare
from dpsinkhorn.papers.reproduce import Reproduction, reproduce
from dpsinkhorn.papers.rows import ITEMS, VERSIONS, Row, rows_of
from dpsinkhorn.papers.scales import FULL, QUICK, SCALES, Scale
from dpsinkhorn.papers.tables import NOT_A_GUARANTEE, Line, to_tables

__all__ = [
    "FULL",
    "ITEMS",
    "NOT_A_GUARANTEE",
    "QUICK",
    "SCALES",
    "VERSIONS",
    "Compared",
    "Comparison",
    "LeftOut",
    "Line",
    "Reproduction",
    "ReproductionError",
    "Row",
    "Scale",
    "compare",
    "reproduce",
    "rows_of",
    "to_tables",
]
