"""`dpsinkhorn transport`: how far apart two private data sets are, under differential privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsinkhorn.cli._output import check_file, check_plot_path
from dpsinkhorn.cli._transport_input import (
    check_budget,
    cost_of,
    new_arrays,
    noise_of,
    one_line,
    parse_epsilons,
    read,
)
from dpsinkhorn.cli._transport_options import (
    BoundOption,
    BudgetOption,
    ColumnsOption,
    CostOption,
    DeltaOption,
    EpsilonOption,
    LedgerOption,
    MethodName,
    ModeName,
    PairedOption,
    PotentialsRegularizationOption,
    PublicOption,
    RegularizationOption,
    SeedOption,
    SupportOption,
    WeightOption,
    XArgument,
    YArgument,
)
from dpsinkhorn.cli._transport_output import show_cost, show_potentials, show_tradeoff, warn_not_private
from dpsinkhorn.cli.privacy import JsonOption

app = typer.Typer(
    help="Private transport: a cost between two data sets, potentials, and error against epsilon.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


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

    check_budget(budget, ledger)
    with one_line():
        first, second, grid = read(x, y, support, columns)
        found = private_cost(
            first,
            second,
            epsilon=epsilon,
            cost_bound=cost_bound,
            delta=delta or 0.0,
            cost=cost_of(cost, l1_weight),
            regularization=regularization,
            debiased=debiased,
            method=method,
            public=public,
            paired=paired,
            support=grid,
            confidence=confidence,
            ledger=ledger,
            budget=budget,
            noise=noise_of(seed),
        )
    show_cost(found, as_json, confidence=confidence, paired=paired)


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

    check_budget(budget, ledger)
    with one_line(), new_arrays(output) as write:  # the file is begun before anything is charged
        first, second, _ = read(x, y, None, columns)
        found = noisy_sinkhorn(
            first,
            second,
            epsilon=epsilon,
            delta=delta,
            cost_bound=cost_bound,
            cost=cost_of(cost, l1_weight),
            regularization=regularization,
            iterations=iterations,
            mode=mode,
            public=public,
            paired=paired,
            ledger=ledger,
            budget=budget,
            noise=noise_of(seed),
        )
        write(phi=found.phi, psi=found.psi)
    show_potentials(found, output, as_json, cost_bound=cost_bound)


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
    regularization: RegularizationOption = None,
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
    values = parse_epsilons(epsilons)
    warn_not_private()
    with one_line():
        first, second, grid = read(x, y, support, columns)
        found = measure_tradeoff(
            first,
            second,
            cost_bound=cost_bound,
            epsilons=values,
            delta=delta,
            cost=cost_of(cost, l1_weight),
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
    show_tradeoff(found, as_json, cost_bound=cost_bound)
