"""The network of a flow: what its blocks are told, and which weights it takes."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dpsinkhorn import load
from dpsinkhorn.errors import DPSinkhornError
from dpsinkhorn.generators import FlowConfig, build_generator
from support.runs import finished, small_plan, tiny_data

CONFIG = FlowConfig(image_shape=(1, 8, 8), classes=10, channels=32)


def test_every_block_hears_the_class_from_the_start():
    """Where it came with the time, a new network's blocks were told next to nothing of it."""
    network, told = build_generator(CONFIG, seed=0).network, []
    for name, layer in network.named_modules():
        if name.endswith("modulation"):
            layer.register_forward_pre_hook(lambda _, given: told.append(given[0]))
    network(torch.zeros(10, 1, 8, 8), torch.full((10,), 0.3), torch.arange(10))
    assert len(told) == 7
    for each in told:
        assert 0.8 < float(each.detach().var(0).mean()) < 1.2  # over classes


def test_weights_of_before_are_refused(tmp_path):
    """The class went into the time's layer then: with such weights this network would draw noise."""
    data = tiny_data()
    folder = finished(tmp_path / "run", small_plan(data, "flow"), data).release_folder
    tensors = load_file(folder / "generator.safetensors")
    tensors["network.label.weight"] = tensors.pop("network.kinds.weight")
    save_file(tensors, folder / "generator.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["generator_sha256"] = hashlib.sha256((folder / "generator.safetensors").read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DPSinkhornError, match=r"network\.(label|kinds)\.weight"):
        load(folder)
