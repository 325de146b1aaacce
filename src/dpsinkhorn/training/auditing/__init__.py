"""Games against our own code: scores for `dpsinkhorn.privacy.audit`, made by the sanitizers and the loop."""

from dpsinkhorn.training.auditing.canaries import Canaries, plant_canaries
from dpsinkhorn.training.auditing.run import RunAudit, RunBounds, audit_run
from dpsinkhorn.training.auditing.step import StepAudit, StepGame, StepSetting, audit_step

__all__ = [
    "Canaries",
    "RunAudit",
    "RunBounds",
    "StepAudit",
    "StepGame",
    "StepSetting",
    "audit_run",
    "audit_step",
    "plant_canaries",
]
