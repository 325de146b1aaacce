"""The results of `dpsinkhorn audit` as they are told: as a table, as JSON, as a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch is slow to import: `--help` does without
    from dpsinkhorn.privacy.audit import OneRunBound
    from dpsinkhorn.training.auditing import RunAudit, StepAudit

__all__ = ["RunResult", "StepResult"]


@dataclass(frozen=True)
class StepResult:
    """An audit of steps, as it is told."""

    audit: StepAudit
    published: bool
    """Whether the paper's count is held against."""

    title = "Audit of single steps"

    @property
    def claimed(self) -> float:
        published = self.audit.published
        return published if self.published and published is not None else self.audit.claimed

    @property
    def bound(self) -> float:
        return self.audit.bound

    def rows(self) -> list[tuple[str, str]]:
        from dpsinkhorn.privacy import format_epsilon, format_lower_bound

        found, setting = self.audit, self.audit.setting
        rows = [
            ("claimed epsilon", format_epsilon(found.claimed)),
            ("lower bound, by threshold", format_lower_bound(found.threshold.epsilon)),
            (f"lower bound, given {found.gaussian.assumption}", format_lower_bound(found.gaussian.epsilon)),
            ("confidence of each", f"{100 * found.threshold.confidence:g} %"),
            ("delta", f"{found.delta:g}"),
            ("mechanism", setting.mechanism),
            ("noise multiplier", f"{setting.noise_multiplier:.5g}"),
            ("sampling rate", f"{setting.sampling_rate:.5g}"),
            ("steps", f"{setting.steps:,}"),
            ("repetitions", f"{len(found.present):,} of each data set"),
        ]
        if found.published is not None:
            rows.insert(1, ("published epsilon (not a guarantee)", format_epsilon(found.published)))
            rows.insert(7, ("rows", str(setting.rows)))
        return rows

    def told(self) -> str:
        return (
            "Two data sets, of no and of one record, the worst there are for this mechanism, are told apart "
            "by what the real code releases."
        )

    def to_json(self) -> dict[str, Any]:
        found = self.audit
        return {
            "game": "step",
            "claimed_epsilon": found.claimed,
            "published_epsilon": found.published,
            "epsilon_lower_bound": found.bound,
            "delta": found.delta,
            "confidence": found.threshold.confidence,
            "threshold": asdict(found.threshold),
            "gaussian": asdict(found.gaussian),
            "repetitions": len(found.present),
            **asdict(found.setting),
        }

    def draw(self, path: Path) -> None:
        from dpsinkhorn.cli._audit_plots import draw_audit

        found = self.audit
        steps = "1 step" if found.setting.steps == 1 else f"{found.setting.steps} steps"
        draw_audit(
            path,
            title=f"{found.setting.mechanism}: {steps}, {len(found.present):,} repetitions",
            scores={"without the record": found.absent, "with the record": found.present},
            bounds={
                "by threshold": found.threshold.epsilon,
                found.gaussian.assumption: found.gaussian.epsilon,
            },
            claims={"claimed": found.claimed}
            | ({} if found.published is None else {"published (no guarantee)": found.published}),
            delta=found.delta,
            counted="releases",
        )


@dataclass(frozen=True)
class RunResult:
    """An audit of a training, as it is told."""

    audit: RunAudit

    title = "Audit of one training"

    @property
    def claimed(self) -> float:
        return self.audit.claimed

    @property
    def bound(self) -> float:
        return self.audit.bound

    def rows(self) -> list[tuple[str, str]]:
        from dpsinkhorn.privacy import format_epsilon

        found, plan = self.audit, self.audit.plan
        return [
            ("claimed epsilon", format_epsilon(found.claimed)),
            ("lower bound, from every step", _guesses(found.every_step)),
            ("lower bound, from the generator", _guesses(found.final)),
            ("confidence of each", f"{100 * found.every_step.confidence:g} %"),
            ("delta", f"{plan.delta:g}"),
            ("canaries", f"{len(found.included):,}, of which {int(found.included.sum()):,} were in"),
            ("mechanism", plan.recipe.privacy.mechanism),
            ("noise multiplier", f"{plan.noise_multiplier:.5g}"),
            ("sampling rate", f"{plan.sampling_rate:.5g}"),
            ("steps", f"{plan.steps:,}"),
            ("recipe", plan.recipe.name),
        ]

    def told(self) -> str:
        return (
            "Made-up records were put into the data by coin flips, and guessed at by one who knows all other "
            "records. Nothing was released; keep this output with the data."
        )

    def to_json(self) -> dict[str, Any]:
        found, plan = self.audit, self.audit.plan
        return {
            "game": "run",
            "private": False,
            "claimed_epsilon": found.claimed,
            "epsilon_lower_bound": found.bound,
            "delta": plan.delta,
            "confidence": found.every_step.confidence,
            "every_step": asdict(found.every_step),
            "final": asdict(found.final),
            "canaries": len(found.included),
            "included": int(found.included.sum()),
            "mechanism": plan.recipe.privacy.mechanism,
            "noise_multiplier": plan.noise_multiplier,
            "sampling_rate": plan.sampling_rate,
            "steps": plan.steps,
            "recipe": plan.recipe.name,
        }

    def draw(self, path: Path) -> None:
        from dpsinkhorn.cli._audit_plots import draw_audit

        found = self.audit
        draw_audit(
            path,
            title=f"one training of {found.plan.steps} steps, {len(found.included):,} canaries; not private",
            scores={
                "canaries left out": found.step_scores[~found.included],
                "canaries in the data": found.step_scores[found.included],
            },
            bounds={"from every step": found.every_step.epsilon, "from the generator": found.final.epsilon},
            claims={"claimed": found.claimed},
            delta=found.plan.delta,
            counted="canaries",
        )


def _guesses(bound: OneRunBound) -> str:
    from dpsinkhorn.privacy import format_lower_bound

    return f"{format_lower_bound(bound.epsilon)} ({bound.correct} of {bound.guesses} guesses right)"
