"""The token with which a run's repositories are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from aftermath.base.allowed_locations import TRUSTING, RunAccess
from aftermath.model.checkpoint import load
from aftermath.model.json_documents import CheckpointError
from aftermath.model.outline import read_outline
from aftermath.model.run_checkpoint import load_hf_config, resolve
from aftermath.rules.model import Checkpoint
from aftermath.rules.state import CheckpointKind
from model.hub_server import CONFIG, Hub

PLACE = Checkpoint(CheckpointKind.HUB, "me/model", "")


@pytest.fixture
def hub(server: Hub, repo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A Hub, and a machine that has a token for it."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr("aftermath.model.hub.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return server


def test_repository_of_run_is_read_without_token(hub: Hub) -> None:
    load_hf_config(PLACE, access=RunAccess())
    read_outline(PLACE, access=RunAccess())
    assert load(resolve(PLACE, access=RunAccess()), 0).keys() == CONFIG.parameter_shapes(0).keys()
    assert hub.authorizations == {None}


def test_private_repository_of_run_is_refused_with_option(hub: Hub) -> None:
    hub.private.add("me/model")
    with pytest.raises(CheckpointError, match=r"it is private[\s\S]*--hub-token-for me/model"):
        resolve(PLACE, access=RunAccess(token_repositories=("me/other",)))


@pytest.mark.parametrize(
    "access", [RunAccess(token_repositories=("me/model",)), TRUSTING], ids=["named", "own word"]
)
def test_private_repository_named_by_member_is_read_with_token(hub: Hub, access: RunAccess) -> None:
    hub.private.add("me/model")
    load_hf_config(PLACE, access=access)
    read_outline(PLACE, access=access)
    resolve(PLACE, access=access)
    assert hub.authorizations == {"Bearer hf_secret"}


@pytest.mark.parametrize("value", ["socks9://127.0.0.1:1080", "socks5h://127.0.0.1:port"])
def test_proxy_variable_refused_by_hub_client_is_named(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    close_session()  # the client reads the variables when it is created
    monkeypatch.setenv("all_proxy", value)
    with pytest.raises(CheckpointError, match=r"proxy variables[\s\S]*ALL_PROXY"):
        resolve(PLACE, access=RunAccess())
    assert hub.authorizations == set()
