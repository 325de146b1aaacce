"""Steps in fixed shapes, replayed from one captured graph: nothing is left to do on the host in a step.

What is random is drawn for many steps at once, on a stream of its own, while the steps before are still
running: Poisson samples, noise, latents, labels. The draws are the same in law as those of single steps, and
the noise is as exact. Only steps that were charged are drawn for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.generators import draw_latents
from dpsinkhorn.mechanisms.shared.base import GradientBarrier, Sample, pulled_back
from dpsinkhorn.mechanisms.shared.steps import Drawn, FixedStep, Steps
from dpsinkhorn.privacy import poisson_sample
from dpsinkhorn.privacy.noise import normal_cells
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.records import StoredRecords
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps.plain import labels_are_fixed, render, training_labels, with_resampled

_WARM_UP = 3  # steps taken before a graph is captured: libraries set themselves up in them
_IN_A_ROW = 8  # steps of the longer graph: a GPU takes some microseconds from one graph to the next
_MOST_STEPS = 256
_MOST_NUMBERS = 2**25  # of noise, or of rows, drawn at a time


@dataclass(frozen=True, eq=False)
class _Block:
    """What several steps need, drawn beforehand."""

    steps: int
    inputs: dict[str, Tensor]
    fits: list[bool]
    drawn: Drawn


@dataclass(frozen=True, eq=False)
class _Captured:
    """Some steps, to be replayed."""

    graph: torch.cuda.CUDAGraph
    gradients: list[Tensor]


class FixedSteps(Steps):
    """Steps of a barrier that offers them in fixed shapes.

    Args:
        stored: the private records, on the device.
        fixed: the barrier's step.
        labels: of all generated images of a step, where they are the same at every step.
        capture: replay a captured graph, on CUDA; without, the same operations one by one.
    """

    def __init__(
        self,
        plan: Plan,
        state: TrainingState,
        stored: StoredRecords,
        barrier: GradientBarrier,
        fixed: FixedStep,
        labels: Tensor | None,
        probabilities: tuple[float, ...],
        *,
        horizon: int,
        capture: bool,
    ) -> None:
        self._plan, self._state, self._stored = plan, state, stored
        self._barrier, self._fixed = barrier, fixed
        self._probabilities, self._horizon = probabilities, horizon
        self._pixels = stored.dimension
        numbers = max(fixed.noise_rows * self._pixels, int(plan.expected_batch), 1)
        self.multiple = max(1, min(_MOST_STEPS, _MOST_NUMBERS // numbers))
        self.how_taken = f"{self.multiple} at a time"
        device = state.device
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._labels = labels
        self._draw_labels = not labels_are_fixed(plan)
        self._buffers: dict[torch.dtype, Tensor] = {}
        self._names: dict[torch.dtype, list[str]] = {}
        self._shapes: dict[str, torch.Size] = {}
        self._capture = capture
        self._captured: dict[int, _Captured] = {}  # by their number of steps
        self._taken = 0
        if capture:
            self._steps_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._draws_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def take(self, count: int) -> None:
        if not self._capture:
            self._take(count)
            return
        outside = torch.cuda.current_stream(self._state.device)
        for stream in (self._steps_stream, self._draws_stream):  # the records, say, are still on their way
            stream.wait_stream(outside)
        try:
            with torch.cuda.stream(self._steps_stream):
                self._take(count)
        except BaseException:  # what is under way writes to memory that others are about to get
            torch.cuda.synchronize(self._state.device)
            raise
        outside.wait_stream(self._steps_stream)

    def _take(self, count: int) -> None:
        sizes = [self.multiple] * (count // self.multiple)
        if count % self.multiple:
            sizes.append(count % self.multiple)
        block = self._draw(sizes[0])
        for following in [*sizes[1:], 0]:
            self._load(block)
            step = 0
            while step < block.steps:
                row = block.fits[step : step + _IN_A_ROW]
                whole = bool(self._captured) and len(row) == _IN_A_ROW and all(row)
                taken = _IN_A_ROW if whole else 1
                if row[0]:
                    self._steps(taken)
                else:
                    self._plain_step(block, step)
                step += taken
                self._state.step += taken
            if following:
                block = self._draw(following)  # the device is still busy with the steps above

    # ---- draws

    def _draw(self, steps: int) -> _Block:
        if not self._capture:
            return self._drawn(steps)
        stepping = self._steps_stream
        with torch.cuda.stream(self._draws_stream):
            block = self._drawn(steps)
        stepping.wait_stream(self._draws_stream)
        drawn = block.drawn
        for value in (*block.inputs.values(), drawn.step, drawn.rows, drawn.kind):
            value.record_stream(stepping)  # read there, after they are dropped here
        return block

    def _drawn(self, steps: int) -> _Block:
        plan, state, n = self._plan, self._state, self._plan.generated
        device = state.device
        extra = self._barrier.resampled(n)
        drawn = self._stored.drawn(
            poisson_sample(steps * self._stored.count, plan.sampling_rate, state.noise, device=device), steps
        )
        inputs, fits = self._fixed.inputs_of(drawn)
        if self._fixed.noise_rows:
            shape = (steps, self._fixed.noise_rows, self._pixels)
            inputs["cells"] = normal_cells(state.noise, shape, device=device)
        latent = state.generator.config.latent
        inputs["latents"] = draw_latents(steps * (n + extra), latent, state.random, device).view(
            steps, n + extra, latent
        )
        if self._draw_labels:
            labels = training_labels(plan, steps * n, self._probabilities, state.random, device)
            assert labels is not None
            every = with_resampled(labels.view(steps, n), extra)
            assert every is not None
            inputs["labels"] = every
        rates = [state.rate_at(state.step + step, self._horizon) for step in range(steps)]
        inputs["rate"] = torch.tensor(rates, dtype=torch.float32, device=device)
        return _Block(steps, inputs, fits.tolist(), drawn)

    def _load(self, block: _Block) -> None:
        """What the block's steps need into the buffers that steps read: one for each type of number."""
        names: dict[torch.dtype, list[str]] = {}
        for name, value in block.inputs.items():
            names.setdefault(value.dtype, []).append(name)
            self._shapes[name] = value.shape[1:]
        self._names = names
        for dtype in names:
            rows = torch.cat([block.inputs[name].reshape(block.steps, -1) for name in names[dtype]], dim=1)
            if dtype not in self._buffers:
                self._buffers[dtype] = rows.new_zeros(self.multiple, rows.shape[1])
            self._buffers[dtype][: block.steps].copy_(rows)
        self._slot.zero_()

    def _read(self) -> dict[str, Tensor]:
        """What the present step needs."""
        inputs = {}
        for dtype, names in self._names.items():
            row = self._buffers[dtype].index_select(0, self._slot)[0]
            sizes = [self._shapes[name].numel() for name in names]
            for name, part in zip(names, torch.split(row, sizes), strict=True):
                inputs[name] = part.view(self._shapes[name])
        return inputs

    # ---- a step

    def _steps(self, count: int) -> None:
        if not self._capture or self._taken < _WARM_UP:
            for _ in range(count):
                self._body()
        else:
            if count not in self._captured:
                self._captured[count] = self._capture_steps(count)
            captured = self._captured[count]
            captured.graph.replay()
            self._state.gradients = captured.gradients
        self._taken += count

    def _capture_steps(self, count: int) -> _Captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._steps_stream, capture_error_mode="thread_local"):
            for _ in range(count):
                self._body()
        return _Captured(graph, self._state.gradients)

    def _body(self) -> None:
        state = self._state
        inputs = self._read()
        labels = inputs.pop("labels", self._labels)
        latents, rate, cells = inputs.pop("latents"), inputs.pop("rate"), inputs.pop("cells", None)
        weights = state.weights()
        points = render(state, self._barrier, self._plan.generated, latents, labels, weights)
        with torch.no_grad():
            gradient = self._fixed.gradient(points, labels, inputs, cells)
        state.update(rate, pulled_back(points, gradient, list(weights.values())))
        self._slot.add_(1)

    def _plain_step(self, block: _Block, step: int) -> None:
        """A step whose sample has no room in the fixed shapes. Its noise is drawn anew."""
        state, n = self._state, self._plan.generated
        labels = block.inputs["labels"][step] if "labels" in block.inputs else self._labels
        points = render(state, self._barrier, n, block.inputs["latents"][step], labels)
        mine = block.drawn.step == step
        rows, kinds = block.drawn.rows[mine], block.drawn.kind[mine]
        sample = Sample(self._stored.read(rows).float(), kinds if self._plan.facts.classes else None)
        self._barrier.backward(points, labels, sample, state.parameters, state.noise)
        state.update(block.inputs["rate"][step])
        self._slot.add_(1)
