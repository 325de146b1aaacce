"""Python snippets of the README and of `docs/` run as tests; and what holds for all tests."""

import os
import tempfile

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported: see dpsinkhorn.cli
os.environ["DPSINKHORN_USED_DATA"] = "off"  # tests leave no note of their data with the user

from hypothesis import HealthCheck, settings
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

# No test fails because the machine is busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


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
