"""Tests that an owner can replace an incomplete or unknown training spec, and that joiners get an
error about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from solders.instruction import Instruction

from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import endpoint
from aftermath.chain.instructions import CoordinatorInstructions
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import load_wallet
from aftermath.config.document import load_config
from aftermath.config.spec import spec_hash
from cli.cli_lone_member import quick_config
from cli.cli_runs import Shell, train

Steps = Callable[[CoordinatorInstructions], list[Instruction]]


@pytest.fixture
def config(run_dir: Path, tmp_path: Path) -> Path:
    return quick_config(run_dir, tmp_path)


@pytest.fixture
def configured(owner: Shell, run_id: str, config: Path) -> Shell:
    """Return the owner of a run that is configured but not started."""
    assert owner("create-run", "--run-id", run_id).code == 0
    assert owner("update-config", "--run-id", run_id, "--config-path", config).code == 0
    return owner


def send(owner: Shell, steps: Steps) -> None:
    """Send instructions as the owner, without a command."""

    async def sent() -> None:
        async with RpcPool([endpoint(owner.rpc)]) as pool:
            coordinator = CoordinatorClient(pool, load_wallet(owner.wallet))
            await coordinator.sender.send_packed(steps(coordinator.ix))

    asyncio.run(sent())


def write_later_spec(owner: Shell, run_id: str, config: Path, known: bytes, later: bytes) -> None:
    """Configure the run as a later client version would, with a kind that this version does not
    know.
    """
    llm = load_config(config).llm
    spec = llm.spec.encode().replace(known, later)
    model = llm.to_chain() | {"spec": {"len": len(spec), "hash": spec_hash(spec)}}
    send(owner, lambda ix: [*ix.write_spec(run_id, spec), ix.update(run_id, model=model)])


def test_update_config_after_interruption_writes_whole_spec(
    configured: Shell, run_id: str, config: Path
) -> None:
    """Start from the state after an update-config that ended after its first transaction."""
    before = configured("json-dump-run", "--run-id", run_id).data["model"]
    send(configured, lambda ix: ix.write_spec(run_id, b'{"architecture":"HfNanoGPT"')[:1])
    refused = configured("set-paused", "--run-id", run_id, "resume").error
    assert "training spec of run" in refused["error"]
    assert "is incomplete" in refused["error"]
    assert f"update-config --run-id {run_id} --config-path" in refused["fix"]
    joiner = train(configured, "--run-id", run_id)
    assert joiner.code == 1
    assert f"run {run_id} is not configured yet" in joiner.err
    assert configured("update-config", "--run-id", run_id, "--config-path", config).code == 0
    assert configured("json-dump-run", "--run-id", run_id).data["model"] == before
    assert configured("set-paused", "--run-id", run_id, "resume").code == 0


def test_unknown_optimizer_is_named_and_replaceable(
    configured: Shell, run_id: str, config: Path
) -> None:
    write_later_spec(configured, run_id, config, b'"Distro"', b'"Sophia"')
    message = "Sophia is not a known key"
    assert message in configured("show-run", "--run-id", run_id).data["spec_error"]
    dumped = configured("json-dump-run", "--run-id", run_id).data["model"]
    assert message in dumped["spec_error"]
    assert "optimizer" not in dumped, "nobody read what it is"
    listed = configured("list-runs").data
    assert run_id in [run["run_id"] for run in listed]
    joiner = train(configured, "--run-id", run_id)
    assert joiner.code == 1
    assert message in joiner.err
    assert "measuring" not in joiner.out
    replaced = configured("update-config", "--run-id", run_id, "--config-path", config).data
    assert any("optimizer" in change["key"] for change in replaced["changes"])
    assert "optimizer" in configured("json-dump-run", "--run-id", run_id).data["model"]


def test_close_run_with_unknown_spec_returns_rent(
    configured: Shell, run_id: str, config: Path
) -> None:
    write_later_spec(configured, run_id, config, b'"HfLlama"', b'"HfMamba"')
    assert (
        configured("close-run", "--run-id", run_id, "--yes").data["lamports_returned"] > 600_000_000
    )
