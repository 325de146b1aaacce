"""Differential privacy: mechanisms, what they cost, and how much noise a budget asks for."""

from dpsinkhorn.privacy.accounting import ACCOUNTANTS, Accountant, epsilon, published_epsilon
from dpsinkhorn.privacy.calibration import Calibration, calibrate
from dpsinkhorn.privacy.charges import Adjacency, Charge, best_of, compose
from dpsinkhorn.privacy.errors import CalibrationError, MixedAdjacencyError, UnsupportedEventError
from dpsinkhorn.privacy.events import Event, event_from_json, event_to_json
from dpsinkhorn.privacy.mechanisms import (
    BatchMechanism,
    GaussianMechanism,
    ImageMechanism,
    LaplaceMechanism,
    Mechanism,
    NonPrivate,
    ParameterMechanism,
    RecordMechanism,
)

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Adjacency",
    "BatchMechanism",
    "Calibration",
    "CalibrationError",
    "Charge",
    "Event",
    "GaussianMechanism",
    "ImageMechanism",
    "LaplaceMechanism",
    "Mechanism",
    "MixedAdjacencyError",
    "NonPrivate",
    "ParameterMechanism",
    "RecordMechanism",
    "UnsupportedEventError",
    "best_of",
    "calibrate",
    "compose",
    "epsilon",
    "event_from_json",
    "event_to_json",
    "published_epsilon",
]
