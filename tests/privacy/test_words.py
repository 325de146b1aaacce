"""Figures of privacy are rounded to the safe side, wherever they are printed."""

from __future__ import annotations

import ast
import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import dpsinkhorn
from dpsinkhorn.privacy import (
    Budget,
    BudgetExceededError,
    GaussianMechanism,
    Ledger,
    epsilon,
    format_epsilon,
    format_lower_bound,
    meaning,
)

SOURCE = Path(dpsinkhorn.__file__).parent

# Expressions that may be rounded to the nearest: what a user typed, and what is no upper bound of an ε.
NEAREST = {
    "cli/_transport.py": {"row.epsilon"},
    "privacy/accounting.py": {"self.budget"},
    "training/plan.py": {"plan.budget_epsilon"},
    "transport/charging.py": {"self.begin.epsilon"},
    "transport/noisy.py": {"target", "_LARGEST_EPSILON"},
}
NAMES = re.compile(r"epsilon|\bspent\b|\bbudget\b|published|\bclaimed\b", re.IGNORECASE)
BEFORE = re.compile(r"(epsilon|ε)( is| of|,| =| ≤|:)? ?$", re.IGNORECASE)
ROUNDS = re.compile(r"[.0-9,+]*[gGfFeE%]$|\.[0-9]+$")


@given(st.floats(1e-6, 1e6), st.integers(1, 8))
def test_epsilon_is_never_printed_as_less(value, digits):
    shown = format_epsilon(value, digits)
    assert value <= float(shown) <= value * (1 + 1.0001 * 10 ** (1 - digits))
    assert len(Decimal(shown).normalize().as_tuple().digits) <= digits


@given(st.floats(1e-6, 1e6), st.integers(1, 8))
def test_a_lower_bound_is_never_printed_as_more(value, digits):
    shown = format_lower_bound(value, digits)
    assert value * (1 - 1.0001 * 10 ** (1 - digits)) <= float(shown) <= value


@pytest.mark.parametrize("value", [0.0, 1.0, 10.0, 0.5, 9999.0, math.inf])
def test_what_needs_no_rounding_is_printed_as_it_is(value):
    assert float(format_epsilon(value)) == value


def test_a_full_ledger_does_not_say_less_than_was_spent(tmp_path):
    charge = GaussianMechanism(1.0, 2.0).charge()
    spent = epsilon(charge, 1e-5)
    assert float(f"{spent:.6g}") < spent, "else this shows nothing"
    with Ledger.open(tmp_path / "ledger.jsonl", epsilon, budget=Budget(spent, 1e-5)) as ledger:
        ledger.spend(charge, run="first")
        with pytest.raises(BudgetExceededError) as refusal:
            ledger.spend(charge, run="second")
    allowed, told = re.findall(r"epsilon ([0-9.]+) at .*, ([0-9.]+) is spent", str(refusal.value))[0]
    assert spent <= float(told) <= float(allowed) <= spent * 1.00001


def beyond(mu, limit):
    """How likely the privacy loss of a Gaussian exceeds a limit: it is normal, of mean μ²/2 and spread μ."""
    return norm.sf((limit - mu**2 / 2) / mu)


def delta_of(mu, spent):
    """δ of a Gaussian at ε, in closed form."""
    return beyond(mu, spent) - math.exp(spent) * norm.sf((spent + mu**2 / 2) / mu)


def test_delta_is_not_the_chance_that_epsilon_is_passed():
    """It is likelier than δ: nothing we print may say that ε holds but for a probability of δ."""
    spent = epsilon(GaussianMechanism(1.0, 1 / 2.0004).charge(), 1e-5)
    assert delta_of(2.0004, spent) == pytest.approx(1e-5, rel=1e-3)
    assert beyond(2.0004, spent) > 3e-5
    assert "plus a probability of at most 1e-05 (delta)" in meaning(spent, 1e-5)
    for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.j2")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"(limit|ε|epsilon) may not hold|[Ee]xcept with a probability of {{ \S*delta_in_w", text
        )


@pytest.mark.parametrize("name", ["train", "privacy"])
def test_nor_do_the_options_say_so(name):
    text = (SOURCE / "cli" / f"{name}.py").read_text(encoding="utf-8")
    (told,) = re.findall(r'delta(?:Option = |: )Annotated\[\s*float(?: \| None)?,\s*"([^"]*)"', text, re.I)
    assert told.startswith("Probability added to what epsilon allows")


@given(st.floats(0.05, 6), st.floats(0.01, 30))
def test_twice_the_odds_except_with_twice_delta(mu, spent):
    """What the report says of ε and δ together, of Gaussians: odds grow by e^L, seldom by more than 2 e^ε."""
    assert beyond(mu, spent + math.log(2)) <= 2 * delta_of(mu, spent) + 1e-15


def rounded(code: str) -> list[tuple[int, str]]:
    """Lines and expressions that look like an ε, and are rounded to the nearest."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            text = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    text += str(part.value)
                    continue
                assert isinstance(part, ast.FormattedValue)
                name = ast.unparse(part.value)
                spec = "" if part.format_spec is None else ast.unparse(part.format_spec)[2:-1]
                if ROUNDS.search(spec) and (NAMES.search(name) or BEFORE.search(text)):
                    found.append((part.lineno, name))
                text = ""
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            first = ast.unparse(node.args[0]) if node.args else ""
            if called in ("round", "format", "np.round") and len(node.args) > 1 and NAMES.search(first):
                found.append((node.lineno, first))
            elif called.endswith(".format") and "{:" in called:
                found += [(node.lineno, ast.unparse(a)) for a in node.args if NAMES.search(ast.unparse(a))]
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mod)
            and isinstance(node.left, ast.Constant)
            and isinstance(node.left.value, str)
            and NAMES.search(ast.unparse(node.right))
        ):
            found.append((node.lineno, ast.unparse(node.right)))
    return [(line, name) for line, name in found if not name.endswith("delta")]


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('f"{spent:.4g}"', 1),
        ('f"epsilon {after:.3f}"', 1),
        ('f"ε = {x:g}"', 1),
        ('f"{float(value.epsilon):.6g} twice"', 1),
        ('f"{ledger.epsilon():.{digits}g}"', 1),
        ('"{:.4g}".format(epsilon)', 1),
        ('"%.4g" % spent', 1),
        ("round(published, 2)", 1),
        ('format(epsilon, ".3g")', 1),
        ('f"{format_epsilon(spent)} at delta {delta:g}"', 0),
        ('f"{epsilon!r}"', 0),
        ('f"epsilon at delta = {delta:g}"', 0),
    ],
)
def test_what_is_looked_for_is_found(code, count):
    assert len(rounded(code)) == count


def test_no_epsilon_is_rounded_to_the_nearest():
    """Not where it is an upper bound, which is what `format_epsilon` is for."""
    found = [
        f"{name}:{line}: {what}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := path.relative_to(SOURCE).as_posix())
        for line, what in rounded(path.read_text(encoding="utf-8"))
        if what not in NEAREST.get(name, ())
    ]
    assert not found, "\n".join(found)


def test_nor_on_a_page():
    """In a template, what follows |format or |round."""
    for path in sorted(SOURCE.rglob("*.j2")):
        for inside in re.findall(r"{{(.*?)}}", path.read_text(encoding="utf-8")):
            if re.search(r"\|\s*(format|round)|\.format\(", inside):
                assert not NAMES.search(inside), f"{path.name}: {inside}"
