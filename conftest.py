"""Python snippets of the README and of `docs/` run as tests; and what holds for all tests."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported: see dpsinkhorn.cli
os.environ["DPSINKHORN_USED_DATA"] = "off"  # tests leave no note of their data with the user

from hypothesis import HealthCheck, settings
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

# No test fails because the machine is busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Files of tests that take long. They are begun first, so that no worker is left alone with one at the end.
LONG = (
    *("papers/test_reproduce", "training/test_ranks", "kernels/test_interpreter"),
    *("mechanisms/test_every_mechanism", "training/test_planted_defects", "training/test_replay_game"),
    *("training/test_audit", "mechanisms/test_numerical_attacks_moments", "cli/train/test_train_interrupted"),
    *("mechanisms/test_flow", "training/test_run_replay", "privacy/test_ledger", "report/test_browser"),
    *("report/test_page", "privacy/test_accounting", "transport/test_noisy", "cli/train/test_train"),
    *("test_site", "release/test_onnx", "test_readme", "cli/test_evaluate", "report/test_shared_ledger"),
    *("privacy/test_groups", "training/test_estimator", "cli/test_report", "data/test_reading_contract"),
)


def pytest_collection_modifyitems(items):
    places = {Path(__file__).parent / "tests" / f"{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def enter_folder(namespace):
    """Let the snippets of a page write into a folder of their own."""
    namespace["_before"], namespace["_folder"] = os.getcwd(), tempfile.TemporaryDirectory()
    os.chdir(namespace["_folder"].name)


def leave_folder(namespace):
    os.chdir(namespace["_before"])
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/start/*.md"],
    setup=enter_folder,
    teardown=leave_folder,
).pytest()
