"""What every command promises of its help and output: an example of its own, quickly, and in one line."""

from __future__ import annotations

import builtins
import subprocess
import sys

import pytest
import typer

from dpsinkhorn.cli import _shared
from dpsinkhorn.data import DataError
from dpsinkhorn.privacy import BudgetExceededError
from support.releases import write_small_release

COMMANDS = (
    *("train", "sample", "evaluate", "export", "report", "audit", "compare", "reproduce"),
    *("data list", "data get", "data show", "data shard"),
    *("privacy epsilon", "privacy calibrate", "privacy ledger"),
    *("transport cost", "transport test", "transport potentials", "transport tradeoff"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(run, command):
    status, out, err = run(command, "--help")
    words = " ".join(out.split())
    assert (status, err) == (0, "")
    assert f"dpsinkhorn {command} " in words[words.index("Example") :]


def test_help_is_quick():
    """It loads neither PyTorch nor the accountants."""
    code = (
        "import sys\n"
        "from dpsinkhorn.cli import main\n"
        f"for command in ('', *{COMMANDS}):\n"
        "    try:\n        main([*command.split(), '--help'])\n"
        "    except SystemExit as left:\n        assert not left.code\n"
        "slow = {'torch', 'scipy', 'dp_accounting', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "dpsinkhorn: stopped\n"),
        (typer.Abort(), 130, "dpsinkhorn: stopped\n"),
        (_shared.StoppedError("Stopped; go on with X"), 130, "Stopped; go on with X\n"),
        (_shared.BadInputError("no such\nfile"), 2, "dpsinkhorn: no such file\n"),
        (DataError("no labels"), 2, "dpsinkhorn: no labels\n"),
        (BudgetExceededError("too much"), 2, "dpsinkhorn: too much\n"),
        (typer.Exit(3), 3, ""),
        (None, 0, ""),
    ],
)
def test_nobody_leaves_without_a_word(raised, status, said, capsys):
    app = typer.Typer()

    @app.command()
    def command() -> None:
        if raised is not None:
            raise raised

    assert _shared.run(app, []) == status
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("module", ["typer", "dpsinkhorn.cli.train", "torch"])
def test_ctrl_c_while_modules_are_imported(module):
    """It is one line then, too."""
    code = (
        "import signal, sys\n"
        "class CtrlC:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, CtrlC())\n"
        "from dpsinkhorn.cli import main\n"
        "main(['train', '--data', 'digits', '--epsilon', '1', '--out', 'nowhere', '--dry-run'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr in ("dpsinkhorn: stopped\n", "dpsinkhorn: stopped before training began\n")


def test_exports_a_release(run, tmp_path):
    write_small_release(tmp_path / "release")
    target = tmp_path / "generator.onnx"
    code, out, _ = run("export", tmp_path / "release", "--output", target)
    assert code == 0
    assert "takes latents (n, " in out
    assert target.stat().st_size > 1000


def test_says_what_to_install(run, tmp_path, monkeypatch):
    write_small_release(tmp_path / "release")
    before = builtins.__import__

    def without_onnx(name, *others, **more):
        if name == "onnx":
            raise ImportError(name=name)
        return before(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    code, _, err = run("export", tmp_path / "release", "--output", tmp_path / "generator.onnx")
    assert code == 2
    assert "pip install 'dpsinkhorn[onnx]'" in err
    assert not (tmp_path / "generator.onnx").exists()
