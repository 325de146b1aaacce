"""Differential privacy, pure: mechanisms, what they cost, noise, sampling, and a record of what was spent."""

from dpsinkhorn.errors import CalibrationError, MixedAdjacencyError, UnsupportedEventError
from dpsinkhorn.privacy.accounting import (
    ACCOUNTANTS,
    Accountant,
    Calibration,
    calibrate,
    epsilon,
    group_epsilon,
    published_epsilon,
)
from dpsinkhorn.privacy.charges import Adjacency, Charge, Event, compose, event_from_json, event_to_json
from dpsinkhorn.privacy.ledger import Budget, BudgetExceededError, Ledger, Statement, read_ledger
from dpsinkhorn.privacy.mechanisms import (
    BatchMechanism,
    GaussianMechanism,
    ImageMechanism,
    LaplaceMechanism,
    Mechanism,
    MomentsMechanism,
    NonPrivate,
    ParameterMechanism,
    RecordMechanism,
)
from dpsinkhorn.privacy.noise import SecureNoise, SeededNoise, add_gaussian, add_laplace
from dpsinkhorn.privacy.sampling import poisson_sample
from dpsinkhorn.privacy.words import (
    PUBLIC_FACTS,
    format_epsilon,
    format_lower_bound,
    meaning,
    public_facts_sentence,
)

__all__ = [
    "ACCOUNTANTS",
    "PUBLIC_FACTS",
    "Accountant",
    "Adjacency",
    "BatchMechanism",
    "Budget",
    "BudgetExceededError",
    "Calibration",
    "CalibrationError",
    "Charge",
    "Event",
    "GaussianMechanism",
    "ImageMechanism",
    "LaplaceMechanism",
    "Ledger",
    "Mechanism",
    "MixedAdjacencyError",
    "MomentsMechanism",
    "NonPrivate",
    "ParameterMechanism",
    "RecordMechanism",
    "SecureNoise",
    "SeededNoise",
    "Statement",
    "UnsupportedEventError",
    "add_gaussian",
    "add_laplace",
    "calibrate",
    "compose",
    "epsilon",
    "event_from_json",
    "event_to_json",
    "format_epsilon",
    "format_lower_bound",
    "group_epsilon",
    "meaning",
    "poisson_sample",
    "public_facts_sentence",
    "published_epsilon",
    "read_ledger",
]
