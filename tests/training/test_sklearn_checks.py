"""scikit-learn's own checks of estimators, as far as images allow."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpsinkhorn import DPSinkhorn

QUICK = {
    "privacy": {"steps": 2, "sampling_rate": 0.3, "noise_multiplier": 1.5},
    "loss": {"generated_per_class": 3, "generated": 6},
    "generator": {"latent": 2, "hidden": [8]},
}

EXPECTED_TO_FAIL = {
    "check_n_features_in": "an image has a shape, and no features that could be counted",
    "check_n_features_in_after_fitting": "an image has a shape, and no features that could be counted",
    "check_dtype_object": "in an array of objects one record's type would decide how all others are read",
    "check_complex_data": "complex numbers are refused, in words of our own",
    "check_estimators_empty_data_messages": "images without pixels are refused, in words of our own",
    "check_fit2d_1sample": "one record is refused, in words of our own",
}


class OfTables(DPSinkhorn):
    """Reads each row of a table as an image of one line: the checks know nothing but tables."""

    def fit(self, X, y=None):
        table = X if hasattr(X, "toarray") else np.asarray(X)
        return super().fit(table[:, None] if table.ndim == 2 and isinstance(table, np.ndarray) else table, y)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


@pytest.mark.filterwarnings("ignore:the values found take up little", "ignore:fewer than 10 records")
@parametrize_with_checks(
    [
        OfTables(
            None,
            mechanism="record",
            value_range=(-1000, 1000),
            settings=QUICK,
            accountant="rdp",
            random_state=0,
            anyway=True,
        )
    ],
    expected_failed_checks=lambda _: EXPECTED_TO_FAIL,
    xfail_strict=True,
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_tags():
    tags = DPSinkhorn(epsilon=1).__sklearn_tags__()
    assert tags.input_tags.three_d_array
    assert not tags.input_tags.two_d_array
    assert tags.non_deterministic
    assert not DPSinkhorn(epsilon=1, random_state=3).__sklearn_tags__().non_deterministic
