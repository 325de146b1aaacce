"""`dpsinkhorn transport`: how far apart two private data sets are, under differential privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dpsinkhorn.cli import _transport as shared
from dpsinkhorn.cli._output import check_file, check_plot_path, warn
from dpsinkhorn.cli.privacy import JsonOption

app = typer.Typer(
    help="Private transport: a cost between two data sets, a test, potentials, and error against epsilon.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


CostName = Literal["sqeuclidean", "cityblock", "l1l2", "euclidean"]
MethodName = Literal["auto", "direct", "noisy-sinkhorn", "histogram"]
StatisticName = Literal["auto", "mmd", "exact"]
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
        help="In units of the cost; 0 is exact transport.  [default: 0 up to 2,000 rows a file; beyond, and "
        "with --debiased, the bound / 20]",
        show_default=False,
    ),
]
TradeoffRegularizationOption = Annotated[
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


@app.command("cost")
def cost_command(
    x: XArgument,
    y: YArgument,
    epsilon: EpsilonOption,
    cost_bound: BoundOption,
    delta: DeltaOption = None,
    cost: CostOption = "sqeuclidean",
    l1_weight: WeightOption = 1.0,
    regularization: RegularizationOption = None,
    debiased: Annotated[
        bool, typer.Option("--debiased", help="The Sinkhorn divergence 2W(x,y) - W(x,x) - W(y,y).")
    ] = False,
    method: Annotated[
        MethodName,
        typer.Option("--method", help="auto takes the least predicted error, and never histogram."),
    ] = "auto",
    public: PublicOption = None,
    paired: PairedOption = False,
    support: SupportOption = None,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the interval.")] = 0.95,
    columns: ColumnsOption = None,
    ledger: LedgerOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """The transport cost between two data sets, with an interval.

    Example:

        dpsinkhorn transport cost january.csv february.csv --epsilon 1 --cost-bound 4
    """
    from dpsinkhorn.transport import private_cost

    shared.check_budget(budget, ledger)
    with shared.one_line():
        first, second, grid = shared.read(x, y, support, columns)
        found = private_cost(
            first,
            second,
            epsilon=epsilon,
            cost_bound=cost_bound,
            delta=delta or 0.0,
            cost=shared.cost_of(cost, l1_weight),
            regularization=regularization,
            debiased=debiased,
            method=method,
            public=public,
            paired=paired,
            support=grid,
            confidence=confidence,
            ledger=ledger,
            budget=budget,
            noise=shared.noise_of(seed),
        )
    shared.show_cost(found, as_json, confidence=confidence, paired=paired)


@app.command("test")
def two_sample_command(
    x: XArgument,
    y: YArgument,
    epsilon: EpsilonOption,
    cost_bound: BoundOption,
    level: Annotated[
        float, typer.Option("--level", help="Probability of telling equal distributions apart, at most.")
    ] = 0.05,
    statistic: Annotated[
        StatisticName,
        typer.Option(
            "--statistic", help="mmd is quick at any size; exact, the transport cost, to 1,000 rows."
        ),
    ] = "auto",
    cost: CostOption = "euclidean",
    l1_weight: WeightOption = 1.0,
    permutations: Annotated[
        int, typer.Option("--permutations", help="Relabellings that the data are compared with.")
    ] = 199,
    effect_share: Annotated[
        float, typer.Option("--effect-share", help="Part of epsilon that releases the statistic itself.")
    ] = 0.0,
    paired: Annotated[
        bool, typer.Option("--paired", help="Row i of X and row i of Y are one person's: both are protected.")
    ] = False,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the intervals.")] = 0.95,
    columns: ColumnsOption = None,
    ledger: LedgerOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whether two data sets come from one distribution: a test with a proved level.

    Example:

        dpsinkhorn transport test january.csv february.csv --epsilon 1 --cost-bound 2
    """
    from dpsinkhorn.transport import private_test

    shared.check_budget(budget, ledger)
    with shared.one_line():
        first, second, _ = shared.read(x, y, None, columns)
        found = private_test(
            first,
            second,
            epsilon=epsilon,
            cost_bound=cost_bound,
            level=level,
            statistic=statistic,
            cost=shared.cost_of(cost, l1_weight),
            permutations=permutations,
            effect_share=effect_share,
            paired=paired,
            confidence=confidence,
            ledger=ledger,
            budget=budget,
            noise=shared.noise_of(seed),
        )
    shared.show_test(found, as_json, paired=paired)


