"""`dpsinkhorn transport`: how far apart two private data sets are, under differential privacy."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsinkhorn.cli._output import BadInputError, check_plot_path, print_json, print_table, warn

if TYPE_CHECKING:  # torch is slow to import: `--help` does without
    from dpsinkhorn.ot import Cost
    from dpsinkhorn.privacy import Ledger
    from dpsinkhorn.privacy.noise import NoiseSource

app = typer.Typer(
    help="Private transport: a cost between two data sets, potentials, and error against epsilon.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_NOT_PRIVATE = "measured errors are not private: they are for the curator alone"
_SEEDED = "made with a seed, which whoever knows it can undo: not for release"


class CostName(str, enum.Enum):
    sqeuclidean = "sqeuclidean"
    cityblock = "cityblock"
    l1l2 = "l1l2"


class MethodName(str, enum.Enum):
    auto = "auto"
    direct = "direct"
    noisy_sinkhorn = "noisy-sinkhorn"
    histogram = "histogram"


class SideName(str, enum.Enum):
    x = "x"
    y = "y"


class ModeName(str, enum.Enum):
    sound = "sound"
    paper = "paper"


XArgument = Annotated[
    Path, typer.Argument(help="Points, one a row: .npy, .npz, .csv, .tsv or .parquet.", show_default=False)
]
YArgument = Annotated[Path, typer.Argument(help="Points, likewise.", show_default=False)]
EpsilonOption = Annotated[float, typer.Option("--epsilon", help="The privacy to spend.")]
BoundOption = Annotated[
    float | None,
    typer.Option("--cost-bound", help="Public bound; the cost of farther pairs is capped at it. Required."),
]
DeltaOption = Annotated[
    float | None,
    typer.Option("--delta", help="Chance that the guarantee fails; the direct method needs none."),
]
CostOption = Annotated[CostName, typer.Option("--cost", help="Cost of a pair; l1l2 is |x-y|² + |x-y|₁.")]
WeightOption = Annotated[float, typer.Option("--l1-weight", help="Weight of the L1 part of l1l2.")]
RegularizationOption = Annotated[
    float | None,
    typer.Option("--regularization", help="In units of the cost; 0 is exact transport.", show_default=False),
]
PublicOption = Annotated[SideName | None, typer.Option("--public", help="The side that is not private.")]
PairedOption = Annotated[
    bool, typer.Option("--paired", help="One person owns a row of X and a row of Y: both are protected.")
]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", help="Columns of the tables to use, with commas between.")
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@app.command("cost")
def cost_command(
    x: XArgument,
    y: YArgument,
    epsilon: EpsilonOption,
    cost_bound: BoundOption = None,
    delta: DeltaOption = None,
    cost: CostOption = CostName.sqeuclidean,
    l1_weight: WeightOption = 1.0,
    regularization: RegularizationOption = None,
    debiased: Annotated[
        bool, typer.Option("--debiased", help="The Sinkhorn divergence 2W(x,y) - W(x,x) - W(y,y).")
    ] = False,
    method: Annotated[
        MethodName, typer.Option("--method", help="auto takes the least predicted error.")
    ] = MethodName.auto,
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

    bound = _bound(cost_bound)
    with _one_line():
        first, second = _read(x, columns), _read(y, columns)
        points = None if support is None else _read(support, columns)
        with _opened(ledger, epsilon, budget, delta) as book:
            found = private_cost(
                first,
                second,
                epsilon=epsilon,
                cost_bound=bound,
                delta=delta or 0.0,
                cost=_cost(cost, l1_weight),
                regularization=regularization,
                debiased=debiased,
                method=method.value,
                public=None if public is None else public.value,
                paired=paired,
                support=points,
                confidence=confidence,
                ledger=book,
                noise=_noise(seed),
            )
    if found.seeded:
        warn(_SEEDED)
    if as_json:
        print_json(found.to_json())
        return
    low, high = found.interval
    rows = [
        ("cost", f"{found.cost:.6g}"),
        (f"interval, {100 * confidence:g} %", f"{low:.6g} to {high:.6g}"),
        ("epsilon", f"{found.epsilon:g}"),
        ("delta", f"{found.delta:g}"),
        ("method", found.method),
        ("predicted error", f"{found.predicted_error:.3g}"),
        ("regularization", f"{found.regularization:g}" if found.regularization else "0 (exact)"),
        ("adjacency", found.adjacency),
    ]
    told = [
        f"Method: {found.reason}.",
        f"Protected: each {'person, on both sides' if paired else 'row'}; numbers of rows count as public.",
    ]
    print_table("private transport cost", rows, told)


@app.command("potentials")
def potentials_command(
    x: XArgument,
    y: YArgument,
    epsilon: EpsilonOption,
    output: Annotated[Path, typer.Option("--output", help="Write phi and psi to FILE.npz.")],
    cost_bound: BoundOption = None,
    delta: Annotated[float, typer.Option("--delta", help="Chance that the guarantee fails.")] = 1e-5,
    cost: CostOption = CostName.sqeuclidean,
    l1_weight: WeightOption = 1.0,
    regularization: RegularizationOption = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", help="By default those with the least predicted error.")
    ] = None,
    mode: Annotated[
        ModeName, typer.Option("--mode", help="paper: the paper's own noise, which is not a valid guarantee.")
    ] = ModeName.sound,
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
    import numpy as np

    from dpsinkhorn.transport import noisy_sinkhorn

    bound = _bound(cost_bound)
    _check_file(output, ".npz", "--output")
    if output.exists():  # a release that was paid for
        raise BadInputError(f"--output {output} exists already; name another")
    with _one_line():
        first, second = _read(x, columns), _read(y, columns)
        with _opened(ledger, epsilon, budget, delta) as book:
            found = noisy_sinkhorn(
                first,
                second,
                epsilon=epsilon,
                delta=delta,
                cost_bound=bound,
                cost=_cost(cost, l1_weight),
                regularization=regularization,
                iterations=iterations,
                mode=mode.value,
                public=None if public is None else public.value,
                paired=paired,
                ledger=book,
                noise=_noise(seed),
            )
        released: dict[str, Any] = {"phi": found.phi, "psi": found.psi}
        np.savez(output, **{name: array for name, array in released.items() if array is not None})
    if found.seeded:
        warn(_SEEDED)
    if not found.private:
        warn("mode paper: this epsilon is the paper's own count, which is not a valid guarantee")
    result = {
        "cost": found.cost,
        "cost_noise_std": found.cost_std,
        "noise_std": list(found.noise_std),
        "iterations": found.iterations,
        "regularization": found.regularization,
        "epsilon": found.epsilon,
        "delta": found.delta,
        "method": f"noisy-sinkhorn ({found.mode})",
        "guaranteed": found.private,
        "adjacency": "replace-one",
        "seeded": found.seeded,
        "output": str(output),
    }
    if as_json:
        print_json(result)
        return
    shown = ("cost", "iterations", "regularization", "epsilon", "delta", "method", "adjacency")
    rows = [(name, f"{result[name]:.6g}" if name == "cost" else str(result[name])) for name in shown]
    rows.append(("noise per coordinate", f"{found.noise_std[-1]:.4g}"))
    print_table("private potentials", rows, [f"Written: {output}"])


@app.command("tradeoff")
def tradeoff_command(
    x: XArgument,
    y: YArgument,
    cost_bound: BoundOption = None,
    epsilons: Annotated[
        str, typer.Option("--epsilons", help="Values of epsilon, with commas between.")
    ] = "0.1,0.2,0.5,1,2,5,10",
    delta: Annotated[float, typer.Option("--delta", help="Chance that a guarantee fails.")] = 1e-5,
    cost: CostOption = CostName.sqeuclidean,
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

    bound = _bound(cost_bound)
    check_plot_path(plot)
    if output is not None:
        _check_file(output, ".csv", "--output")
    try:
        values = [float(part) for part in epsilons.split(",")]
    except ValueError as error:
        raise BadInputError(f"--epsilons must be numbers with commas between, not {epsilons}") from error
    warn(_NOT_PRIVATE)
    with _one_line():
        found = measure_tradeoff(
            _read(x, columns),
            _read(y, columns),
            cost_bound=bound,
            epsilons=values,
            delta=delta,
            cost=_cost(cost, l1_weight),
            regularization=regularization,
            debiased=debiased,
            public=None if public is None else public.value,
            support=None if support is None else _read(support, columns),
            runs=runs,
            seed=seed,
        )
        if output is not None:
            write_tradeoff(found, output)
        if plot is not None:
            draw_tradeoff(found, plot, title=f"{x.name} and {y.name}")
    if as_json:
        rows = [vars(row) for row in found.rows]
        print_json({"rows": rows, "worst_choice": found.worst_choice(), "private": False})
        return
    table = [
        (
            f"{row.method}, epsilon {row.epsilon:g}",
            f"{row.measured_error:.3g} (predicted {row.predicted_error:.3g})" + (" *" if row.chosen else ""),
        )
        for row in found.rows
    ]
    told = [
        "* the method that auto takes.",
        f"At worst its error is {found.worst_choice():.2f} times the least measured one.",
    ]
    print_table("mean absolute error", table, told)


def _bound(value: float | None) -> float:
    if value is None:
        raise BadInputError(
            "give --cost-bound, a public bound on the cost of a pair; it must not be read off the data"
        )
    return value


def _read(path: Path, columns: str | None) -> Any:
    from dpsinkhorn.transport import read_points

    return read_points(path, [] if columns is None else [name.strip() for name in columns.split(",")])


def _cost(name: CostName, l1_weight: float) -> Cost:
    from dpsinkhorn.ot import L1L2, Cityblock, SquaredEuclidean

    if not 0 <= l1_weight < float("inf"):
        raise BadInputError(f"--l1-weight must be a number from 0 upwards, not {l1_weight}")
    costs: dict[CostName, Cost] = {
        CostName.sqeuclidean: SquaredEuclidean(),
        CostName.cityblock: Cityblock(),
        CostName.l1l2: L1L2(l1_weight),
    }
    return costs[name]


def _noise(seed: int | None) -> NoiseSource | None:
    from dpsinkhorn.privacy import SeededNoise

    return None if seed is None else SeededNoise(seed)


def _check_file(path: Path, suffix: str, option: str) -> None:
    if path.suffix.lower() != suffix:
        raise BadInputError(f"{option} must end in {suffix}, not {path.name}")
    if not path.parent.is_dir():
        raise BadInputError(f"the folder of {option} {path} does not exist; create it first")
    if path.is_dir():
        raise BadInputError(f"{option} {path} is a folder; name a file")


@contextmanager
def _opened(
    path: Path | None, epsilon: float, budget: float | None, delta: float | None
) -> Iterator[Ledger | None]:
    """The ledger, or a new one; None where none was named."""
    from dpsinkhorn import privacy

    if path is None:
        if budget is not None:
            raise BadInputError("--budget is that of a new ledger; name it by --ledger")
        yield None
        return
    if path.is_dir():
        raise BadInputError(f"the ledger {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise BadInputError(f"the folder of the ledger {path} does not exist; create it first")
    begin = None
    if not path.exists():
        allowed = epsilon if budget is None else budget
        if not allowed > 0:
            raise BadInputError(f"a budget must be a positive number, not {allowed:g}")
        if not 0 <= (delta or 0.0) < 1:
            raise BadInputError(f"--delta must be from 0 to below 1, not {delta:g}")
        begin = privacy.Budget(allowed, delta or 0.0)
    elif budget is not None:
        raise BadInputError(f"the ledger {path} has its budget already; leave out --budget")
    else:
        privacy.read_ledger(path)  # before it is locked, which would leave a file beside what is no ledger
    with privacy.Ledger.open(path, privacy.epsilon, budget=begin) as ledger:
        try:
            yield ledger
        except BaseException:
            if begin is not None and not ledger.statement().spends:  # bad input leaves nothing behind
                for ending in ("", ".head", ".lock"):
                    path.with_name(path.name + ending).unlink(missing_ok=True)
            raise


@contextmanager
def _one_line() -> Iterator[None]:
    """What is wrong with the input, the budget or a file, as one line."""
    from dpsinkhorn.privacy import BudgetExceededError
    from dpsinkhorn.privacy.journal import JournalDamagedError, JournalLockedError
    from dpsinkhorn.transport import TransportError

    try:
        yield
    except (TransportError, BudgetExceededError, JournalDamagedError, JournalLockedError) as error:
        raise BadInputError(str(error)) from error
    except MemoryError as error:
        raise BadInputError("these points do not fit into memory; give fewer rows") from error
    except OSError as error:
        raise BadInputError(f"cannot read or write: {error.strerror or error}") from error
