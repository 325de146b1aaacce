"""What the tests of releases share."""

from __future__ import annotations

import pytest

from support.releases import CONFIGS, write_small_release


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


@pytest.fixture
def release_folder(tmp_path):
    folder = tmp_path / "a release"
    write_small_release(folder)
    return folder
