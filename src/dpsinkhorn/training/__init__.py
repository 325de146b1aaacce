"""Private training: where the privacy barrier stands, the loop, checkpoints, recipes."""

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.training.estimator import DPSinkhorn
from dpsinkhorn.training.plan import Facts, Plan, Request, make_plan, plan_for
from dpsinkhorn.training.recipe import Recipe, choose_recipe, load_recipe, recipe_names
from dpsinkhorn.training.records import facts_of
from dpsinkhorn.training.run import Run
from dpsinkhorn.training.watching import Progress, Saving, log_to

__all__ = [
    "DPSinkhorn",
    "Facts",
    "Plan",
    "Progress",
    "Recipe",
    "Request",
    "Run",
    "Saving",
    "TrainingError",
    "choose_recipe",
    "facts_of",
    "load_recipe",
    "log_to",
    "make_plan",
    "plan_for",
    "recipe_names",
]
