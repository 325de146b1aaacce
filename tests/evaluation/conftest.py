from __future__ import annotations

import pytest
import torch

from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation import images_of


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits():
    """scikit-learn's digits: images and labels for training, then for testing."""
    train, test = (load_dataset("digits", split=split) for split in ("train", "test"))
    return images_of(train), train.labels, images_of(test), test.labels
