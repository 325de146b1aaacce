"""What a reader can check, how, and what should come out."""

from __future__ import annotations

from typing import NamedTuple

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.privacy import Adjacency, Charge, format_epsilon
from dpsinkhorn.privacy.charges import Part, flatten
from dpsinkhorn.release import PrivacyStatement
from dpsinkhorn.report.curve import steps_of
from dpsinkhorn.report.gather import Findings


class Check(NamedTuple):
    """Something to run, and what it should print."""

    what: str
    code: str
    expected: str


def own_checks(found: Findings) -> list[Check]:
    """What can be checked with this page, and the release where there is one."""
    privacy, checks = found.privacy, []
    if not privacy.private:
        return []
    stated = format_epsilon(privacy.epsilon)
    if found.release is not None:
        own = "" if found.release.generator.module_class is None else ", generator=TheClass"
        code = f'import dpsinkhorn\nprivacy = dpsinkhorn.load("release"{own}).privacy\n'
        code += "print(privacy.epsilon, privacy.recomputed_epsilon())"
        expected = f"{format_epsilon(privacy.epsilon, digits=6)}, rounded up, twice; "
        expected += "the second number must not be above the first"
        checks.append(Check("ε, from the charges in the release", code, expected))
    if command := _command(found):
        checks.append(Check("ε, from the settings alone", command, f"epsilon {stated}"))
    if lines := _without_us(privacy):
        about = "at most" if privacy.accountant == "rdp-classic" else "about"
        expected = f"{about} {stated}; it rounds in its own way"
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
    code = (
        "from dpsinkhorn.privacy import epsilon, read_ledger\n"
        "from dpsinkhorn.privacy.journal import read_journal\n"
        f'digest = "{privacy.ledger_digest}"\n'
        'print(digest in [entry.digest for entry in read_journal("ledger.jsonl")])\n'
        'ledger = read_ledger("ledger.jsonl")\n'
        f'print(epsilon(ledger.total(), {privacy.delta!r}, "{(later or privacy).accountant}"))'
    )
    spent = format_epsilon((later or privacy).epsilon, digits=6)
    expected = f"True, and {spent}, rounded up: more if the data were used again since"
    return Check("that every entry is as it was written, and what they cost together", code, expected)


def _command(found: Findings) -> str | None:
    """The command that computes ε again, where one command does: all that was charged is steps of this plan.

    They can be those of several runs on a ledger: ε is that of all of them.
    """
    plan, charges = found.plan, found.privacy.charges
    if plan is None or not plan.private or len(charges) != 1:
        return None
    steps = steps_of(Charge.from_json(dict(charges[0])), plan.step_charge)
    rows = f" --rows {plan.generated}" if plan.kind.clips_rows else ""
    command = (
        f"dpsinkhorn privacy epsilon --mechanism {plan.recipe.privacy.mechanism}{rows} "
        f"--noise-multiplier {plan.noise_multiplier!r} --sampling-rate {plan.sampling_rate!r} "
        f"--steps {steps} --delta {plan.delta!r} --accountant {plan.accountant}"
    )
    return command if steps else None


def _without_us(privacy: PrivacyStatement) -> str | None:
    """A few lines of dp-accounting. Its noise multipliers under replace-one are not ours: then none."""
    lines = [_line(part) for part in flatten(privacy.total().event)]
    if Adjacency(privacy.adjacency) is not Adjacency.ADD_OR_REMOVE_ONE or not lines or "" in lines:
        return None
    accountant = "pld.PLDAccountant" if privacy.accountant == "pld" else "rdp.RdpAccountant"
    begin = f"import dp_accounting as dp  # pip install dp-accounting\naccountant = dp.{accountant}()"
    return "\n".join((begin, *lines, f"print(accountant.get_epsilon({privacy.delta!r}))"))


def _line(part: Part) -> str:
    """A charge in dp-accounting's words; empty where it has none that are ours."""
    sampled = isinstance(part.event, dp.PoissonSampledDpEvent)
    event = part.event.event if sampled else part.event
    if not isinstance(event, dp.GaussianDpEvent):
        return ""
    text = f"dp.GaussianDpEvent({float(event.noise_multiplier)!r})"
    if sampled:
        text = f"dp.PoissonSampledDpEvent({float(part.event.sampling_probability)!r}, {text})"
    return f"accountant.compose({text}, {part.count})"
