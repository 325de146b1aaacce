"""The results of `dpsinkhorn audit` as they are told: as a table, as JSON, as a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch is slow to import: `--help` does without
    from dpsinkhorn.privacy.audit import OneRunBound
    from dpsinkhorn.training.auditing import RunAudit, RunBounds, StepAudit

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
        from dpsinkhorn.cli._plots import draw_audit

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
            *(
                (f"lower bound, from every step ({name})", _guesses(bound))
                for name, bound in _reckonings(found.every_step).items()
            ),
            ("lower bound, from the generator (the largest)", _guesses(found.final.largest)),
            ("confidence of each", f"{100 * found.every_step.steinke.confidence:g} %"),
            ("delta", f"{plan.delta:g}"),
            (
                "canaries",
                f"{len(found.included):,} {plan.facts.unit}s, of which {int(found.included.sum()):,} were in",
            ),
            ("mechanism", plan.recipe.privacy.mechanism),
            ("noise multiplier", f"{plan.noise_multiplier:.5g}"),
            ("sampling rate", f"{plan.sampling_rate:.5g}"),
            ("steps", f"{plan.steps:,}"),
            ("recipe", plan.recipe.name),
        ]

    def told(self) -> str:
        return (
            f"Made-up {self.audit.plan.facts.unit}s were put into the data by coin flips, and guessed at by "
            "one who knows all other records. Nothing was released; keep this output with the data."
        )

    def to_json(self) -> dict[str, Any]:
        found, plan = self.audit, self.audit.plan
        return {
            "game": "run",
            "private": False,
            "claimed_epsilon": found.claimed,
            "epsilon_lower_bound": found.bound,
            "delta": plan.delta,
            "confidence": found.every_step.steinke.confidence,
            "every_step": asdict(found.every_step),
            "final": asdict(found.final),
            "canaries": len(found.included),
            "included": int(found.included.sum()),
            "unit": plan.facts.unit,
            "mechanism": plan.recipe.privacy.mechanism,
            "noise_multiplier": plan.noise_multiplier,
            "sampling_rate": plan.sampling_rate,
            "steps": plan.steps,
            "recipe": plan.recipe.name,
        }

    def draw(self, path: Path) -> None:
        from dpsinkhorn.cli._plots import draw_audit

        found = self.audit
        draw_audit(
            path,
            title=f"one training of {found.plan.steps} steps, {len(found.included):,} canaries; not private",
            scores={
                "canaries left out": found.step_scores[~found.included],
                "canaries in the data": found.step_scores[found.included],
            },
            bounds={
                **{
                    name.replace(", ", ",\n").replace(" of ", "\nof "): bound.epsilon
                    for name, bound in _reckonings(found.every_step).items()
                },
                "the generator": found.final.largest.epsilon,
            },
            claims={"claimed": found.claimed},
            delta=found.plan.delta,
            counted="canaries",
        )


def _reckonings(bounds: RunBounds) -> dict[str, OneRunBound]:
    """The bounds by what they rest on."""
    return {
        "Steinke et al.": bounds.steinke,
        "f-DP, nothing assumed": bounds.f_dp,
        f"f-DP, given {bounds.f_dp_gaussian.assumption}": bounds.f_dp_gaussian,
    }


def _guesses(bound: OneRunBound) -> str:
    from dpsinkhorn.privacy import format_lower_bound

    return f"{format_lower_bound(bound.epsilon)} ({bound.correct} of {bound.guesses} guesses right)"
