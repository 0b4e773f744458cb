"""What a session opens: peers are looked for on this machine when the chain is on it, unless the user says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.train import session
from aftermath.train.settings import TrainSettings


@pytest.mark.parametrize(("discovery", "entries"), [("auto", 1), ("n0", 0)])
async def test_peers_of_a_local_chain_are_found_in_a_directory(tmp_path: Path, discovery: str, entries: int) -> None:
    settings = TrainSettings.model_validate(
        {"run_id": "ports", "discovery_dir": tmp_path / "peers", "iroh_relay": "disabled", "iroh_discovery": discovery}
    )
    transport = await session._open_transport(settings, bytes(range(32)), here=True)
    try:
        assert len(list(tmp_path.glob("peers/*.json"))) == entries
    finally:
        await transport.close()
