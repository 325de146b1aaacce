"""What can be shown of ε from below, and of a claimed sensitivity, without knowing what is audited.

- `threshold_bound`, `gaussian_bound` and `sampled_gaussian_bound` compare many releases from two neighbouring
  data sets.
- `one_run_bound`, `f_dp_bound` and `f_dp_gaussian_bound` judge guesses about many records of one release.
- `Recorder` and `Replayer` stand at the privacy barrier on two neighbouring data sets: no statistics, but an
  exact comparison with the sensitivity that is claimed.

An accountant proves that ε is at most something; these show that it is at least something. What was proved
below what was shown is wrong. The games that make scores are in `dpsinkhorn.training.auditing`; what each
bound says, and does not, is in docs/audit.md.
"""

from dpsinkhorn.errors import AuditError
from dpsinkhorn.privacy.audit.one_run import (
    OneRunBound,
    TradeOff,
    curve_p_value,
    f_dp_bound,
    f_dp_gaussian_bound,
    one_run_bound,
    p_value,
    pair_p_value,
)
from dpsinkhorn.privacy.audit.replay import (
    Outcome,
    Recorder,
    Recording,
    ReplayDivergedError,
    Replayed,
    Replayer,
    Shared,
)
from dpsinkhorn.privacy.audit.two_worlds import (
    PairBound,
    gaussian_bound,
    gaussian_epsilon,
    sampled_gaussian_bound,
    threshold_bound,
)

__all__ = [
    "AuditError",
    "OneRunBound",
    "Outcome",
    "PairBound",
    "Recorder",
    "Recording",
    "ReplayDivergedError",
    "Replayed",
    "Replayer",
    "Shared",
    "TradeOff",
    "curve_p_value",
    "f_dp_bound",
    "f_dp_gaussian_bound",
    "gaussian_bound",
    "gaussian_epsilon",
    "one_run_bound",
    "p_value",
    "pair_p_value",
    "sampled_gaussian_bound",
    "threshold_bound",
]