@app.command("potentials")
def potentials_command(
    x: XArgument,
    y: YArgument,
    epsilon: EpsilonOption,
    output: Annotated[Path, typer.Option("--output", help="Write phi and psi to FILE.npz.")],
    cost_bound: BoundOption,
    delta: Annotated[float, typer.Option("--delta", help="Probability added to what epsilon allows.")] = 1e-5,
    cost: CostOption = "sqeuclidean",
    l1_weight: WeightOption = 1.0,
    regularization: PotentialsRegularizationOption = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", help="By default those with the least predicted error.")
    ] = None,
    mode: Annotated[
        ModeName, typer.Option("--mode", help="paper: the paper's own noise, which is not a valid guarantee.")
    ] = "sound",
    public: PublicOption = None,
    paired: PairedOption = False,
    columns: ColumnsOption = None,
    ledger: LedgerOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Noisy potentials of entropic transport, by noisy Sinkhorn.

    Where one side is public only its potential is released, with far less noise.

    Example:

        dpsinkhorn transport potentials x.npy grid.npy --public y --epsilon 1 --cost-bound 4 --output out.npz
    """
    from dpsinkhorn.transport import noisy_sinkhorn

    shared.check_budget(budget, ledger)
    # the file is begun before anything is charged
    with shared.one_line(), shared.new_arrays(output) as write:
        first, second, _ = shared.read(x, y, None, columns)
        found = noisy_sinkhorn(
            first,
            second,
            epsilon=epsilon,
            delta=delta,
            cost_bound=cost_bound,
            cost=shared.cost_of(cost, l1_weight),
            regularization=regularization,
            iterations=iterations,
            mode=mode,
            public=public,
            paired=paired,
            ledger=ledger,
            budget=budget,
            noise=shared.noise_of(seed),
        )
        write(phi=found.phi, psi=found.psi)
    shared.show_potentials(found, output, as_json, cost_bound=cost_bound)


@app.command("tradeoff")
def tradeoff_command(
    x: XArgument,
    y: YArgument,
    cost_bound: BoundOption,
    epsilons: Annotated[
        str, typer.Option("--epsilons", help="Values of epsilon, with commas between.")
    ] = "0.1,0.2,0.5,1,2,5,10",
    delta: Annotated[float, typer.Option("--delta", help="Probability added to what epsilon allows.")] = 1e-5,
    cost: CostOption = "sqeuclidean",
    l1_weight: WeightOption = 1.0,
    regularization: TradeoffRegularizationOption = None,
    debiased: Annotated[bool, typer.Option("--debiased", help="Of the Sinkhorn divergence.")] = False,
    public: PublicOption = None,
    support: SupportOption = None,
    runs: Annotated[int, typer.Option("--runs", help="Runs to take the mean error of.")] = 20,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same figures.")] = 0,
    columns: ColumnsOption = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write the figures to FILE.csv.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw them into FILE.png.")] = None,
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
    values = shared.parse_epsilons(epsilons)
    warn("measured errors are not private: they are for the curator alone")
    with shared.one_line():
        first, second, grid = shared.read(x, y, support, columns)
        found = measure_tradeoff(
            first,
            second,
            cost_bound=cost_bound,
            epsilons=values,
            delta=delta,
            cost=shared.cost_of(cost, l1_weight),
            regularization=regularization,
            debiased=debiased,
            public=public,
            support=grid,
            runs=runs,
            seed=seed,
        )
        if output is not None:
            write_tradeoff(found, output)
        if plot is not None:
            draw_tradeoff(found, plot, title=f"{x.name} and {y.name}")
    shared.show_tradeoff(found, as_json, cost_bound=cost_bound)
