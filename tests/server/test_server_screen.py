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
from aftermath.data.remote import RemoteTokens
from aftermath.localnet.free_ports import free_ports
from aftermath.rules.state import RunState
from aftermath.server.screen import connected, network, where
from aftermath.server.served_data import data_for, serving
from aftermath.server.server import CentralServer
from config.config_cases import SEED
from server import server_stage
from server.server_stage import Visitor


async def test_the_screen_has_the_run_and_who_is_connected() -> None:
    async with server_stage.serving(init_min_clients=2, min_clients=2) as server:
        async with Visitor(server) as one:
            await one.join(tier=1)
            found = where(server)
            here = connected(server, found)
            rows = network(server)
        assert (found.run_id, found.state, found.step, found.total_steps) == (
            "demo",
            RunState.WAITING_FOR_MEMBERS,
            0,
            100,
        )
        (member,) = found.members
        assert (member.signer, member.tier) == (one.wallet.public, 1)
        assert here == {one.wallet.public}
        assert rows == {
            "address": f"127.0.0.1:{server.port}",
            "connected": "1 identity",
            "kept": rows["kept"],
        }
        assert rows["kept"].startswith("nothing")
        await server_is_empty(server)
        assert connected(server, where(server)) == frozenset()


async def server_is_empty(server: CentralServer) -> None:
    async with asyncio.timeout(server_stage.PATIENCE):
        while server.sessions.count:
            await asyncio.sleep(0.01)


def config_with(address: str, seq_len: int = 32) -> str:
    """A config that has its data from a server."""
    text = re.sub(r"(?m)^max_seq_len = .*$", f"max_seq_len = {seq_len}", SEED)
    start, end = text.index("[model.LLM.data_location.Http]"), text.index("[model.LLM.lr_schedule")
    return (
        f"{text[:start]}[model.LLM.data_location]\nServer = {json.dumps(address)}\n\n{text[end:]}"
    )


@pytest.fixture
def data_config(tmp_path: Path) -> Path:
    np.arange(32 * 9 + 1, dtype="<u2").tofile(tmp_path / "tokens.bin")
    path = tmp_path / "data.toml"
    path.write_text(f"dir = {json.dumps(str(tmp_path / 'tokens.bin'))}\nseq_len = 32\n")
    return path


async def test_tokens_are_served_where_the_state_file_says(data_config: Path) -> None:
    port = free_ports("127.0.0.1", 1)
    served = data_for(
        data_config, parse_as(config_with(f"127.0.0.1:{port}"), "state.toml", RunConfig)
    )
    async with serving(served, "127.0.0.1"):
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
def test_data_that_does_not_fit_the_state_file_is_told(
    data_config: Path, address: str, seq_len: int, said: str
) -> None:
    config = parse_as(config_with(address, seq_len), "state.toml", RunConfig)
    with pytest.raises(UsageError) as caught:
        data_for(data_config, config)
    assert said in caught.value.fix
