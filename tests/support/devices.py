"""Tests that run on a CPU, and on a CUDA device where there is one."""

from __future__ import annotations

import pytest
import torch

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
