"""What Windows does differently, as far as it can be brought about here: files, locks, encodings, modules."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest

import dpsinkhorn
from dpsinkhorn import files
from dpsinkhorn.cli import main
from dpsinkhorn.privacy import Budget, Charge, Ledger, read_ledger
from support.windows import behave_like_windows

STEP = Charge(dp.GaussianDpEvent(1.0))
IMPORT_ALL = """
import importlib, pkgutil, sys, types
import asyncio, concurrent.futures, http.server, multiprocessing, resource, tarfile, tempfile, zipfile
import cryptography.fernet, dp_accounting, jinja2, matplotlib.pyplot, ot, PIL.Image, platformdirs, psutil
import pyarrow.parquet, rich.console, safetensors.torch, scipy.optimize, sklearn.datasets, torch, typer
import torch.distributed, urllib.request
sys.platform = "win32"
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
for name in ("fcntl", "resource", "pwd", "grp", "termios", "triton"):
    sys.modules[name] = None
import dpsinkhorn
seen = 0
# the kernels need Triton, which is for Linux; and what is compiled is no module of Python's
others = ("dpsinkhorn.kernels", "dpsinkhorn.__main__", "dpsinkhorn.ot.native._kernels")
for module in pkgutil.walk_packages(dpsinkhorn.__path__, "dpsinkhorn."):
    if not module.name.startswith(others):
        importlib.import_module(module.name)
        seen += 1
print(seen)
"""


@pytest.fixture
def windows(monkeypatch):
    behave_like_windows(monkeypatch)


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger.jsonl"


def opened(path):
    return Ledger.open(path, lambda *_: 0.0, budget=Budget(1.0, 1e-5))


@pytest.mark.usefixtures("windows")
def test_the_stand_in_refuses_what_windows_refuses(tmp_path):
    held = tmp_path / "held"
    with open(held, "wb"):
        for act in (lambda: os.replace(held, tmp_path / "other"), held.unlink):
            with pytest.raises(PermissionError):
                act()
    with pytest.raises(FileExistsError):
        os.rename(tmp_path, tmp_path)
    with pytest.raises(PermissionError):
        os.open(tmp_path, os.O_RDONLY)
    handle = os.open(held, os.O_WRONLY)
    os.write(handle, b"\n")
    os.close(handle)
    assert held.read_bytes() == b"\r\n"


@pytest.mark.usefixtures("windows")
def test_lines_of_a_ledger_end_as_everywhere(ledger):
    with opened(ledger) as book:
        book.spend(STEP, run="a")
    assert b"\r" not in ledger.read_bytes() + ledger.with_name("ledger.jsonl.head").read_bytes()
    assert len(read_ledger(ledger).spends) == 1


@pytest.mark.usefixtures("windows")
def test_a_ledger_that_someone_reads_at_that_moment_is_written_all_the_same(ledger):
    with opened(ledger) as book:
        reader = os.open(ledger.with_name("ledger.jsonl.head"), os.O_RDONLY)
        threading.Timer(0.3, os.close, [reader]).start()
        began = time.monotonic()
        book.spend(STEP, run="a")
        assert time.monotonic() - began > 0.2
    assert len(read_ledger(ledger).spends) == 1


@pytest.mark.usefixtures("windows")
def test_a_head_that_stays_in_use_ends_in_an_error_and_loses_nothing(ledger, monkeypatch):
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    with opened(ledger) as book:
        book.spend(STEP, run="a")
        with open(ledger.with_name("ledger.jsonl.head"), "rb"), pytest.raises(PermissionError):
            book.spend(STEP, run="a")
    opened(ledger).close()
    assert len(read_ledger(ledger).spends) == 1


@pytest.mark.usefixtures("windows")
def test_from_training_to_report(tmp_path, capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main([str(each) for each in arguments])
        printed = capsys.readouterr()
        assert not left.value.code, printed.err
        return printed.out

    folder = tmp_path / "run"
    train = ("train", "--data", "digits", "--epsilon", "10", "--steps", "4", "--accountant", "rdp")
    run(*train, "--ledger", tmp_path / "shared.jsonl", "--budget", "30", "--out", folder)
    run(*train, "--ledger", tmp_path / "shared.jsonl", "--out", tmp_path / "second")
    for _ in range(2):
        run("sample", folder, "--count", "20", "--output", tmp_path / "samples.npz", "--force")
    run("sample", folder, "--count", "20", "--output", tmp_path / "samples")
    run("report", folder)
    run("export", folder, "--format", "registry", "--output", tmp_path / "entry.json")
    model = dpsinkhorn.DPSinkhorn(epsilon=10, delta=1e-5, random_state=0, anyway=True)
    model.fit(np.random.default_rng(0).integers(256, size=(60, 8, 8), dtype=np.uint8), np.arange(60) % 2)
    model.save(tmp_path / "saved")
    assert len(dpsinkhorn.load(tmp_path / "saved").sample(5)[0]) == 5
    assert len(read_ledger(tmp_path / "shared.jsonl").spends) > 1


def test_no_module_needs_what_only_posix_has():
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    home = Path(dpsinkhorn.__file__).parent
    modules = {path for path in home.rglob("*.py") if "kernels" not in path.parts} - {home / "__init__.py"}
    assert int(done.stdout) == len(modules - {home / "__main__.py"})


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_output_into_a_file_is_whole_in_any_encoding(encoding):
    command = [sys.executable, "-m", "dpsinkhorn", "privacy", "calibrate", "--help"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr
    assert "╭" in done.stdout.decode("utf-8")
