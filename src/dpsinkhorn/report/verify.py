"""What a reader can check, how, and what should come out."""

from __future__ import annotations

from dataclasses import dataclass

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.privacy import Adjacency, Charge, format_epsilon
from dpsinkhorn.privacy.charges import Part, flatten
from dpsinkhorn.release import PrivacyStatement
from dpsinkhorn.report.curve import steps_of
from dpsinkhorn.report.gather import Findings

__all__ = ["Check", "own_checks", "with_ledger"]


@dataclass(frozen=True)
class Check:
    """Something to run, and what it should print."""

    what: str
    code: str
    expected: str


def own_checks(found: Findings) -> list[Check]:
    """What can be checked with this page, and the release where there is one."""
    privacy, checks = found.privacy, []
    if not privacy.private:
        return []
    if found.release is not None:
        own = "" if found.release.generator.module_class is None else ", generator=TheClass"
        code = f'import dpsinkhorn\nprivacy = dpsinkhorn.load("release"{own}).privacy\n'
        code += "print(privacy.epsilon, privacy.recomputed_epsilon())"
        stated = format_epsilon(privacy.epsilon, digits=6)
        expected = f"{stated}, rounded up, twice; the second number must not be above the first"
        checks.append(Check("ε, from the charges in the release", code, expected))
    command = _command(found)
    if command is not None:
        expected = f"epsilon {format_epsilon(privacy.epsilon)}"
        checks.append(Check("ε, from the settings alone", command, expected))
    lines = _without_us(privacy)
    if lines is not None:
        about = "at most" if privacy.accountant == "rdp-classic" else "about"
        expected = f"{about} {format_epsilon(privacy.epsilon)}; it rounds in its own way"
        checks.append(Check("ε, by dp-accounting of Google, without dpsinkhorn", lines, expected))
    if found.generator_digest is not None:
        code = "sha256sum release/generator.safetensors"
        checks.append(Check("that the file is the one described here", code, found.generator_digest))
    return checks


def with_ledger(found: Findings) -> Check | None:
    """What can be checked with the curator's ledger beside it."""
    privacy = found.privacy
    if not privacy.private or privacy.ledger_digest is None:
        return None
    later = None if found.ledger is None else found.ledger.later
    spent, accountant = (
        (privacy.epsilon, privacy.accountant) if later is None else (later.epsilon, later.accountant)
    )
    code = (
        "from dpsinkhorn.privacy import epsilon, read_ledger\n"
        "from dpsinkhorn.privacy.journal import read_journal\n"
        f'digest = "{privacy.ledger_digest}"\n'
        'print(digest in [entry.digest for entry in read_journal("ledger.jsonl")])\n'
        'ledger = read_ledger("ledger.jsonl")\n'
        f'print(epsilon(ledger.total(), {privacy.delta!r}, "{accountant}"))'
    )
    expected = (
        f"True, and {format_epsilon(spent, digits=6)}, rounded up: more if the data were used again since"
    )
    return Check("that every entry is as it was written, and what they cost together", code, expected)


def _command(found: Findings) -> str | None:
    """The command that computes ε again, where one command does: all that was charged is steps of this plan.

    They can be those of several runs on a ledger: ε is that of all of them.
    """
    plan, charges = found.plan, found.privacy.charges
    if plan is None or not plan.private or len(charges) != 1:
        return None
    steps = steps_of(Charge.from_json(dict(charges[0])), plan.step_charge)
    if not steps:
        return None
    mechanism = plan.recipe.privacy.mechanism
    rows = f" --rows {plan.generated}" if plan.kind.clips_rows else ""
    return (
        f"dpsinkhorn privacy epsilon --mechanism {mechanism}{rows} "
        f"--noise-multiplier {plan.noise_multiplier!r} --sampling-rate {plan.sampling_rate!r} "
        f"--steps {steps} --delta {plan.delta!r} "
        f"--accountant {plan.accountant}"
    )


def _without_us(privacy: PrivacyStatement) -> str | None:
    """A few lines of dp-accounting. Its noise multipliers under replace-one are not ours: then none."""
    parts = flatten(privacy.total().event)
    lines = [_line(part) for part in parts]
    if Adjacency(privacy.adjacency) is not Adjacency.ADD_OR_REMOVE_ONE or not lines or None in lines:
        return None
    accountant = "pld.PLDAccountant" if privacy.accountant == "pld" else "rdp.RdpAccountant"
    composed = "\n".join(line for line in lines if line is not None)
    return (
        f"import dp_accounting as dp  # pip install dp-accounting\naccountant = dp.{accountant}()\n"
        f"{composed}\nprint(accountant.get_epsilon({privacy.delta!r}))"
    )


def _line(part: Part) -> str | None:
    event, rate = part.event, None
    if isinstance(event, dp.PoissonSampledDpEvent):
        event, rate = event.event, float(event.sampling_probability)
    if not isinstance(event, dp.GaussianDpEvent):
        return None
    text = f"dp.GaussianDpEvent({float(event.noise_multiplier)!r})"
    text = text if rate is None else f"dp.PoissonSampledDpEvent({rate!r}, {text})"
    return f"accountant.compose({text}, {part.count})"
