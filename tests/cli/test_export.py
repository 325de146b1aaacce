"""`dpsinkhorn export`, as a user meets it."""

from __future__ import annotations

import builtins

from support.releases import write_small_release


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
