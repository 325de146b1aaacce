"""How much signal a step of `flow` has beside its noise, by the number of draws K of a record.

    python benchmarks/flow_signal.py mnist --channels 32 --updates 600 --real 250

A network learns from samples of a private sketch, then (to see what later steps find) from real records
without any privacy: for research alone. After both, the signal is the length of the mean of records'
gradients, each scaled to 1 as clipping does; of b records with no signal at all its square would be 1/b,
which is taken off. The noise of a step has the length sigma sqrt(P) / B in the same unit. A JSON line each.
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import Tensor

from dpsinkhorn import DPSinkhorn
from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation import images_of
from dpsinkhorn.generators import Flow, FlowConfig, Variation
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.record_gradients import RecordGradients, StepDraws, flow_loss

_BATCH, _CLIP, _CHUNK = 128, 1e-3, 64


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a name or a path; grey images with classes")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--sketch", type=float, default=1.15, help="epsilon of the sketch")
    parser.add_argument("--updates", type=int, default=600, help="by samples of the sketch")
    parser.add_argument("--real", type=int, default=250, help="then, by real records")
    parser.add_argument("--records", type=int, default=256, help="whose gradients are taken")
    parser.add_argument("--draws", default="1,4,16")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    data = load_dataset(arguments.data, split="train")
    assert data.labels is not None
    real = as_tensors(images_of(data), data.labels)
    model = DPSinkhorn(epsilon=arguments.sketch, recipe="mixture", random_state=0)
    model.fit(images_of(data), data.labels)
    sketch = as_tensors(*model.sample(20_000, variation=Variation()))
    config = FlowConfig(tuple(real[0].shape[1:]), int(real[1].max()) + 1, channels=arguments.channels)
    flow = Flow(config).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for after, (images, labels), updates in (
        ("the sketch", sketch, arguments.updates),
        ("real records", real, arguments.real),
    ):
        learn(flow, images, labels, updates)
        for draws in map(int, arguments.draws.split(",")):
            found = signal(flow, real[0][: arguments.records], real[1][: arguments.records], draws)
            line = {
                "data": arguments.data,
                "channels": arguments.channels,
                "after": after,
                "updates": updates,
            }
            print(json.dumps({**line, "draws": draws, "signal": round(found, 4)}), flush=True)


def as_tensors(images: object, labels: object) -> tuple[Tensor, Tensor]:
    """Images in [-1, 1], (n, 1, height, width), and labels."""
    return torch.as_tensor(images).float().div(127.5).sub(1).unsqueeze(1), torch.as_tensor(labels)


def learn(flow: Flow, images: Tensor, labels: Tensor, updates: int) -> None:
    """Take updates by Adam, whose rate falls from 1e-3 to 0."""
    optimizer = torch.optim.Adam(flow.parameters(), 1e-3)
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = 5e-4 * (1 + math.cos(math.pi * update / updates))
        rows = torch.randint(len(images), (_BATCH,))
        times, noises = torch.sigmoid(torch.randn(_BATCH)), torch.randn(_BATCH, *images.shape[1:])
        with torch.autocast("cpu", torch.bfloat16):
            loss = flow_loss(flow.network, images[rows], labels[rows], times, noises).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def signal(flow: Flow, images: Tensor, labels: Tensor, draws: int) -> float:
    """The length of the mean of gradients of length 1, without what chance adds to it."""
    engine = RecordGradients(
        flow, _CLIP, 2**17, draws=draws, chunk=max(4, _CHUNK // draws), precision=torch.bfloat16
    )
    step = StepDraws(flow.config.image_shape, draws, torch.Generator().manual_seed(draws))
    drawn = step(Sample(images.flatten(1), labels))
    mean = engine.clipped_sum(images, labels, drawn, step.noises) / (_CLIP * len(images))
    by_chance = 1 / len(images)
    return math.sqrt(max(0.0, (float(mean.square().sum()) - by_chance) / (1 - by_chance)))


if __name__ == "__main__":
    main()
