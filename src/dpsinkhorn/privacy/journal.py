"""An append-only file of JSON entries that survives crashes and notices tampering; knows nothing of privacy.

Three files lie side by side:

- `NAME`, one entry per line: `{"body": ..., "digest": ..., "index": ..., "previous": ...}`. `digest` is the
  SHA-256 of the rest of the line, which holds the digest of the line before: a chain.
- `NAME.head`, replaced as a whole: the text of the newest line, and whether it is `pending` or `written`.
- `NAME.lock`, held while a process writes.

An append (1) replaces the head by one that holds the new line as pending, (2) appends the line, (3) marks
it as written; 1 and 2 are on disk before the append returns. So whatever the moment of a crash, the head
holds every line that the file may be missing, in full, and opening completes it: an entry that was begun
counts. What this catches, what it cannot, and why, is in `docs/proofs/ledger.md`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsinkhorn.errors import DPSinkhornError
from dpsinkhorn.files import (
    lock,
    open_handle,
    patiently,
    replace,
    sync,
    sync_folder,
    unlock,
    write_all,
    write_synced,
)

_VERSION = 1
_START = "0" * 64  # what the first entry has for the digest of its predecessor


class JournalDamagedError(DPSinkhornError, ValueError):
    """The file, or its head, is not what was written."""


class JournalLockedError(DPSinkhornError, RuntimeError):
    """Another process, or another object of this one, has the file open for writing."""


@dataclass(frozen=True)
class Entry:
    """One verified line."""

    index: int
    body: Mapping[str, Any]
    previous: str
    digest: str

    @property
    def line(self) -> bytes:
        """Return the entry as it stands in the file."""
        return (
            _canonical({**_content(self.index, self.body, self.previous), "digest": self.digest}) + "\n"
        ).encode()


def _content(index: int, body: Mapping[str, Any], previous: str) -> dict[str, Any]:
    return {"body": body, "index": index, "previous": previous}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _next_entry(body: Mapping[str, Any], last: Entry | None) -> Entry:
    index = last.index + 1 if last else 0
    previous = last.digest if last else _START
    digest = hashlib.sha256(_canonical(_content(index, body, previous)).encode()).hexdigest()
    return Entry(index, body, previous, digest)


def _parse(line: bytes, what: str) -> Entry:
    """Read one line and check that it is, byte for byte, the one that its content hashes to."""
    try:
        value = json.loads(line)
        entry = Entry(value["index"], value["body"], value["previous"], value["digest"])
        content = _canonical(_content(entry.index, entry.body, entry.previous))
        sound = hashlib.sha256(content.encode()).hexdigest() == entry.digest and entry.line == line
        sound = sound and type(entry.index) is int and entry.index >= 0
    except (ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise JournalDamagedError(f"{what} was changed after it was written")
    return entry


class Journal:
    """A journal open for writing. Use `open`, and `close` it, or use it in a `with` block.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Journal.open(Path(folder.name) / "journal.jsonl", first={"title": "demo"}) as journal:
    ...     _ = journal.append({"count": 1})
    >>> [entry.body for entry in read_journal(Path(folder.name) / "journal.jsonl")]
    [{'title': 'demo'}, {'count': 1}]
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, lock: int, file: int, entries: list[Entry]) -> None:
        """Not for callers: `open` makes sure of the lock and of the entries."""
        self._path, self._lock, self._file = path, lock, file
        self._entries = entries
        self._owner = os.getpid()
        self._usable = True

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, first: Mapping[str, Any] | None = None) -> Journal:
        """Open a journal, completing what a crash left unfinished.

        Where there is none yet, one is begun with the entry `first`; without `first`, `FileNotFoundError`.
        """
        path = Path(path).resolve()  # a link and its target must not have two heads and two locks
        head_path = _beside(path, "head")
        if not path.exists() and not head_path.exists():
            if first is None:
                raise FileNotFoundError(f"there is no ledger at {path}")
            path.parent.mkdir(parents=True, exist_ok=True)
        held = lock(_beside(path, "lock"))
        if held is None:
            raise JournalLockedError(f"{path} is open for writing elsewhere; one writer at a time")
        try:
            if not path.exists() and not head_path.exists():
                if first is None:
                    raise FileNotFoundError(f"there is no ledger at {path}")
                _write_head(path, _next_entry(first, None), pending=True)
            entries, missing = _load(path)
            file = open_handle(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except BaseException:
            os.close(held)
            raise
        journal = cls(path, held, file, entries)
        try:
            journal._finish(missing)
        except BaseException:
            journal.close()
            raise
        return journal

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return all entries, the first one included."""
        return tuple(self._entries)

    @property
    def last(self) -> Entry:
        """Return the newest entry. Its digest stands for the whole file."""
        return self._entries[-1]

    def append(self, body: Mapping[str, Any]) -> Entry:
        """Add an entry. When this returns, it is on disk; if it raises, it may count all the same: reopen."""
        if os.getpid() != self._owner:
            raise JournalLockedError(
                "this ledger was opened by the parent process; a forked one cannot write to it"
            )
        if not self._usable:
            raise JournalDamagedError("an earlier write failed or the ledger was closed; open it again")
        entry = _next_entry(json.loads(_canonical(body)), self.last)
        self._usable = False  # until all of it is done
        _write_head(self._path, entry, pending=True)
        self._entries.append(entry)
        self._finish(entry.line)
        self._usable = True
        return entry

    def _finish(self, missing: bytes) -> None:
        write_all(self._file, missing)
        sync(self._file)
        sync_folder(self._path.parent)  # the file's own name, when it is new
        # Not awaited: if this is lost, the head still says pending, which is safe, only less strict.
        _write_head(self._path, self.last, pending=False)

    def close(self) -> None:
        """Release the lock. Closing twice is fine."""
        self._usable = False
        if self._lock >= 0 and os.getpid() == self._owner:
            unlock(self._lock)
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._lock = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_journal(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """Return all entries, checked, without locking or mending anything; an unfinished entry is included."""
    path = Path(path).resolve()
    if not path.exists() and not _beside(path, "head").exists():
        raise FileNotFoundError(f"there is no ledger at {path}")
    for attempt in range(50):
        before = _head_bytes(path)
        try:
            return tuple(_load(path)[0])
        except JournalDamagedError:
            if attempt == 49 or _head_bytes(path) == before:
                raise  # else a writer was at work in between: look again
    raise AssertionError("unreachable")


def _load(path: Path) -> tuple[list[Entry], bytes]:
    """Return the entries that count, and the bytes that the file is missing for them."""
    head_text = _head_bytes(path)
    data = path.read_bytes() if path.exists() else b""
    if head_text is None:
        raise JournalDamagedError(
            f"{_beside(path, 'head')} is missing: how long {path.name} was cannot be known"
        )
    try:
        head_value = json.loads(head_text)
        newest = _parse(head_value["line"].encode(), "the head")
        pending = {"pending": True, "written": False}[head_value["state"]]
        version = head_value["version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalDamagedError(f"{_beside(path, 'head')} was changed after it was written") from error

    if version != _VERSION:
        raise JournalDamagedError(
            f"{_beside(path, 'head')} is of version {str(version)[:20]}, not {_VERSION}: "
            "use the dpsinkhorn that wrote it"
        )

    *lines, torn = data.split(b"\n")
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        entry = _parse(line + b"\n", f"line {number} of {path}")
        expected = entries[-1].digest if entries else _START
        if entry.previous != expected or entry.index != len(entries):
            raise JournalDamagedError(
                f"line {number} of {path} does not follow the line before: removed or reordered"
            )
        entries.append(entry)

    known = newest.index + 1
    if len(entries) > known:
        raise JournalDamagedError(
            f"{path} has {len(entries)} lines, its head knows of {known}: the head is older"
        )
    if len(entries) == known:
        if torn or entries[-1] != newest:
            raise JournalDamagedError(f"{path} does not end as its head says: changed at the end")
        return entries, b""
    follows = len(entries) == newest.index and newest.previous == (entries[-1].digest if entries else _START)
    if follows and newest.line.startswith(torn) and (torn or pending):
        return [*entries, newest], newest.line[len(torn) :]
    raise JournalDamagedError(f"{path} has {len(entries)} whole lines, its head knows of {known}: truncated")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def _head_bytes(path: Path) -> bytes | None:
    try:
        return patiently(_beside(path, "head").read_bytes)
    except FileNotFoundError:
        return None


def _write_head(path: Path, entry: Entry, *, pending: bool) -> None:
    """Replace the head in one step: a crash leaves the old one or the new one, never a part."""
    state = "pending" if pending else "written"
    text = _canonical({"line": entry.line.decode(), "state": state, "version": _VERSION}) + "\n"
    draft = _beside(path, "head.tmp")
    write_synced(draft, text.encode(), mode=0o600)
    replace(draft, _beside(path, "head"))
    if pending:
        sync_folder(path.parent)
