"""Sums of clipped gradients, one for each unit, of the flow-matching loss in all weights of a network.

What a unit draws, K images, times and noises, is a function of its own pixels and labels and of public random
numbers of the step. So its gradient is the same whichever others are in the sample, and wherever it stands.

One pass forward and one backward, for many records together, leave the inputs of every layer and the
gradients at its outputs. A record's gradient in a layer's weights is the product of these two, and of nothing
else: the products of all records are taken together, layer by layer.

What a record adds is scaled to the clipping bound by the norm, in float64, of exactly what is added, and
rounded to multiples of a public step, so coarse that float64 holds every sum exactly: docs/proofs/flow.md.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from dpsinkhorn.generators.flow import Flow
from dpsinkhorn.kernels.record_sums import add_on_grid, products
from dpsinkhorn.mechanisms.shared.clipping import grid_bits, on_grid
from dpsinkhorn.mechanisms.shared.persons import first_records
from dpsinkhorn.mechanisms.shared.steps import Sample

# ---- which images, times and noises a unit's gradient is the mean of


_NOISES = 2**12  # images of noise in a step, from which units draw
_TIME_BITS = 16  # of a uniform number that a time follows
_ODD = tuple(value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, eq=False)
class Drawn:
    """What goes through the network for some units, K for each."""

    rows: Tensor  # (b, K), of images in the sample
    times: Tensor  # (b, K)
    noises: Tensor  # (b, K), of a step's noises


class StepDraws:
    """Public random numbers of one step.

    >>> draws = StepDraws((1, 2, 2), 2, torch.Generator().manual_seed(0))
    >>> one, two = torch.zeros(1, 4), torch.ones(1, 4)
    >>> alone, beside = draws(Sample(one)), draws(Sample(torch.cat([two, one])))
    >>> torch.equal(alone.times[0], beside.times[1]), torch.equal(alone.noises[0], beside.noises[1])
    (True, True)
    """

    def __init__(self, image_shape: tuple[int, int, int], draws: int, random: torch.Generator) -> None:
        self.state = random.get_state()
        """Of the generator, from which the same draws come again."""
        device, pixels = random.device, math.prod(image_shape)
        self._draws = draws
        self._factors = torch.randint(-(2**62), 2**62, (pixels + 1,), generator=random, device=device)
        self.noises = torch.randn(_NOISES, *image_shape, generator=random, device=device)

    def __call__(self, sample: Sample) -> Drawn:
        """Return what each unit of a sample draws, in the order of the persons where they are named."""
        keys = self._keys(sample)
        if sample.groups is None:
            rows = torch.arange(len(keys), device=keys.device)
            starts, counts = rows, torch.ones_like(rows)
        else:
            rows, persons = first_records(sample.groups)
            counts = torch.bincount(persons) if len(persons) else persons
            starts = counts.cumsum(0) - counts
            keys = torch.zeros_like(counts).index_add_(0, persons, keys[rows])
        turn = torch.arange(self._draws, device=keys.device)
        bits = _mixed(keys.unsqueeze(1) + turn * _ODD[0])  # (b, K)
        # a person's records have their turns, from one of them on
        first = (_mixed(keys) & (2**31 - 1)) % counts.clamp(min=1)
        own = starts.unsqueeze(1) + (first.unsqueeze(1) + turn) % counts.clamp(min=1).unsqueeze(1)
        times = _times(self._draws, keys.device)[turn, bits & (2**_TIME_BITS - 1)]
        return Drawn(rows[own], times, (bits >> 40) & (_NOISES - 1))

    def _keys(self, sample: Sample) -> Tensor:
        """Return a number of 64 bits for each record, (b,), exact: products and sums wrap around."""
        whole = (on_grid(sample.points) * 2.0 ** grid_bits(sample.points.shape[1])).long()
        keys: Tensor = (whole * self._factors[1:]).sum(1)
        return keys if sample.labels is None else keys + sample.labels * self._factors[0]


@functools.lru_cache(maxsize=8)
def _times(draws: int, device: torch.device) -> Tensor:
    """Return all times there are, (K, 2^16): logits are normal, cut into K parts of equal weight.

    A table, since a library may round in another way where more numbers go through a function together.
    """
    uniform = (torch.arange(draws * 2**_TIME_BITS, dtype=torch.float64) + 0.5) / (draws * 2**_TIME_BITS)
    return torch.sigmoid(torch.special.ndtri(uniform)).float().view(draws, -1).to(device)


def _mixed(keys: Tensor) -> Tensor:
    """Return the keys with their bits mixed, by the last steps of SplitMix64."""
    for shift, factor in ((30, _ODD[1]), (27, _ODD[2])):
        keys = (keys ^ ((keys >> shift) & (2 ** (64 - shift) - 1))) * factor
    return keys ^ ((keys >> 31) & (2**33 - 1))


# ---- gradients


Layer: TypeAlias = nn.Conv2d | nn.Linear

_DIGITS = 53  # binary digits of float64
_SLACK = 2.0**-40  # more than the roundings of scaling by a norm
_TRIALS = 2  # of other weights each, of whether a place in a chunk matters


def flow_loss(
    velocity: Callable[..., Tensor], images: Tensor, labels: Tensor | None, times: Tensor, noises: Tensor
) -> Tensor:
    """Return the squared error of the velocity of every image, (n,), the mean over pixels."""
    found = velocity(torch.lerp(noises, images, times.view(-1, 1, 1, 1)), times, labels)
    return (found - (images - noises)).square().mean((1, 2, 3))


@dataclass(frozen=True, eq=False)
class _Gradients:
    """Gradients of some records, (b, numbers), parameter by parameter, and their squared norms, (b,)."""

    parts: dict[Tensor, Tensor]
    squares: Tensor


class RecordGradients:
    """Sums of clipped per-record gradients in all parameters of a flow.

    Args:
        flow: whose network has no other parameters than weights and biases of convolutions and linear layers.
        clip: C, the norm of what a record adds at most.
        most_records: for as many records sums are exact.
        draws: K, how many images, times and noises a record's loss is the mean of.
        chunk: records that go through together. A public number: all shapes follow from it.
        precision: what the network computes in.
    """

    def __init__(
        self,
        flow: Flow,
        clip: float,
        most_records: int,
        *,
        draws: int,
        chunk: int,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.network, self._draws, self._chunk, self._precision = flow, draws, chunk, precision
        bits = _DIGITS - 1 - most_records.bit_length()
        self._step = 2.0 ** (math.frexp(clip)[1] - bits)  # a power of two: else its multiples would round
        numbers = flow.config.parameters
        slack = _SLACK + numbers * 2.0**-_DIGITS  # the latter for the sum of their squares
        self._bound = clip * (1 - slack) - math.sqrt(numbers) * self._step / 2

    def clipped_sum(self, images: Tensor, labels: Tensor | None, drawn: Drawn, noises: Tensor) -> Tensor:
        """Return the sum over units, (P,), in float64, on the grid, in the order of the parameters.

        Args:
            images: (n, channels, height, width), of all records in the sample.
            labels: (n,), or none.
            drawn: what goes through for each unit; the last chunk is filled up with what weighs nothing.
            noises: those of the step.
        """
        totals: dict[Tensor, Tensor] = {
            parameter: torch.zeros(parameter.numel(), dtype=torch.float64, device=parameter.device)
            for parameter in self.network.parameters()
        }
        for found, factors in self._chunks(images, labels, drawn, noises):
            for parameter, part in found.parts.items():
                add_on_grid(totals[parameter], part, factors, self._step)
        return torch.cat([_as_stored(total, parameter) for parameter, total in totals.items()])

    def clipped_rows(self, images: Tensor, labels: Tensor | None, drawn: Drawn, noises: Tensor) -> Tensor:
        """Return what each unit adds to the sum, (b, P), but for the grid: for audits."""
        rows = [
            torch.cat(
                [
                    _as_stored(found.parts[parameter].double(), parameter) * factors.unsqueeze(1)
                    for parameter in self.network.parameters()
                ],
                dim=1,
            )
            for found, factors in self._chunks(images, labels, drawn, noises)
        ]
        return torch.cat(rows)[: len(drawn.rows)]

    def _chunks(
        self, images: Tensor, labels: Tensor | None, drawn: Drawn, noises: Tensor
    ) -> Iterator[tuple[_Gradients, Tensor]]:
        """Hand out gradients chunk by chunk, and what they are to be multiplied by: 0 where no unit is."""
        places = torch.arange(self._chunk, device=images.device)
        if labels is None:
            labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        for begin in range(0, len(drawn.rows), self._chunk):
            units = (begin + places).clamp(max=len(drawn.rows) - 1)
            rows = drawn.rows[units]
            found = self._gradients(
                images[rows], labels[rows], drawn.times[units], noises[drawn.noises[units]]
            )
            factors = (self._bound / found.squares.sqrt()).clamp_(max=1.0)
            factors *= begin + places < len(drawn.rows)
            yield found, torch.where(found.squares.isfinite(), factors, 0.0)  # what overflows adds nothing

    def check_places(self) -> None:
        """Refuse a device on which a record's gradient depends on its place, or on the others in a chunk.

        The proof rests on it that it does not. This tries it on made-up images and weights, in the shapes of
        a training: not on the network's own weights, since at first most gradients are 0.
        """
        for seed in range(_TRIALS):
            random = torch.Generator(next(self.network.parameters()).device).manual_seed(seed)
            twin = copy.copy(self)
            twin.network = copy.deepcopy(self.network)
            for parameter in twin.network.parameters():
                drawn = torch.randn(parameter.shape, generator=random, device=random.device)
                parameter.detach().copy_(drawn / math.sqrt(parameter[0].numel()))
            twin._check_places(random)

    def _check_places(self, random: torch.Generator) -> None:
        config, device = self.network.config, random.device
        shape = (self._chunk, self._draws, *config.image_shape)
        images, noises = (torch.randn(shape, generator=random, device=device).clamp_(-1, 1) for _ in range(2))
        times = torch.rand(shape[:2], generator=random, device=device)
        labels = torch.randint(max(1, config.classes), shape[:2], generator=random, device=device)

        def parts(images: Tensor, rows: Tensor) -> list[Tensor]:
            found = self._gradients(images[rows], labels[rows], times[rows], noises[rows])
            return [found.squares, *found.parts.values()]

        every, half = torch.arange(self._chunk, device=device), self._chunk // 2
        order = torch.randperm(self._chunk, generator=random, device=device)
        others = torch.where(every.view(-1, 1, 1, 1, 1) < half, images, -1.0)
        for found, moved, beside in zip(
            parts(images, every), parts(images, order), parts(others, every), strict=True
        ):
            assert bool(found.any())  # else nothing would be tried
            if not (torch.equal(found[order], moved) and torch.equal(found[:half], beside[:half])):
                raise ValueError(
                    "on this device a record's gradient depends on its place among the others, so that "
                    "nothing could be guaranteed; train on another one, with another number of threads "
                    "(OMP_NUM_THREADS=1), or by another mechanism"
                )

    def _gradients(self, images: Tensor, labels: Tensor, times: Tensor, noises: Tensor) -> _Gradients:
        weights = {
            name: parameter.detach().to(self._precision)
            for name, parameter in self.network.network.named_parameters()
        }

        def velocity(*given: Tensor) -> Tensor:
            found: Tensor = torch.func.functional_call(self.network.network, weights, given)
            return found

        with torch.enable_grad(), self._watched() as seen:
            losses = flow_loss(
                velocity, images.flatten(0, 1), labels.flatten(), times.flatten(), noises.flatten(0, 1)
            )
            slopes = torch.autograd.grad(losses.sum() / self._draws, [output for _, output in seen.values()])
        parts: dict[Tensor, Tensor] = {}
        squares = torch.zeros(len(images), dtype=torch.float64, device=images.device)
        for (layer, (inputs, _)), slope in zip(seen.items(), slopes, strict=True):
            inputs, slope = _by_pixel(inputs.detach()), _by_pixel(slope)
            side = 1 if isinstance(layer, nn.Linear) else layer.kernel_size[0]
            parts[layer.weight], own = products(inputs, slope, len(images), side)
            squares += own
            if layer.bias is not None:
                part = slope.reshape(len(images), -1, slope.shape[-1]).sum(1, dtype=torch.float32)
                squares += torch.linalg.vector_norm(part, dim=1, dtype=torch.float64).square()
                parts[layer.bias] = part
        return _Gradients(parts, squares)

    @contextmanager
    def _watched(self) -> Iterator[dict[Layer, tuple[Tensor, Tensor]]]:
        """Within it, inputs and outputs of the layers are kept, and gradients end at the outputs."""
        seen: dict[Layer, tuple[Tensor, Tensor]] = {}

        def keep(layer: Layer, inputs: tuple[Tensor], output: Tensor) -> None:
            output.requires_grad_()  # the first ones depend on nothing that does
            seen[layer] = inputs[0], output

        with ExitStack() as stack:
            for layer in self.network.modules():
                if isinstance(layer, Layer):
                    stack.callback(layer.register_forward_hook(keep).remove)
            yield seen


def _by_pixel(values: Tensor) -> Tensor:
    """Return (n, height, width, channels) of what a convolution or a linear layer, (n, channels), has."""
    return values[:, None, None] if values.ndim == 2 else values.permute(0, 2, 3, 1)


def _as_stored(total: Tensor, parameter: Tensor) -> Tensor:
    """Return sums (..., out * height * width * in) of a convolution's weights in their own order."""
    if parameter.ndim < 4:
        return total
    out, into, height, width = parameter.shape
    return total.view(*total.shape[:-1], out, height, width, into).movedim(-1, -3).flatten(-4)
