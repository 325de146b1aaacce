"""Games against our own mechanisms, loop and trainings, judged by `dpsinkhorn.privacy.audit`."""

from dpsinkhorn.training.auditing.canaries import Canaries, plant_canaries
from dpsinkhorn.training.auditing.replay import Neighbour, TrainingReplay
from dpsinkhorn.training.auditing.run import RunAudit, RunBounds, audit_run
from dpsinkhorn.training.auditing.search import REPLAYED_RECORDS, replay_plan, replay_training
from dpsinkhorn.training.auditing.step import StepAudit, StepGame, StepSetting, audit_step

__all__ = [
    "REPLAYED_RECORDS",
    "Canaries",
    "Neighbour",
    "RunAudit",
    "RunBounds",
    "StepAudit",
    "StepGame",
    "StepSetting",
    "TrainingReplay",
    "audit_run",
    "audit_step",
    "plant_canaries",
    "replay_plan",
    "replay_training",
]
