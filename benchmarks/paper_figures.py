"""The papers' private figures: train a paper recipe, by the authors' teacher or a better one, and measure it.

    python benchmarks/paper_figures.py --check --data mnist=DIR              # first: right, and how fast
    python benchmarks/paper_figures.py --data mnist=DIR fashion-mnist=DIR --seeds 0,1,2 --minutes 9 --out OUT
    python benchmarks/paper_figures.py --data mnist=DIR --teachers classes --set optimizer.ema=0.999 --out OUT

DIR is a folder of idx files, or whatever else `--data` of `dpsinkhorn train` takes. Every (data, teacher,
seed, protocol, classifier) ends in one JSON line, on the screen and in OUT/figures.jsonl. What is there
already is not done again, and a training goes on where it was, so the same command may be given until nothing
is left; `--minutes` ends it at the next block of steps, and begins no classifier after that. `--holdout`
measures on a part of the training split that is not trained on: choose by that. Runs are seeded: they are not
releases.

Protocols: `quick` are the classifiers of `benchmarks/classifiers.py`, `paper` and `authors` those of
`dpsinkhorn evaluate --protocol`; each of `--sets` sets of synthetic images is drawn afresh. ε is the proved
one. With `--check`, for the recipe of each version and every teacher: how far a step by kernels is from the
same step one by one (relative to its norm, before clipping), whether captured steps end at the bits of those
that are not, and the milliseconds of a step at n = 50 to 1,000, with n records on average.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from classifiers import accuracies
from dpsinkhorn import load
from dpsinkhorn.cli.train import parse_changes
from dpsinkhorn.data import Dataset
from dpsinkhorn.evaluation import downstream_utility, draw_images, find_protocol, images_of
from dpsinkhorn.mechanisms.shared.base import GradientMechanism, Sample
from dpsinkhorn.mechanisms.shared.fixed import Setting
from dpsinkhorn.privacy import SeededNoise, poisson_sample
from dpsinkhorn.training import Request, Run, Saving, facts_of, load_recipe, make_plan, plan_for
from dpsinkhorn.training.records import Records
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import make_steps
from quality import splits
from steps import device_name, made_up, measure

TEACHERS: dict[str, dict[str, Any]] = {
    "authors": {},  # 13 annealed iterations
    "classes": {"marginals": "classes", "iterations": None},
    "rho100": {"marginals": 100.0, "iterations": None},
    "balanced": {"iterations": None},
}
# How far a step by kernels may be from one that converges: less is left undone where classes are apart.
_APART = {"authors": 0.02, "classes": 0.1, "rho100": 0.1, "balanced": 0.5}
_SHORT = {"mnist": "mnist", "fashion-mnist": "fashion"}
_SIZES = (50, 100, 200, 500, 1000)


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=[], metavar="NAME=PATH", help="mnist, fashion-mnist")
    parser.add_argument("--version", choices=("first", "final"), default="final")
    parser.add_argument("--teachers", default="authors,classes", help=", ".join(TEACHERS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    parser.add_argument("--protocols", default="quick,authors,paper")
    parser.add_argument("--classifiers", default="logistic,mlp,cnn")
    parser.add_argument("--count", type=int, default=60_000, help="images of a set")
    parser.add_argument("--sets", type=int, default=5, help="of `paper` and `authors`; `quick` has one")
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--out", type=Path, default=Path("paper-figures"))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.teachers.split(",")) - set(TEACHERS)
    if unknown:
        parser.error(f"teachers are some of {', '.join(TEACHERS)}, not {', '.join(sorted(unknown))}")
    paths = dict(text.partition("=")[::2] for text in arguments.data)
    if set(paths) - set(_SHORT) or not all(paths.values()) or not (paths or arguments.check):
        parser.error("--data takes mnist=PATH, fashion-mnist=PATH or both")
    if arguments.check:
        data = splits(paths["mnist"], False)[0] if "mnist" in paths else made_up(60_000, 28)
        sys.exit(0 if check(data, arguments.teachers.split(",")) else 1)
    figures(paths, arguments)


# ---- figures


def figures(paths: dict[str, str], arguments: Namespace) -> None:
    """Train and measure what is not there yet, until the time is over."""
    end = time.monotonic() + 60 * arguments.minutes
    arguments.out.mkdir(parents=True, exist_ok=True)
    book = arguments.out / "figures.jsonl"
    lines = [json.loads(line) for line in book.read_text().splitlines()] if book.exists() else []
    done = {line["key"] for line in lines}
    for name, path in paths.items():
        training, test = splits(path, arguments.holdout)
        for seed in map(int, arguments.seeds.split(",")):
            for teacher in arguments.teachers.split(","):
                wanted = [
                    each
                    for each in protocols(arguments)
                    if key(name, teacher, seed, each, arguments) not in done
                ]
                if not wanted:
                    continue
                run, seconds = trained(name, teacher, seed, training, arguments, end)
                if run is None:
                    print(
                        f"{name}, {teacher}, seed {seed}: not trained to the end; call again", file=sys.stderr
                    )
                    return
                about = {"data": name, "teacher": teacher, "seed": seed, "settings": arguments.set}
                for protocol, classifier in wanted:
                    if time.monotonic() > end:
                        print("the time is over; call again", file=sys.stderr)
                        return
                    line = {
                        "key": key(name, teacher, seed, (protocol, classifier), arguments),
                        **about,
                        **measured(run, test, protocol, classifier, seed, arguments),
                        "train_seconds": seconds,
                        "holdout": arguments.holdout,
                        "device": device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
                    }
                    text = json.dumps(line)
                    print(text, flush=True)
                    with book.open("a", encoding="utf-8") as file:
                        file.write(text + "\n")


def protocols(arguments: Namespace) -> list[tuple[str, str]]:
    """Protocols and classifiers, in the order in which they are wanted."""
    names = arguments.protocols.split(",")
    return [(protocol, each) for protocol in names for each in arguments.classifiers.split(",")]


def key(name: str, teacher: str, seed: int, protocol: tuple[str, str], arguments: Namespace) -> str:
    """What a line is known by: all that it depends on."""
    sets = 1 if protocol[0] == "quick" else arguments.sets
    return "/".join([folder(name, teacher, seed, arguments).name, *protocol, f"{sets}x{arguments.count}"])


def folder(name: str, teacher: str, seed: int, arguments: Namespace) -> Path:
    """Where a training is kept."""
    changes = json.dumps([sorted(arguments.set), arguments.holdout])
    digest = hashlib.sha256(changes.encode()).hexdigest()[:8]
    return Path(arguments.out / f"{arguments.version}-{name}-{teacher}-{digest}-seed{seed}")


def trained(
    name: str, teacher: str, seed: int, training: Dataset, arguments: Namespace, end: float
) -> tuple[Run | None, float | None]:
    """A run that is trained to its end, if there was time, and the seconds, if it went at one go."""
    place = folder(name, teacher, seed, arguments)
    begun = (place / "run.json").exists()
    if begun:
        run = Run.resume(place)
    else:
        recipe = load_recipe(f"paper-{arguments.version}-{_SHORT[name]}").replace(loss=TEACHERS[teacher])
        recipe = recipe.replace(**parse_changes(arguments.set))
        run = Run.create(place, plan_for(training, Request(recipe=recipe, seed=seed, anyway=True)))
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    saving = Saving(checkpoint_seconds=60.0, picture_steps=0)
    whole = run.done or run.train(
        training, device=device, saving=saving, watch=lambda _: time.monotonic() > end
    )
    return (run if whole else None), None if begun else round(time.monotonic() - started, 1)


def measured(
    run: Run, test: Dataset, protocol: str, classifier: str, seed: int, arguments: Namespace
) -> dict[str, Any]:
    """Per cent of the test images that a classifier trained on synthetic ones gets right."""
    assert test.labels is not None
    started = time.monotonic()
    release = load(run.release_folder)
    sets = 1 if protocol == "quick" else arguments.sets
    images, labels = draw_images(release, sets * arguments.count, protocol, seed=seed)
    assert labels is not None
    tests = images_of(test), test.labels
    if protocol == "quick":
        found = list(accuracies(images, labels, *tests, [classifier], seed).values())
    else:
        prepared = find_protocol(protocol).prepare(images)
        options: dict[str, Any] = {"classes": test.classes, "sets": sets, "seed": seed, "protocol": protocol}
        (score,) = downstream_utility(prepared, labels, *tests, classifiers=[classifier], **options).scores
        found = list(score.accuracy)
    return {
        "protocol": protocol,
        "classifier": classifier,
        "accuracy": round(sum(found) / len(found), 2),
        "by_set": [round(each, 2) for each in found],
        "count": arguments.count,
        "epsilon": round(release.privacy.epsilon, 3),
        "delta": release.privacy.delta,
        "steps": run.plan.steps,
        "transport": run.plan.recipe.loss.transport,
        "evaluate_seconds": round(time.monotonic() - started, 1),
    }


# ---- check


def check(data: Dataset, teachers: list[str]) -> bool:
    """Whether steps by kernels are what they are to be, and what they take; a JSON line each."""
    right = True
    for line in checks(data, teachers):
        print(json.dumps(line), flush=True)
        right &= line.get("right", True)
    return right


def checks(data: Dataset, teachers: list[str]) -> Iterator[dict[str, Any]]:
    """The lines of a check."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    yield {"device": device_name(device), "torch": torch.__version__}
    for teacher in teachers:
        for n in (50, 500):
            apart = distance(data, teacher, n, device)
            yield {"teacher": teacher, "n": n, "apart": apart, "right": apart <= _APART[teacher]}
        if device.type == "cuda":
            same = torch.equal(*(weights(data, teacher, device, capture=each) for each in (True, False)))
            yield {"teacher": teacher, "captured steps end at the same bits": same, "right": same}
        for n in _SIZES if device.type == "cuda" else ():
            for version, at in (("final", ""), ("final", "-nonprivate")):
                settings = {"loss": {**TEACHERS[teacher], "generated": n}, "privacy": {"batch": n}}
                found = measure(f"paper-{version}-mnist{at}", data, settings, steps=256)
                yield {"teacher": teacher, "recipe": f"paper-{version}-mnist{at}", "n": n, **found}


