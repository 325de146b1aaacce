"""Adam on a GPU in one kernel, over all parameters in one piece of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpsinkhorn.kernels.launch import ceil_div, jit, on, tl

_ALIGNED = 64  # numbers: every parameter begins at a multiple of it, as libraries like it
_BLOCK = 1024


@jit
def adam_kernel(
    parameters,
    leading,  # gradients of the first `split` numbers
    others,  # of the rest
    means, squares, step, rate,
    first,  # 1 - β₁
    second,  # 1 - β₂
    first_log,  # log2 β₁
    second_log,  # log2 β₂
    decay, least, split, count, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    taken = tl.load(step)  # this one included
    first_bias = 1.0 - tl.exp2(taken * first_log)
    second_bias = 1.0 - tl.exp2(taken * second_log)
    parameter = tl.load(parameters + at, mask=there, other=0.0)
    gradient = tl.load(leading + at, mask=at < split, other=0.0).to(tl.float32)
    gradient += tl.load(others + (at - split), mask=there & (at >= split), other=0.0).to(tl.float32)
    gradient += decay * parameter
    mean = tl.load(means + at, mask=there, other=0.0)
    square = tl.load(squares + at, mask=there, other=0.0)
    mean += first * (gradient - mean)
    square += second * (gradient * gradient - square)
    root = tl.sqrt(square) / tl.sqrt(second_bias) + least
    parameter -= tl.load(rate) / first_bias * (mean / root)
    tl.store(parameters + at, parameter, mask=there)
    tl.store(means + at, mean, mask=there)
    tl.store(squares + at, square, mask=there)


class FlatAdam(torch.optim.Adam):
    """`torch.optim.Adam` with the same state, whose step is one kernel. Parameters move into one tensor.

    Args:
        parameters: float32, on one device.
        lr: on the same device.
        leading: those that `cast` makes copies of. Their gradients are of one type, whichever it is.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        lr: Tensor,
        leading: Sequence[nn.Parameter] = (),
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr=lr, capturable=lr.is_cuda, **options)
        first = {id(parameter) for parameter in leading}
        self._given = list(parameters)
        # in the order in which they are in memory; `sorted` is stable
        self._order = sorted(range(len(self._given)), key=lambda index: id(self._given[index]) not in first)
        self._leading = len(first)
        self._parameters = [self._given[index] for index in self._order]
        self._zeros = {
            dtype: torch.zeros(_ALIGNED, dtype=dtype, device=lr.device)
            for dtype in (torch.float32, torch.bfloat16)
        }
        self.flat = self._flattened(self._parameters)
        self._split = sum(_padded_size(parameter) for parameter in self._parameters[: self._leading])
        for parameter, view in zip(self._parameters, _views(self.flat, self._parameters), strict=True):
            parameter.data = view
        self._step = torch.zeros((), device=self.flat.device)
        self._means, self._squares = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self._share_state()

    def _share_state(self) -> None:
        means, squares = (_views(flat, self._parameters) for flat in (self._means, self._squares))
        for parameter, mean, square in zip(self._parameters, means, squares, strict=True):
            self.state[parameter] = {"step": self._step, "exp_avg": mean, "exp_avg_sq": square}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state of `torch.optim.Adam`."""
        super().load_state_dict(state_dict)
        given = {parameter: dict(self.state.get(parameter, {})) for parameter in self._parameters}
        self._share_state()
        for parameter, entry in given.items():
            for name, value in entry.items():
                self.state[parameter][name].copy_(value)

    def cast(self, dtype: torch.dtype) -> list[Tensor]:
        """Copies of the leading parameters, as they are now, as leaves of a graph: one launch for all."""
        flat = self.flat[: self._split].to(dtype)
        views = _views(flat, self._parameters[: self._leading])
        return [view.requires_grad_() for view in views]

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Take a step by the gradients that the parameters have."""
        gradients = [parameter.grad for parameter in self._given]
        self.take([gradient for gradient in gradients if gradient is not None], self.param_groups[0]["lr"])

    @torch.no_grad()
    def take(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        """Take a step by a gradient for each parameter, in the order in which these were given.

        Gradients are laid out in memory as their parameters are.
        """
        if len(gradients) != len(self._given):
            raise ValueError(f"gradients: expected {len(self._given)}, got {len(gradients)}")
        group = self.param_groups[0]
        ordered = [gradients[index] for index in self._order]
        leading, others = (
            self._flattened(part) if part else self.flat[:0]
            for part in (ordered[: self._leading], ordered[self._leading :])
        )
        self._step.add_(1)
        first, second = group["betas"]
        with on(self.flat.device):
            adam_kernel[(ceil_div(len(self.flat), _BLOCK),)](
                self.flat, leading, others, self._means, self._squares, self._step, rate, 1 - first,
                1 - second, math.log2(first) if first else -1e30, math.log2(second) if second else -1e30,
                float(group["weight_decay"]), float(group["eps"]), self._split, len(self.flat),
                BLOCK=_BLOCK,
            )  # fmt: skip

    def _flattened(self, tensors: Sequence[Tensor]) -> Tensor:
        """All tensors in one, each in its own order in memory, with zeros up to the next whole 64 numbers."""
        zeros = self._zeros[tensors[0].dtype]
        parts: list[Tensor] = []
        for tensor in tensors:
            own = tensor.detach().as_strided((tensor.numel(),), (1,))
            parts += [own, zeros[: _padded_size(tensor) - tensor.numel()]]
        return torch.cat(parts)


def _padded_size(tensor: Tensor) -> int:
    return -(-tensor.numel() // _ALIGNED) * _ALIGNED


def _views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that were flattened, as views."""
    views, at = [], 0
    for tensor in like:
        views.append(flat.as_strided(tensor.shape, tensor.stride(), at))
        at += _padded_size(tensor)
    return views
