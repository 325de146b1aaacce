"""Exported generators give the images that PyTorch gives."""

from __future__ import annotations

import json
import logging

import numpy as np
import onnxruntime
import pytest
import torch

from dpsinkhorn.generators import FlowConfig, draw_latents, frozen_copy
from dpsinkhorn.release import ReleaseError, load, make_release, to_uint8
from dpsinkhorn.release.onnx import write_onnx
from support.releases import statement, trained

COUNT = 200


def test_images_are_those_of_pytorch(config, tmp_path):
    check(trained(config), tmp_path)


def test_so_are_those_of_a_flow(tmp_path):
    """Its last layers begin with 0, so that its weights are moved first."""
    generator = trained(FlowConfig(image_shape=(1, 8, 7), classes=2, channels=8, evaluations=2))
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=draws)
    check(generator, tmp_path)


def check(generator, tmp_path):
    config = generator.config
    release = make_release(generator, label_probabilities=None, privacy=statement())
    write_onnx(release, tmp_path / "generator.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "generator.onnx")
    latents = draw_latents(COUNT, config.latent)
    latents[:2] = torch.tensor([[0.0], [1.0]])  # the ends, from where normal numbers are far out
    labels = torch.arange(COUNT) % config.classes if config.classes else None
    given = {"latents": latents.numpy()} | ({} if labels is None else {"labels": labels.numpy()})
    (found,) = session.run(None, given)
    with torch.inference_mode():
        expected = to_uint8(frozen_copy(release.generator)(latents, labels))
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    difference = np.abs(found.astype(int) - expected.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 1e-3
    content = (tmp_path / "generator.onnx").read_bytes()
    assert b".py" not in content, "it tells where it was made"


def test_metadata_say_what_is_guaranteed(release_folder, tmp_path):
    release = load(release_folder)
    write_onnx(release, tmp_path / "generator.onnx")
    found = onnxruntime.InferenceSession(tmp_path / "generator.onnx").get_modelmeta().custom_metadata_map
    assert found["privacy"] == release.privacy.summary
    assert json.loads(found["epsilon"]) == release.privacy.epsilon
    assert json.loads(found["classes"]) == release.classes
    with pytest.raises(ReleaseError, match="exists already"):
        write_onnx(release, tmp_path / "generator.onnx")
    with pytest.raises(ReleaseError, match="must end in"):
        write_onnx(release, tmp_path / "generator.pt")


def test_the_exporter_does_not_talk_of_itself(release_folder, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("torch.onnx"), "propagate", True)  # else it is not caught here
    write_onnx(load(release_folder), tmp_path / "generator.onnx")
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING] == []
