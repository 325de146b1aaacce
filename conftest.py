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

# Files whose tests take long. They are begun first, so that no worker is left alone with one at the end.
LONG = (
    *("tests/papers/test_reproduce", "tests/training/test_ranks", "tests/kernels/test_interpreter"),
    *("tests/mechanisms/test_every_mechanism", "tests/training/test_planted_defects"),
    *("tests/training/test_replay_game", "tests/training/test_audit"),
    *("tests/mechanisms/test_numerical_attacks_moments", "tests/cli/train/test_train_interrupted"),
    *("tests/mechanisms/test_flow", "tests/training/test_run_replay", "tests/privacy/test_ledger"),
    *("src/dpsinkhorn/training/auditing/search", "tests/report/test_browser", "tests/report/test_page"),
    *("tests/privacy/test_accounting", "tests/transport/test_noisy", "tests/cli/train/test_train"),
    *("tests/test_site", "tests/release/test_onnx", "tests/test_readme", "tests/cli/test_evaluate"),
    *("tests/report/test_shared_ledger", "tests/privacy/test_groups", "tests/training/test_estimator"),
    *("tests/cli/test_report", "tests/data/test_reading_contract"),
)


def pytest_collection_modifyitems(items):
    places = {Path(__file__).parent / f"{name}.py": place for place, name in enumerate(LONG)}
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