def _plan(data: Dataset, teacher: str, n: int, mechanism: str) -> Any:
    recipe = load_recipe("paper-final-mnist").replace(
        loss={**TEACHERS[teacher], "generated": n}, privacy={"batch": n, "mechanism": mechanism, "steps": 100}
    )
    return make_plan(recipe, facts_of(data), budget_epsilon=None, accountant="rdp", seed=0)


def distance(data: Dataset, teacher: str, n: int, device: torch.device) -> float:
    """Between a gradient in fixed shapes and the same one by one, relative to its norm; three samples."""
    plan = _plan(data, teacher, n, "none")
    barrier, records = plan.build(), Records(data, device)
    assert isinstance(barrier, GradientMechanism)
    held = records.stored(plan.facts.classes, on_the_grid=False)
    assert held is not None
    fixed = barrier.fixed(Setting(n, None, plan.expected_batch, held))
    assert fixed is not None
    random = torch.Generator(device).manual_seed(0)
    taken = torch.randint(held.count, (n,), generator=random, device=device)
    taken = torch.cat([taken, taken[: barrier.resampled(n)].roll(1)])
    points, labels = held.read(taken).float(), held.kinds[taken]
    points = (points + 0.4 * torch.randn(points.shape, generator=random, device=device)).clamp(-1, 1)
    drawn = held.drawn(poisson_sample(3 * held.count, n / held.count, SeededNoise(0), device=device), 3)
    inputs, _ = fixed.inputs_of(drawn)
    worst = 0.0
    for step in range(3):
        rows = drawn.rows[drawn.step == step]
        expected = barrier.clipped(points, labels, Sample(held.read(rows).float(), held.kinds[rows]))
        found = fixed.gradient(points, labels, {name: value[step] for name, value in inputs.items()}, None)
        worst = max(worst, float((found - expected).norm() / expected.norm()))
    return round(worst, 6)


def weights(data: Dataset, teacher: str, device: torch.device, *, capture: bool) -> torch.Tensor:
    """All weights after steps, of which there are some in a row."""
    plan = _plan(data, teacher, 50, "image")
    torch.backends.cudnn.deterministic = True
    state = TrainingState(plan, device)
    state.generator.train()
    steps = make_steps(
        plan, state, Records(data, device), plan.build(), (0.1,) * 10, horizon=100, capture=capture
    )
    steps.multiple = 32  # type: ignore[misc]
    steps.take(64)
    return torch.cat([parameter.detach().flatten() for parameter in state.parameters])


if __name__ == "__main__":
    main()
