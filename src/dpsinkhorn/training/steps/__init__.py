"""How the steps of a training are taken: one by one, or replayed from a captured graph."""

from dpsinkhorn.mechanisms.shared.steps import Steps
from dpsinkhorn.training.steps.captured import FixedSteps
from dpsinkhorn.training.steps.images import generate, training_labels
from dpsinkhorn.training.steps.plain import PlainSteps, make_steps

__all__ = ["FixedSteps", "PlainSteps", "Steps", "generate", "make_steps", "training_labels"]
