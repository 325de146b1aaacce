"""One self-contained HTML page per run: what was guaranteed, in plain words, and what came of it."""

from dpsinkhorn.errors import ReportError
from dpsinkhorn.report.findings import Findings, gather
from dpsinkhorn.report.page import Written, check_output, curator_path, write_comparison, write_report
from dpsinkhorn.report.standards import registry_entry

__all__ = [
    "Findings",
    "ReportError",
    "Written",
    "check_output",
    "curator_path",
    "gather",
    "registry_entry",
    "write_comparison",
    "write_report",
]
