"""`log_to`: the progress of a training in a tracker of experiments, as far as it is public."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.training.run import Progress, Watch


def log_to(tracker: Any) -> Watch:
    """Return a `watch` for `fit` that logs ε spent, δ and the steps planned, by the step.

    The tracker is the module `mlflow`, a run of Weights & Biases, a `SummaryWriter` of TensorBoard, or a
    function of a dict of numbers and a step. If it fails there is a warning, and it is left alone from then
    on: the training, which is paid for, goes on.

    >>> from dpsinkhorn import DPSinkhorn
    >>> model = DPSinkhorn(epsilon=10, recipe="mixture", verbose=False)
    >>> lines = []
    >>> _ = model.fit("digits", watch=log_to(lambda values, step: lines.append((step, *values))))
    >>> lines[-1]
    (5, 'epsilon', 'delta', 'steps_planned')
    """
    log: Callable[[Mapping[str, float], int], Any] | None = _log_function(tracker)

    def watch(now: Progress) -> bool:
        nonlocal log
        values = {"epsilon": now.epsilon, "delta": now.delta, "steps_planned": float(now.block.horizon)}
        try:
            if log is not None:
                log(values, now.block.step)
        except Exception as error:
            log = None
            reason = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(f"no more is logged, since the tracker failed: {reason}", stacklevel=2)
        return False

    return watch


def _log_function(tracker: Any) -> Callable[[Mapping[str, float], int], Any]:
    """Return how to log numbers by their names, at a step."""
    if hasattr(tracker, "add_scalar"):  # TensorBoard
        return lambda values, step: [tracker.add_scalar(name, value, step) for name, value in values.items()]
    if hasattr(tracker, "log_metrics"):  # MLflow
        return lambda values, step: tracker.log_metrics(values, step=step)
    if hasattr(tracker, "log"):  # Weights & Biases
        return lambda values, step: tracker.log(values, step=step)
    if callable(tracker):
        return lambda values, step: tracker(values, step)
    raise TrainingError(
        f"a {type(tracker).__name__} is no tracker; give the module mlflow, a run of Weights & Biases, a "
        "SummaryWriter of TensorBoard, or a function of a dict of numbers and a step"
    )
