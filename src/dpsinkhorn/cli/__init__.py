"""The command line: parse, call, print. One module per group of commands; `main` is the entry point."""

from __future__ import annotations

import sys
from io import TextIOWrapper

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit status: 0, or 2 for bad input with one line on stderr.

    After Ctrl-C there is one line too, and the status is 130, as early as while modules are imported.
    """
    try:
        from dpsinkhorn.cli._shared import application, run

        for stream in (sys.stdout, sys.stderr):
            _write_greek(stream)
        given = sys.argv[1:] if arguments is None else arguments
        status = run(application(given[0] if given else ""), given)
    except KeyboardInterrupt:
        print("dpsinkhorn: stopped", file=sys.stderr)
        status = 130
    raise SystemExit(status)


def _write_greek(stream: object) -> None:
    """Have a stream write UTF-8 where its own encoding has no ε, as that of a file or pipe on Windows."""
    if isinstance(stream, TextIOWrapper):
        try:
            "ε≤".encode(stream.encoding)
        except UnicodeEncodeError:
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
