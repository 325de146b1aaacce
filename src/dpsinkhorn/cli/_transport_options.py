"""Arguments and options that the commands of `dpsinkhorn transport` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "BoundOption",
    "BudgetOption",
    "ColumnsOption",
    "CostName",
    "CostOption",
    "DeltaOption",
    "EpsilonOption",
    "LedgerOption",
    "MethodName",
    "ModeName",
    "PairedOption",
    "PotentialsRegularizationOption",
    "PublicOption",
    "RegularizationOption",
    "SeedOption",
    "SideName",
    "SupportOption",
    "WeightOption",
    "XArgument",
    "YArgument",
]


CostName = Literal["sqeuclidean", "cityblock", "l1l2", "euclidean"]
MethodName = Literal["auto", "direct", "noisy-sinkhorn", "histogram"]
SideName = Literal["x", "y"]
ModeName = Literal["sound", "paper"]

XArgument = Annotated[
    Path, typer.Argument(help="Points, one a row: .npy, .npz, .csv, .tsv or .parquet.", show_default=False)
]
YArgument = Annotated[Path, typer.Argument(help="Points, likewise.", show_default=False)]
EpsilonOption = Annotated[float, typer.Option("--epsilon", help="The privacy to spend.")]
BoundOption = Annotated[
    float,
    typer.Option(
        "--cost-bound",
        help="Public bound, never read off the data; the cost of farther pairs is capped at it.",
    ),
]
DeltaOption = Annotated[
    float | None,
    typer.Option("--delta", help="Probability added to what epsilon allows; the direct method needs none."),
]
CostOption = Annotated[CostName, typer.Option("--cost", help="Cost of a pair; l1l2 is |x-y|² + |x-y|₁.")]
WeightOption = Annotated[float, typer.Option("--l1-weight", help="Weight of the L1 part of l1l2.")]
RegularizationOption = Annotated[
    float | None,
    typer.Option(
        "--regularization",
        help="In units of the cost; 0 is exact transport.  [default: the bound / 20]",
        show_default=False,
    ),
]
PotentialsRegularizationOption = Annotated[
    float | None,
    typer.Option(
        "--regularization",
        help="In units of the cost, above 0; small ones need far more noise.  [default: the bound]",
        show_default=False,
    ),
]
PublicOption = Annotated[SideName | None, typer.Option("--public", help="The side that is not private.")]
PairedOption = Annotated[
    bool, typer.Option("--paired", help="One person owns a row of X and a row of Y: both are protected.")
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--columns", help="Columns of the tables to use, with commas between; may be given several times."
    ),
]
SupportOption = Annotated[
    Path | None, typer.Option("--support", help="Public points to count at, for histogram.")
]
LedgerOption = Annotated[
    Path | None, typer.Option("--ledger", help="Ledger of the data; charged before anything is shown.")
]
BudgetOption = Annotated[
    float | None,
    typer.Option("--budget", help="Epsilon that a new ledger allows in all; by default this command's."),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Replayable noise, for research: not for release.")
]
