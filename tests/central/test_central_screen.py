"""What a server shows of its run in a terminal, and the data that it serves beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from aftermath.base.errors import UsageError
from aftermath.base.worker import ThreadWorker
from aftermath.central.screen import Lines, picture
from aftermath.central.served_data import data_beside, serving
from aftermath.config.document import RunConfig, parse_as
from aftermath.data.remote import RemoteTokens
from aftermath.localnet.free_ports import free_ports
from central import central_stage
from central.central_stage import Visitor
from config.config_cases import SEED


def shown(server: object, lines: Lines, width: int = 80) -> str:
    console = Console(width=width, height=24, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(picture(server, lines))  # type: ignore[arg-type]
    return console.export_text()


async def test_the_picture_has_the_run_and_who_is_connected() -> None:
    async with central_stage.serving(init_min_clients=2, min_clients=2) as server:
        lines = Lines(kept=True)
        async with Visitor(server) as one:
            await one.join(tier=1)
            text = shown(server, lines)
        assert re.search(r"run +demo at port", text)
        assert "waiting for members" in text
        assert "step 0 of 100" in text
        (row,) = [line for line in text.splitlines() if str(one.wallet.pubkey)[:12] in line]
        assert row.split()[1:] == ["1", "idle", "yes"]
        assert max(len(line) for line in text.splitlines()) <= 80


def config_with(address: str, seq_len: int = 32) -> str:
    """A config that has its data from a server."""
    text = re.sub(r"(?m)^max_seq_len = .*$", f"max_seq_len = {seq_len}", SEED)
    start, end = text.index("[model.LLM.data_location.Http]"), text.index("[model.LLM.lr_schedule")
    return f"{text[:start]}[model.LLM.data_location]\nServer = {json.dumps(address)}\n\n{text[end:]}"


@pytest.fixture
def data_config(tmp_path: Path) -> Path:
    np.arange(32 * 9 + 1, dtype="<u2").tofile(tmp_path / "tokens.bin")
    path = tmp_path / "data.toml"
    path.write_text(f"dir = {json.dumps(str(tmp_path / 'tokens.bin'))}\nseq_len = 32\n")
    return path


async def test_tokens_are_served_where_the_state_file_says(data_config: Path) -> None:
    port = free_ports("127.0.0.1", 1)
    beside = data_beside(data_config, parse_as(config_with(f"127.0.0.1:{port}"), "state.toml", RunConfig))
    async with serving(beside, "127.0.0.1"):
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
        data_beside(data_config, config)
    assert said in caught.value.fix
