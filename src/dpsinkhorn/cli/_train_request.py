"""The options of `dpsinkhorn train`, and what they ask of a training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsinkhorn.cli._output import BadInputError
from dpsinkhorn.cli.data import DataOptions
from dpsinkhorn.cli.privacy import AccountantName, AnyMechanism, JsonOption, parse_rate

if TYPE_CHECKING:
    from dpsinkhorn.release import About
    from dpsinkhorn.training import Request

__all__ = ["TrainOptions", "parse_changes"]

# Options that a run may be resumed with; all others are settled when it begins.
_ANY_TIME = (
    *("data", "out", "device", "resume", "dry_run", "anyway"),
    *("checkpoint_every", "picture_every", "as_json"),
    "reading",  # of which those given are looked at one by one
)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """All options of `dpsinkhorn train`; None where one was not given."""

    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="A name (digits, mnist, ...) or a path: idx folder, .npz, images, CSV, parquet."
        ),
    ] = None
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="The budget; the noise follows from it.")
    ] = None
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the run: new, or with --resume.")] = (
        None
    )
    delta: Annotated[
        float | None,
        typer.Option("--delta", help="Probability added to what epsilon allows; 1e-5 by default."),
    ] = None
    mechanism: Annotated[
        AnyMechanism | None,
        typer.Option("--mechanism", help="Where the privacy barrier stands; default: the recipe's."),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", help="A recipe by name, or a .toml file; default: by what is public of the data."
        ),
    ] = None
    steps: Annotated[int | None, typer.Option("--steps", help="Training steps.")] = None
    sampling_rate: Annotated[
        str | None,
        typer.Option("--sampling-rate", help="Chance of a record to be in a batch: 0.2 or 1/1200."),
    ] = None
    clip: Annotated[float | None, typer.Option("--clip", help="Clipping bound.")] = None
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", help="Noise / sensitivity, in place of --epsilon.")
    ] = None
    generator: Annotated[
        str | None,
        typer.Option("--generator", help="dcgan, biggan, mlp or mixture, in place of the recipe's."),
    ] = None
    reading: DataOptions
    title: Annotated[str | None, typer.Option("--title", help="Of the release: public, in its card.")] = None
    description: Annotated[
        str | None, typer.Option("--description", help="What the release is, in a line for strangers.")
    ] = None
    purpose: Annotated[str | None, typer.Option("--purpose", help="What it is released for.")] = None
    contact: Annotated[str | None, typer.Option("--contact", help="Where questions about it go.")] = None
    legal_basis: Annotated[
        str | None, typer.Option("--legal-basis", help="What allows the use and the release.")
    ] = None
    recipients: Annotated[str | None, typer.Option("--recipients", help="Who it is for.")] = None
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels", help="Labels of generated images: uniform (default), released, or shares as 0.9,0.1."
        ),
    ] = None
    records: Annotated[
        int | None,
        typer.Option(
            "--records", help="Public number of records (persons, with --groups) where theirs is not."
        ),
    ] = None
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Ledger shared by all runs on these data.")
    ] = None
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="Epsilon of all runs on a new --ledger; default: that of this run."),
    ] = None
    accountant: Annotated[
        AccountantName | None, typer.Option("--accountant", help="pld (default) is the tightest.")
    ] = None
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.NAME=VALUE",
            help="Change the recipe: --set optimizer.learning_rate=1e-3.",
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", help="Replay bit for bit. Such a run is NOT for release.")
    ] = None
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Train even where public numbers say that nothing can come of it."),
    ] = False
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; a GPU where there is one.")] = (
        None
    )
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan: nothing is trained, written or spent.")
    ] = False
    checkpoint_every: Annotated[
        float | None,
        typer.Option(
            "--checkpoint-every",
            min=0,
            help="Seconds between checkpoints; by default they take 3 % of the time.",
        ),
    ] = None
    picture_every: Annotated[
        int,
        typer.Option(
            "--picture-every", min=0, help="Steps between pictures of samples, at least; 0 for none."
        ),
    ] = 500
    as_json: JsonOption = False

    def settled(self) -> list[str]:
        """Return the options given that are settled when a run begins, as they are spelled."""
        given = {**vars(self), **self.reading.given()}
        names = [name for name, value in given.items() if value is not None and name not in _ANY_TIME]
        return ["--" + name.replace("_", "-") for name in names]

    def about(self) -> About:
        """Return what is said of the release."""
        from dpsinkhorn.release import About

        return About.of(vars(self))

    def request(self, *, quick: bool) -> Request:
        """Return what is asked of the training."""
        from dpsinkhorn.training import Request

        if self.epsilon is not None and self.noise_multiplier is not None:
            raise BadInputError("give --epsilon or --noise-multiplier, not both: one follows from the other")
        return Request(
            epsilon=self.epsilon,
            delta=self.delta,
            recipe=self.recipe,
            mechanism=self.mechanism,
            settings=self._settings(),
            generator=self.generator,
            labels=_shares(self.labels or "uniform"),
            records=self.records,
            accountant=(self.accountant or AccountantName.pld).value,
            seed=self.seed,
            quick=quick,
            anyway=self.anyway or self.dry_run,
        )

    def _settings(self) -> dict[str, dict[str, Any]]:
        settings = parse_changes(self.set or ())
        options = {
            "steps": self.steps,
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": parse_rate(self.sampling_rate, None, None),
        }
        for name, value in options.items():
            if value is not None and settings.setdefault("privacy", {}).setdefault(name, value) != value:
                raise BadInputError(
                    f"--{name.replace('_', '-')} and --set privacy.{name} are the same: give one"
                )
        return settings


def parse_changes(changes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Settings by section from `SECTION.NAME=VALUE`, the value as in JSON, or a bare word.

    >>> parse_changes(["optimizer.learning_rate=1e-4", "loss.cost=l1l2", "generator.batch_norm=false"])
    {'optimizer': {'learning_rate': 0.0001}, 'loss': {'cost': 'l1l2'}, 'generator': {'batch_norm': False}}
    """
    settings: dict[str, dict[str, Any]] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        section, dot, name = key.strip().partition(".")
        if not (section and dot and name and equals):
            raise BadInputError(
                f"--set takes SECTION.NAME=VALUE, such as loss.regularization=2, not {change!r}"
            )
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text.strip()
        if name in settings.setdefault(section, {}):
            raise BadInputError(f"--set {section}.{name} was given twice")
        settings[section][name] = value
    return settings


def _shares(labels: str) -> str | tuple[float, ...]:
    if labels in ("uniform", "released"):
        return labels
    try:
        return tuple(float(share) for share in labels.split(","))
    except ValueError:
        raise BadInputError(
            f"--labels must be uniform, released, or shares such as 0.9,0.1, not {labels}"
        ) from None
