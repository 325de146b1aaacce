"""The errors that a user can meet: each message is one line that says what is wrong and what to do.

The package that raises an error exports it too: `dpsinkhorn.data.DataError`.
"""

from __future__ import annotations


class DPSinkhornError(Exception):
    """What is wrong and what to do, in one line; the command line prints it as it is."""


class MixedAdjacencyError(DPSinkhornError, ValueError):
    """Charges under different adjacencies were added up without a conversion."""


class UnsupportedEventError(DPSinkhornError, ValueError):
    """The accountant has no proved bound for an event."""


class CalibrationError(DPSinkhornError, ValueError):
    """No value of the free setting meets the budget."""


class AuditError(DPSinkhornError, ValueError):
    """An audit cannot be made of what was given."""


class DataError(DPSinkhornError, ValueError):
    """The data cannot be used as they are."""


class DownloadError(DataError):
    """A data set could not be had from the network."""


class GeneratorError(DPSinkhornError, ValueError):
    """A config, or the input of a generator, makes no sense."""


class ReleaseError(DPSinkhornError, ValueError):
    """A release, or a request to one, cannot be served."""


class TrainingError(DPSinkhornError, ValueError):
    """A training cannot be done as it was asked for."""


class RankLostError(TrainingError):
    """Another process of the same training has failed, or is gone."""


class EvaluationError(DPSinkhornError, ValueError):
    """Images or settings cannot be evaluated as they are."""


class TransportError(DPSinkhornError, ValueError):
    """Private transport cannot work with these points or settings as they are."""


class ReportError(DPSinkhornError, ValueError):
    """A report cannot be made of this folder."""


class ReproductionError(DPSinkhornError, ValueError):
    """A table or figure of the papers cannot be repeated as it was asked for."""
