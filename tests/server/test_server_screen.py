"""The terminal screen of a server's run, and the data server of the run."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import numpy as np
import pytest

from aftermath.base.concurrency import ThreadWorker
from aftermath.base.errors import UsageError
from aftermath.config.document import RunConfig, parse_as
from aftermath.data.data_server_client import RemoteTokens
from aftermath.localnet.free_ports import free_ports
from aftermath.rules.state import RunState
from aftermath.server.screen import connected_members, network_facts, run_status
from aftermath.server.server import RunServer
from aftermath.server.state_file import load_served_data, serve_data
from config.config_cases import SEED
from server import in_process_server
from server.in_process_server import Visitor


async def test_server_screen_shows_run_and_connected_members() -> None:
    async with in_process_server.serving(init_min_clients=2, min_clients=2) as server:
        async with Visitor(server) as one:
            await one.join(tier=1)
            status = run_status(server)
            connected = connected_members(server, status)
            rows = network_facts(server)
        assert (status.run_id, status.state, status.step, status.total_steps) == (
            "demo",
            RunState.WAITING_FOR_MEMBERS,
            0,
            100,
        )
        (member,) = status.members
        assert (member.signer, member.tier) == (one.wallet.public, 1)
        assert connected == {one.wallet.public}
        assert rows == {
            "address": f"127.0.0.1:{server.port}",
            "connected": "1 identity",
            "kept": rows["kept"],
        }
        assert rows["kept"].startswith("nothing")
        await server_is_empty(server)
        assert connected_members(server, run_status(server)) == frozenset()


async def server_is_empty(server: RunServer) -> None:
    async with asyncio.timeout(in_process_server.PATIENCE):
        while server.sessions.count:
            await asyncio.sleep(0.01)


def config_with(address: str, seq_len: int = 32) -> str:
    """Return a config that reads its data from a server."""
    text = re.sub(r"(?m)^max_seq_len = .*$", f"max_seq_len = {seq_len}", SEED)
    start = text.index("[model.LLM.data_location.Http]")
    end = text.index("[model.LLM.lr_schedule")
    return (
        f"{text[:start]}[model.LLM.data_location]\nServer = {json.dumps(address)}\n\n{text[end:]}"
    )


@pytest.fixture
def data_config(tmp_path: Path) -> Path:
    np.arange(32 * 9 + 1, dtype="<u2").tofile(tmp_path / "tokens.bin")
    path = tmp_path / "data.toml"
    path.write_text(f"dir = {json.dumps(str(tmp_path / 'tokens.bin'))}\nseq_len = 32\n")
    return path


async def test_tokens_are_served_at_address_of_state_file(data_config: Path) -> None:
    port = free_ports("127.0.0.1", 1)
    served = load_served_data(
        data_config, parse_as(config_with(f"127.0.0.1:{port}"), "state.toml", RunConfig)
    )
    async with serve_data(served, "127.0.0.1"):
        source = await ThreadWorker("test")(lambda: RemoteTokens(f"127.0.0.1:{port}", 32, 1 << 16))
        assert source.sequences == 9


@pytest.mark.parametrize(
    ("address", "seq_len", "said"),
    [
        ("127.0.0.1:0", 32, "Write data_location"),
        ("127.0.0.1:port", 32, "Write data_location"),
        ("127.0.0.1:7", 64, "Set seq_len to the run's max_seq_len"),
    ],
)
def test_data_not_matching_state_file_is_refused(
    data_config: Path, address: str, seq_len: int, said: str
) -> None:
    config = parse_as(config_with(address, seq_len), "state.toml", RunConfig)
    with pytest.raises(UsageError) as caught:
        load_served_data(data_config, config)
    assert said in caught.value.fix
