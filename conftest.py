"""Python snippets of the README and of `docs/` run as tests."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported: see dpsinkhorn.cli
os.environ["DPSINKHORN_USED_DATA"] = "off"  # tests leave no note of their data with the user

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/start/*.md"],
).pytest()
