"""Sums of clipped gradients, one for each record, of the flow-matching loss in all weights of a network.

One pass forward and one backward, for many records together, leave the inputs of every layer and the
gradients at its outputs. A record's gradient in a layer's weights is the product of these two, and of nothing
else: the products of all records are taken together, layer by layer.

What a record adds is scaled to the clipping bound by the norm, in float64, of exactly what is added, and
rounded to multiples of a public step, so coarse that float64 holds every sum exactly: docs/proofs/flow.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsinkhorn.generators.flow import Flow
from dpsinkhorn.kernels.grid_sums import add_on_grid

__all__ = ["RecordGradients", "flow_loss"]

Layer: TypeAlias = "nn.Conv2d | nn.Linear"

_DIGITS = 53  # binary digits of float64
_SLACK = 2.0**-40  # more than the roundings of a norm and of scaling by it


def flow_loss(network: Flow, images: Tensor, labels: Tensor | None, times: Tensor, noises: Tensor) -> Tensor:
    """Return the squared error of the velocity of every image, (n,), the mean over pixels."""
    at = times.view(-1, 1, 1, 1)
    velocity = network.velocity(torch.lerp(noises, images, at), times, labels)
    return (velocity.float() - (images - noises)).square().mean((1, 2, 3))


class RecordGradients:
    """Sums of clipped per-record gradients in all parameters of a network.

    Args:
        network: whose parameters are all weights and biases of convolutions and linear layers.
        clip: C, the norm of what a record adds at most.
        most_records: for as many records sums are exact.
        draws: K, how many images, times and noises a record's loss is the mean of.
        chunk: records that go through together. A public number: all shapes follow from it.
        precision: what the network computes in.
    """

    def __init__(
        self,
        network: Flow,
        clip: float,
        most_records: int,
        *,
        draws: int,
        chunk: int,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self._network, self._draws, self._chunk, self._precision = network, draws, chunk, precision
        self._layers = [part for part in network.modules() if isinstance(part, (nn.Conv2d, nn.Linear))]
        bits = _DIGITS - 1 - most_records.bit_length()
        self._step = clip * 2.0**-bits
        parameters = sum(parameter.numel() for parameter in network.parameters())
        self._bound = clip * (1 - math.sqrt(parameters) * 2.0 ** -(bits + 1) - _SLACK)

    def clipped_sum(
        self, images: Tensor, labels: Tensor | None, times: Tensor, noises: Tensor, weights: Tensor
    ) -> Tensor:
        """Return the sum over records, (P,), in float64, on the grid.

        Args:
            images: (b, K, channels, height, width), for b a multiple of the chunk; labels, times: (b, K).
            noises: as the images.
            weights: (b,): 1, or 0 for a place that no record takes.
        """
        totals = {layer: self._zeros(layer) for layer in self._layers}
        for begin in range(0, len(images), self._chunk):
            rows = slice(begin, begin + self._chunk)
            kinds = None if labels is None else labels[rows].flatten()
            parts = self._gradients(
                images[rows].flatten(0, 1), kinds, times[rows].flatten(), noises[rows].flatten(0, 1)
            )
            squares = sum(
                torch.linalg.vector_norm(part, dim=1, dtype=torch.float64).square()
                for of_layer in parts.values()
                for part in of_layer
            )
            assert isinstance(squares, Tensor)
            factors = (self._bound / squares.sqrt()).clamp_(max=1.0).mul_(weights[rows])
            factors = torch.where(squares.isfinite(), factors, 0.0)  # what overflows adds nothing
            for layer, of_layer in parts.items():
                for total, part in zip(totals[layer], of_layer, strict=True):
                    add_on_grid(total, part, factors, self._step)
        return self._flat(totals)

    def check_places(self) -> None:
        """Refuse a device on which a record's gradient depends on its place, or on the others in a chunk.

        The proof rests on it that it does not. This tries it on made-up images, in the shapes of a training.
        """
        config, device, count = self._network.config, self._step_device, self._chunk
        random = torch.Generator(device).manual_seed(0)
        shape = (count, self._draws, *config.image_shape)
        images, noises = (torch.randn(shape, generator=random, device=device).clamp_(-1, 1) for _ in range(2))
        times = torch.rand(shape[:2], generator=random, device=device)
        labels = torch.randint(max(1, config.classes), shape[:2], generator=random, device=device)
        order = torch.randperm(count, generator=random, device=device)
        others = images.clone()
        others[count // 2 :] = -1.0

        def gradients(images: Tensor, rows: Tensor | slice) -> list[Tensor]:
            parts = self._gradients(
                images[rows].flatten(0, 1),
                labels[rows].flatten() if config.classes else None,
                times[rows].flatten(),
                noises[rows].flatten(0, 1),
            )
            return [part for of_layer in parts.values() for part in of_layer]

        found, every = gradients(images, slice(None)), slice(None, count // 2)
        moved = all(torch.equal(a[order], b) for a, b in zip(found, gradients(images, order), strict=True))
        kept = all(
            torch.equal(a[every], b[every])
            for a, b in zip(found, gradients(others, slice(None)), strict=True)
        )
        if not moved or not kept:
            raise ValueError(
                "on this device a record's gradient depends on its place among the others, so that nothing "
                "could be guaranteed; choose another size of chunks, a multiple of 32"
            )

    @property
    def _step_device(self) -> torch.device:
        return next(self._network.parameters()).device

    def _gradients(
        self, images: Tensor, labels: Tensor | None, times: Tensor, noises: Tensor
    ) -> dict[Layer, list[Tensor]]:
        """Return the gradients of every record, (b, numbers), in the weights and the biases of each layer."""
        with torch.enable_grad(), self._watched() as seen:
            reduced = self._precision != torch.float32
            with torch.autocast(images.device.type, self._precision, enabled=reduced):
                losses = flow_loss(self._network, images, labels, times, noises)
            outputs = [output for _, output in seen.values()]
            slopes = torch.autograd.grad(losses.sum() / self._draws, outputs)
        parts = {}
        for (layer, (inputs, _)), slope in zip(list(seen.items()), slopes, strict=True):
            parts[layer] = _products(layer, inputs.detach(), slope, self._draws)
        return parts

    @contextmanager
    def _watched(self) -> Iterator[dict[Layer, tuple[Tensor, Tensor]]]:
        """Within it, inputs and outputs of the layers are kept, and gradients end at the outputs."""
        seen: dict[Layer, tuple[Tensor, Tensor]] = {}

        def keep(layer: Layer, inputs: tuple[Tensor], output: Tensor) -> Tensor:
            if not output.requires_grad:  # nothing before it does
                output.requires_grad_()
            seen[layer] = inputs[0], output
            return output

        trained = [parameter for parameter in self._network.parameters() if parameter.requires_grad]
        with ExitStack() as stack:
            for layer in self._layers:
                stack.callback(layer.register_forward_hook(keep).remove)
            for parameter in trained:
                stack.callback(parameter.requires_grad_, True)
                parameter.requires_grad_(False)
            yield seen

    def _zeros(self, layer: Layer) -> list[Tensor]:
        return [
            torch.zeros(parameter.numel(), dtype=torch.float64, device=parameter.device)
            for parameter in layer.parameters()
        ]

    def _flat(self, totals: dict[Layer, list[Tensor]]) -> Tensor:
        """Return sums of all layers in the order of the network's parameters, flattened."""
        by_parameter: dict[nn.Parameter, Tensor] = {}
        for layer, of_layer in totals.items():
            for parameter, total in zip(layer.parameters(), of_layer, strict=True):
                if parameter.ndim == 4:
                    out, into, height, width = parameter.shape
                    total = total.view(out, height, width, into).permute(0, 3, 1, 2)
                by_parameter[parameter] = total.reshape(-1)
        return torch.cat([by_parameter[parameter] for parameter in self._network.parameters()])


def _products(layer: Layer, inputs: Tensor, slopes: Tensor, draws: int) -> list[Tensor]:
    """Return each record's gradients, (b, numbers), in weights, as (out, height, width, in), and biases."""
    if isinstance(layer, nn.Conv2d):
        inputs, slopes = _windows(inputs, layer), slopes.permute(0, 2, 3, 1)
    inputs = inputs.to(slopes.dtype).reshape(len(inputs) // draws, -1, inputs.shape[-1])
    slopes = slopes.reshape(len(inputs), -1, slopes.shape[-1])
    products = [torch.bmm(slopes.mT, inputs).flatten(1)]
    if layer.bias is not None:
        products.append(slopes.sum(1, dtype=torch.float32))
    return products


def _windows(inputs: Tensor, layer: nn.Conv2d) -> Tensor:
    """Return what each output of a convolution of stride 1 sees, (n, height, width, kernel and channels)."""
    rows, columns = layer.kernel_size
    assert not isinstance(layer.padding, str)
    down, across = layer.padding
    last = functional.pad(inputs.permute(0, 2, 3, 1), (0, 0, across, across, down, down))
    windows = last.unfold(1, rows, 1).unfold(2, columns, 1)  # (n, height, width, channels, rows, columns)
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3)
