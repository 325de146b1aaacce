"""Whether steps in fixed shapes are what they are to be, on this machine, and what they take.

    python benchmarks/fixed_steps.py PATH --teachers authors,classes       # made-up images otherwise

For the papers' recipe of the final version and every teacher (how the plan of a step is found): how far a
step in fixed shapes is from the same step one by one, relative to its norm, before clipping; on a GPU also
whether captured steps end at the bits of those that are not, and the milliseconds of a step at n = 50 to
1,000, with n records on average. Exits with 1 where something is not right.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from typing import Any

import torch

from dpsinkhorn.data import Dataset, load_dataset
from dpsinkhorn.mechanisms.shared.base import GradientMechanism, Sample
from dpsinkhorn.mechanisms.shared.steps import Setting
from dpsinkhorn.privacy import SeededNoise, poisson_sample
from dpsinkhorn.training import facts_of, load_recipe, make_plan
from dpsinkhorn.training.records import Records
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import make_steps
from steps import device_name, made_up, measure

TEACHERS: dict[str, dict[str, Any]] = {
    "authors": {},  # 13 annealed iterations
    "classes": {"marginals": "classes", "iterations": None},
    "rho100": {"marginals": 100.0, "iterations": None},
    "balanced": {"iterations": None},
}
# How far a step in fixed shapes may be from one that converges: less is left undone where classes are apart.
_APART = {"authors": 0.02, "classes": 0.1, "rho100": 0.1, "balanced": 0.5}


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="MNIST")
    parser.add_argument("--teachers", default="authors,classes", help=", ".join(TEACHERS))
    parser.add_argument("--sizes", default="50,100,200,500,1000", help="at which steps are timed")
    arguments = parser.parse_args()
    data = load_dataset(arguments.data, split="train") if arguments.data else made_up(60_000, 28)
    right = True
    for line in checks(
        data, arguments.teachers.split(","), [int(each) for each in arguments.sizes.split(",")]
    ):
        print(json.dumps(line), flush=True)
        right &= line.get("right", True)
    sys.exit(0 if right else 1)


def checks(data: Dataset, teachers: list[str], sizes: list[int]) -> Iterator[dict[str, Any]]:
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
        for n in sizes if device.type == "cuda" else ():
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
