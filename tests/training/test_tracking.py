"""`log_to`: what trackers are told, and what they are not."""

from __future__ import annotations

import importlib
import math

import pytest

from dpsinkhorn.training import TrainingError, log_to
from dpsinkhorn.training.run import Progress
from dpsinkhorn.training.trainer import Block

NOW = Progress(Block(step=40, horizon=100, seconds=2.5, steps=8, gradient_norm=7.7), 1.25, 48, 1e-5)
PUBLIC = {"epsilon": 1.25, "delta": 1e-5, "steps_planned": 100.0}


class Mlflow:
    def log_metrics(self, metrics, step=None, synchronous=None, run_id=None):  # noqa: ARG002
        self.seen = metrics, step


class WandbRun:
    def log(self, data, step=None, commit=None):  # noqa: ARG002
        self.seen = data, step


class Writer:
    seen = ({}, None)

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):  # noqa: ARG002
        self.seen = self.seen[0] | {tag: scalar_value}, global_step


class Function:
    def __call__(self, values, step):
        self.seen = values, step


@pytest.mark.parametrize("kind", [Mlflow, WandbRun, Writer, Function])
def test_every_tracker_is_told_what_is_public_and_no_more(kind):
    tracker = kind()
    assert log_to(tracker)(NOW) is False  # the training goes on
    assert tracker.seen == (PUBLIC, 40)


def test_a_tracker_that_fails_is_left_alone():
    calls = []

    def broken(_values, step):
        calls.append(step)
        raise ConnectionError("no route\nto host")

    watch = log_to(broken)
    with pytest.warns(UserWarning, match="no more is logged, since the tracker failed: no route to host"):
        assert watch(NOW) is False
    assert watch(NOW) is False
    assert calls == [40]


def test_what_is_no_tracker():
    with pytest.raises(TrainingError, match="a list is no tracker; give the module mlflow"):
        log_to([])


def test_tensorboard_itself(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: only a stand-in was tried")
    loader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    with importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(tmp_path)) as writer:
        log_to(writer)(NOW)
    events = loader.EventAccumulator(str(tmp_path)).Reload()
    found = {tag: events.Scalars(tag)[0] for tag in PUBLIC}
    assert {event.step for event in found.values()} == {40}
    assert math.isclose(found["epsilon"].value, 1.25)


def test_mlflow_itself(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: only a stand-in was tried")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        log_to(mlflow)(NOW)
    assert mlflow.get_run(run.info.run_id).data.metrics == PUBLIC
    (line,) = mlflow.MlflowClient().get_metric_history(run.info.run_id, "epsilon")
    assert (line.step, line.value) == (40, 1.25)


def test_wandb_itself(tmp_path):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: only a stand-in was tried")
    with wandb.init(mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True)) as run:
        log_to(run)(NOW)
        run.log({}, step=41)  # a step is complete once there is another, or at the end
        assert {name: run.summary[name] for name in PUBLIC} == PUBLIC
