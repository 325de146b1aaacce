"""`dpsinkhorn transport`: how far apart two private data sets are, under differential privacy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dpsinkhorn.cli import _transport as shared
from dpsinkhorn.cli._shared import (
    BadInputError,
    JsonOption,
    check_file,
    check_plot_path,
    group,
    parse_numbers,
    takes_options,
    warn,
)

app = group("Private transport: a cost between two data sets, a test, potentials, and error against epsilon.")

CostName = Literal["sqeuclidean", "cityblock", "l1l2", "euclidean"]

XArgument = Annotated[
    Path, typer.Argument(help="Points, one a row: .npy, .npz, .csv, .tsv or .parquet.", show_default=False)
]
YArgument = Annotated[Path, typer.Argument(help="Points, likewise.", show_default=False)]
EpsilonOption = Annotated[float, "The privacy to spend."]
BoundOption = Annotated[
    float, "Public bound, never read off the data; the cost of farther pairs is capped at it."
]
DeltaOption = Annotated[float, "Probability added to what epsilon allows."]
CostOption = Annotated[CostName, "Cost of a pair; l1l2 is |x-y|² + |x-y|₁."]
WeightOption = Annotated[float, "Weight of the L1 part of l1l2."]
PublicOption = Annotated[Literal["x", "y"] | None, "The side that is not private."]
PairedOption = Annotated[bool, "One person owns a row of X and a row of Y: both are protected."]
ColumnsOption = Annotated[
    list[str] | None, "Columns of the tables to use, with commas between; may be given several times."
]
SupportOption = Annotated[Path | None, "Public points to count at, for histogram and linear-program."]
CenterOption = Annotated[
    str | None,
    "Public point amid all points, numbers with commas between, for sliced methods: half the noise.",
]


@dataclass(frozen=True)
class ReleaseOptions:
    """What the commands that spend privacy share: how files are read, and where it is charged."""

    columns: ColumnsOption = None
    ledger: Annotated[Path | None, "Ledger of the data; charged before anything is shown."] = None
    budget: Annotated[float | None, "Epsilon that a new ledger allows in all; by default this command's."] = (
        None
    )
    seed: Annotated[int | None, "Replayable noise, for research: not for release."] = None
    as_json: JsonOption = False

    def __post_init__(self) -> None:
        if self.budget is not None and self.ledger is None:
            raise BadInputError("--budget is that of a new ledger; name it by --ledger")

    def keywords(self) -> dict[str, Any]:
        """Return what functions of `dpsinkhorn.transport` take."""
        from dpsinkhorn.privacy import SeededNoise

        noise = None if self.seed is None else SeededNoise(self.seed)
        return {"ledger": self.ledger, "budget": self.budget, "noise": noise}


@dataclass(frozen=True)
class CostOptions:
    epsilon: EpsilonOption
    cost_bound: BoundOption
    delta: Annotated[
        float | None, "Probability added to what epsilon allows; the direct method needs none."
    ] = None
    cost: CostOption = "sqeuclidean"
    l1_weight: WeightOption = 1.0
    regularization: Annotated[
        float | None,
        typer.Option(
            help="In units of the cost; 0 is exact transport.  [default: 0 up to 2,000 rows a file; beyond, "
            "and with --debiased, the bound / 20]",
            show_default=False,
        ),
    ] = None
    debiased: Annotated[bool, "The Sinkhorn divergence 2W(x,y) - W(x,x) - W(y,y)."] = False
    method: Annotated[
        Literal[
            "auto", "direct", "noisy-sinkhorn", "histogram", "linear-program", "sliced", "smoothed-sliced"
        ],
        "auto takes direct or noisy-sinkhorn, by the predicted error; sliced ones take --cost euclidean.",
    ] = "auto"
    public: PublicOption = None
    paired: PairedOption = False
    support: SupportOption = None
    center: CenterOption = None
    confidence: Annotated[float, "Of the intervals."] = 0.95


@app.command("cost")
@takes_options()
def cost_command(x: XArgument, y: YArgument, asked: CostOptions, release: ReleaseOptions) -> None:
    """The transport cost between two data sets, with an interval.

    Example:

        dpsinkhorn transport cost january.csv february.csv --epsilon 1 --cost-bound 4

        dpsinkhorn transport cost x.npy y.npy --epsilon 1 --cost-bound 2 --cost euclidean --method sliced
    """
    from dpsinkhorn.transport import private_cost

    with shared.one_line():
        first, second, support = shared.read(x, y, asked.support, release.columns)
        options = shared.keywords(asked, delta=asked.delta or 0.0, support=support)
        found = private_cost(first, second, **options, **release.keywords())
    shared.show_cost(found, release.as_json, confidence=asked.confidence, paired=asked.paired)


@dataclass(frozen=True)
class TestOptions:
    epsilon: EpsilonOption
    cost_bound: BoundOption
    level: Annotated[float, "Probability of telling equal distributions apart, at most."] = 0.05
    statistic: Annotated[
        Literal["auto", "mmd", "sliced", "exact"],
        "mmd and sliced are quick at any size; exact, the transport cost, to 1,000 rows.",
    ] = "auto"
    cost: CostOption = "euclidean"
    l1_weight: WeightOption = 1.0
    permutations: Annotated[int, "Relabellings that the data are compared with."] = 199
    effect_share: Annotated[float, "Part of epsilon that releases the statistic itself."] = 0.0
    paired: Annotated[bool, "Row i of X and row i of Y are one person's: both are protected."] = False
    center: CenterOption = None
    confidence: Annotated[float, "Of the intervals."] = 0.95


@app.command("test")
@takes_options()
def two_sample_command(x: XArgument, y: YArgument, asked: TestOptions, release: ReleaseOptions) -> None:
    """Whether two data sets come from one distribution: a test with a proved level.

    Example:

        dpsinkhorn transport test january.csv february.csv --epsilon 1 --cost-bound 2
    """
    from dpsinkhorn.transport import private_test

    with shared.one_line():
        first, second, _ = shared.read(x, y, None, release.columns)
        found = private_test(first, second, **shared.keywords(asked), **release.keywords())
    shared.show_test(found, release.as_json, paired=asked.paired)


@dataclass(frozen=True)
class PotentialsOptions:
    epsilon: EpsilonOption
    output: Annotated[Path, "Write phi and psi to FILE.npz."]
    cost_bound: BoundOption
    delta: DeltaOption = 1e-5
    cost: CostOption = "sqeuclidean"
    l1_weight: WeightOption = 1.0
    regularization: Annotated[
        float | None,
        typer.Option(
            help="In units of the cost, above 0; small ones need far more noise.  [default: the bound]",
            show_default=False,
        ),
    ] = None
    iterations: Annotated[int | None, "By default those with the least predicted error."] = None
    mode: Annotated[
        Literal["sound", "paper"], "paper: the paper's own noise, which is not a valid guarantee."
    ] = "sound"
    public: PublicOption = None
    paired: PairedOption = False


@app.command("potentials")
@takes_options()
def potentials_command(x: XArgument, y: YArgument, asked: PotentialsOptions, release: ReleaseOptions) -> None:
    """Noisy potentials of entropic transport, by noisy Sinkhorn.

    Where one side is public only its potential is released, with far less noise.

    Example:

        dpsinkhorn transport potentials x.npy grid.npy --public y --epsilon 1 --cost-bound 4 --output out.npz
    """
    from dpsinkhorn.transport import noisy_sinkhorn

    # the file is begun before anything is charged
    with shared.one_line(), shared.new_arrays(asked.output) as write:
        first, second, _ = shared.read(x, y, None, release.columns)
        found = noisy_sinkhorn(first, second, **shared.keywords(asked), **release.keywords())
        write(phi=found.phi, psi=found.psi)
    shared.show_potentials(found, asked.output, release.as_json, cost_bound=asked.cost_bound)


@dataclass(frozen=True)
class TradeoffOptions:
    cost_bound: BoundOption
    epsilons: Annotated[str, "Values of epsilon, with commas between."] = "0.1,0.2,0.5,1,2,5,10"
    delta: DeltaOption = 1e-5
    cost: CostOption = "sqeuclidean"
    l1_weight: WeightOption = 1.0
    regularization: Annotated[
        float | None,
        typer.Option(
            help="In units of the cost; 0 is exact transport.  [default: the bound / 20]", show_default=False
        ),
    ] = None
    debiased: Annotated[bool, "Of the Sinkhorn divergence."] = False
    public: PublicOption = None
    support: SupportOption = None
    center: CenterOption = None
    runs: Annotated[int, "Runs to take the mean error of."] = 20
    seed: Annotated[int, "The same seed gives the same figures."] = 0


@app.command("tradeoff")
@takes_options()
def tradeoff_command(
    x: XArgument,
    y: YArgument,
    asked: TradeoffOptions,
    columns: ColumnsOption = None,
    output: Annotated[Path | None, "Write the figures to FILE.csv."] = None,
    plot: Annotated[Path | None, "Draw them into FILE.png."] = None,
    as_json: JsonOption = False,
) -> None:
    """Error against epsilon, for every method, measured on these data and predicted. Not private.

    Example:

        dpsinkhorn transport tradeoff x.npy y.npy --cost-bound 4 --plot tradeoff.png --output tradeoff.csv
    """
    from dpsinkhorn.transport import draw_tradeoff, measure_tradeoff, write_tradeoff

    check_plot_path(plot)
    if output is not None:
        check_file(output, ".csv", "--output")
    values = parse_numbers(asked.epsilons, "--epsilons")
    warn("measured errors are not private: they are for the curator alone")
    with shared.one_line():
        first, second, support = shared.read(x, y, asked.support, columns)
        options = shared.keywords(asked, epsilons=values, support=support)
        found = measure_tradeoff(first, second, **options)
        if output is not None:
            write_tradeoff(found, output)
        if plot is not None:
            draw_tradeoff(found, plot, title=f"{x.name} and {y.name}")
    shared.show_tradeoff(found, as_json, cost_bound=asked.cost_bound)
