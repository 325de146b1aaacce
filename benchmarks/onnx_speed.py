"""Seconds to draw images on two cores, PyTorch beside the same generator as an ONNX file, and what differs.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/onnx_speed.py
    OMP_WAIT_POLICY=PASSIVE python benchmarks/onnx_speed.py --only RUN/release --batch 50 --count 1000

By turns, the least of so many rounds; in brackets processor time, which other work on the machine does not
show in. Generators are those of recipes, with random weights, since what they draw takes as long; or any
release, by its folder. Differences are between 1,000 images of either, from the same latents and labels.
"""

from __future__ import annotations

import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn

from dpsinkhorn import load
from dpsinkhorn.generators import FlowConfig, GeneratorConfig, build_generator, draw_latents, frozen_copy
from dpsinkhorn.privacy import RecordMechanism, epsilon
from dpsinkhorn.release import PrivacyStatement, Release, make_release, to_uint8
from dpsinkhorn.release.onnx import write_onnx
from dpsinkhorn.training import Facts, load_recipe, make_plan

COMPARED = 1000
SHAPES = {"digits": (1, 8, 8), "mixture": (1, 28, 28), "grey": (1, 28, 28), "colour": (3, 32, 32)}
CHARGE = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=100)


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=500, help="images at once; also of the comparison")
    parser.add_argument("--only", nargs="+", default=[*SHAPES, "flow"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in arguments.only:
        measure(name, load(name) if Path(name).is_dir() else untrained(name), arguments)


def untrained(name: str) -> Release:
    """Return a release of a recipe's generator, with random weights."""
    config: GeneratorConfig = FlowConfig(image_shape=(1, 28, 28), classes=10)
    if name != "flow":
        facts = Facts(SHAPES[name], classes=10, records=60_000, units=60_000)
        config = make_plan(load_recipe(name), facts, budget_epsilon=10.0).generator_config
    statement = PrivacyStatement(epsilon(CHARGE, 1e-5), 1e-5, "record", [CHARGE.to_json()])
    return make_release(shaken(build_generator(config, seed=0)), label_probabilities=None, privacy=statement)


def measure(name: str, release: Release, arguments: Namespace) -> None:
    """Print a line for one generator."""
    config = release.config
    with tempfile.TemporaryDirectory() as place:
        write_onnx(release, Path(place) / "generator.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = arguments.threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(Path(place) / "generator.onnx", options)
    print(
        f"{name} ({config.kind}, {config.image_shape}): {difference(session, release, arguments.batch)}",
        flush=True,
    )
    ways = {
        "PyTorch": lambda: release.sample(arguments.count, device="cpu"),
        "ONNX": lambda: by_onnx(session, release, arguments.count, arguments.batch),
    }
    best = {way: (float("inf"), float("inf")) for way in ways}
    for _ in range(arguments.rounds):
        for way, draw in ways.items():
            best[way] = min(best[way], timed(draw))
    shown = ", ".join(f"{way} {wall:.2f} s [{busy:.2f}]" for way, (wall, busy) in best.items())
    print(f"  {arguments.count:,} images: {shown}", flush=True)


def shaken(generator: nn.Module) -> nn.Module:
    """Move all weights a little: the last layers of a flow begin with 0, and would draw nothing but noise."""
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=draws)
    return generator


def difference(session: onnxruntime.InferenceSession, release: Release, batch: int) -> str:
    """Say by how many grey levels images differ, and how many of their pixels."""
    network, levels = frozen_copy(release.generator), []
    for _ in range(0, COMPARED, batch):
        latents = draw_latents(batch, release.config.latent)
        labels = torch.randint(max(1, release.classes), (batch,))
        (found,) = session.run(None, given(release, latents.numpy(), labels.numpy()))
        with torch.inference_mode():
            expected = to_uint8(network(latents, labels if release.classes else None))
        levels.append(np.abs(found.astype(int) - expected.astype(int)))
    apart = np.concatenate(levels)
    return f"at most {apart.max()} grey levels apart, in {np.mean(apart > 0):.4%} of all pixels"


def by_onnx(session: onnxruntime.InferenceSession, release: Release, count: int, batch: int) -> None:
    """Draw as an analyst without PyTorch would."""
    chance = np.random.default_rng()
    for begin in range(0, count, batch):
        size = min(batch, count - begin)
        latents = chance.random((size, release.config.latent), dtype=np.float32)
        session.run(None, given(release, latents, chance.integers(max(1, release.classes), size=size)))


def given(release: Release, latents: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the model takes: labels only where there are classes."""
    return {"latents": latents, "labels": labels} if release.classes else {"latents": latents}


def timed(draw: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and seconds of processors."""
    wall, busy = time.perf_counter(), time.process_time()
    draw()
    return time.perf_counter() - wall, time.process_time() - busy


if __name__ == "__main__":
    main()
