"""Releases on a hub: there and back over real HTTP, and what a hostile repository may not do."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from huggingface_hub import ModelCard, constants

import dpsinkhorn
from dpsinkhorn.release import Release, ReleaseError, load, make_release
from support.hub import Hub, serving
from support.releases import CONFIGS, not_private, trained

TOKEN = "hf_a_secret_that_nobody_prints"


@pytest.fixture
def hub(monkeypatch):
    with serving(Hub()) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", hub.address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield hub


@pytest.fixture
def release(release_folder) -> Release:
    return load(release_folder)


def test_there_and_back(hub, release, capfd):
    address = release.push_to_hub("ward/scans", token=TOKEN)
    assert address == f"{hub.address}/ward/scans"
    assert f"Bearer {TOKEN}" in hub.tokens
    printed = capfd.readouterr()
    assert TOKEN not in printed.out + printed.err
    assert set(hub.repositories["ward/scans"]) == {
        *("README.md", "config.json", "generator.safetensors", "privacy.json", "samples.png")
    }
    again = dpsinkhorn.load("hub:ward/scans")
    assert again.privacy == release.privacy
    for one, other in zip(again.sample(20, random_state=1), release.sample(20, random_state=1), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_card_is_valid(hub, release):
    release.push_to_hub("ward/scans", token=TOKEN)
    card = ModelCard(hub.repositories["ward/scans"]["README.md"].decode())
    assert card.data.library_name == "dpsinkhorn"
    assert "differential-privacy" in card.data.tags


def test_what_is_not_for_release_is_not_pushed(hub):
    release = make_release(trained(CONFIGS["mlp"]), label_probabilities=None, privacy=not_private())
    with pytest.raises(ReleaseError, match="NOT FOR RELEASE"):
        release.push_to_hub("ward/scans", token=TOKEN)
    assert not hub.repositories


def test_a_hostile_repository(hub, release, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    release.push_to_hub("ward/scans", token=TOKEN)
    files = hub.repositories["ward/scans"]
    files["../outside.txt"] = files["pytorch_model.bin"] = pickle.dumps("anything")
    dpsinkhorn.load("hub:ward/scans")  # of other files nothing is read
    assert not list(tmp_path.parent.rglob("outside.txt"))
    changed = bytearray(files["generator.safetensors"])
    changed[-1] ^= 1
    files["generator.safetensors"] = bytes(changed)
    with pytest.raises(ReleaseError, match="not the one that"):
        dpsinkhorn.load("hub:ward/scans")
    files["generator.safetensors"] = pickle.dumps("anything")
    with pytest.raises(ReleaseError):
        dpsinkhorn.load("hub:ward/scans")
    del files["config.json"]
    with pytest.raises(ReleaseError, match=r"has no config\.json"):
        dpsinkhorn.load("hub:ward/scans")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hub:ward/nothing", "404"),
        ("hub:../../etc/passwd", "no name of a repository"),
        ("hub:", "no name of a repository"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_wrong_names(name, message):
    with pytest.raises(ReleaseError, match=message):
        dpsinkhorn.load(name)


@pytest.mark.usefixtures("hub")
def test_a_hub_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ReleaseError, match="cannot be reached"):
        dpsinkhorn.load("hub:ward/scans")
