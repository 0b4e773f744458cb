"""The optimizer state survives a restart between two epochs, but no other change."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.member import private_state
from aftermath.member.feed import RunFeed
from aftermath.member.state_roots import OwnState
from aftermath.optim.engine import Engine
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.result_inbox import ResultInbox
from member.short_runs import SHORT

ALL = {"min_clients": 3, "waiting_for_members_extra_time": 20}
"""No epoch begins without everybody."""
SPARSELOCO = {"SparseLoCo": {"inner_steps": 2, "compression_chunk": 7, "compression_topk": 4}}


def known(sim_member: SimMember) -> dict[str, Tensor]:
    assert sim_member.member is not None
    assert sim_member.member._replica is not None
    return {
        name: tensor.clone()
        for name, tensor in sim_member.member._replica.optimizer.state().items()
    }


async def restart(sim: SimulatedRun, tiers: Sequence[int] = (0, 1, 2)) -> list[dict[str, Tensor]]:
    """Train one epoch with all members, restart all but the first, and return their states."""
    for tier in tiers:
        sim.add(tier)
    await sim.until(lambda run: run.epoch == 1 and run.state is RunState.WAITING_FOR_MEMBERS)
    await asyncio.sleep(3)
    before = [known(sim_member) for sim_member in sim.sim_members[1:]]
    for sim_member in sim.sim_members[1:]:
        await sim.stop(sim_member)
        sim.start(sim_member)
    return before


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer", [pytest.param(None, id="distro"), pytest.param(SPARSELOCO, id="sparseloco")]
)
def test_members_restarted_between_epochs_resume_their_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: dict[str, Any] | None
) -> None:
    whole = Engine.restore
    taken = []

    def restore(self: Engine, state: Mapping[str, Tensor]) -> None:
        whole(self, state)
        taken.append({name: tensor.clone() for name, tensor in self.state().items()})

    monkeypatch.setattr(Engine, "restore", restore)
    before: list[dict[str, Tensor]] = []

    async def scenario(sim: SimulatedRun) -> None:
        sim.stores_optimizer_state = True
        before.extend(await restart(sim))
        await sim.until_finished()

    sim = play(tmp_path, scenario, optimizer=optimizer, **ALL, **SHORT)
    assert sim.check() > 0
    assert len(taken) == 2
    for state in before:
        assert any(bool(tensor.any()) for tensor in state.values()), "there is something to know"
        assert any(same(state, other) for other in taken)
    for sim_member in sim.sim_members[1:]:
        assert [event["epoch"] for event in sim_member.saw("remembered")] == [1]
        assert not sim_member.saw("warning", until="trained")
    assert {path.suffix for path in (tmp_path / "private").iterdir()} == {".safetensors"}


@pytest.mark.slow
def test_member_absent_for_epoch_begins_without_state(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.stores_optimizer_state = True
        for tier in (0, 1, 2, 2):
            sim.add(tier)
        *_, away = sim.sim_members
        await sim.until_round(1, epoch=1)
        await sim.kill(away)
        await sim.until(lambda run: run.epoch == 2)
        sim.start(away)
        await sim.until_finished()

    sim = play(tmp_path, scenario, rounds_per_epoch=3, total_steps=12)
    assert sim.check(dropped=sim.sim_members[-1:]) > 0
    *others, away = sim.sim_members
    (message,) = (
        event["message"] for event in away.saw("warning") if "the optimizer" in event["message"]
    )
    assert "starts without its saved state" in message
    assert "belongs to another epoch or other weights" in message
    assert not any(sim_member.saw("remembered") for sim_member in sim.sim_members)
    assert not any(
        "the optimizer" in event["message"]
        for sim_member in others
        for event in sim_member.saw("warning")
    )


@pytest.mark.slow
def test_damaged_state_file_is_reported_and_kept(tmp_path: Path) -> None:
    """Files are empty, of another format, or without a state. The first member does not restart."""
    damages = (b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}")

    async def scenario(sim: SimulatedRun) -> None:
        sim.stores_optimizer_state = True
        await restart(sim, (0, 1, 2, 2))
        for sim_member, damage in zip(sim.sim_members[1:], damages, strict=True):
            private_state._file_in(
                tmp_path / "private", sim_member.wallet, sim.run.identity
            ).write_bytes(damage)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **ALL | {"min_clients": 4, "init_min_clients": 4}, **SHORT)
    assert sim.check() > 0
    for sim_member in sim.sim_members[1:]:
        (message,) = (
            event["message"]
            for event in sim_member.saw("warning")
            if "the optimizer" in event["message"]
        )
        assert "starts without its saved state" in message
        assert "is damaged" in message


@pytest.mark.slow
def test_full_disk_for_state_file_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(private_state, "save_file", full)

    async def scenario(sim: SimulatedRun) -> None:
        sim.stores_optimizer_state = True
        await restart(sim)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **ALL, **SHORT)
    assert sim.check() > 0
    for sim_member in sim.sim_members[1:]:
        assert any(
            "the optimizer state was not saved: the disk of" in e["message"]
            for e in sim_member.saw("warning")
        )
        assert not sim_member.saw("remembered")


def test_later_run_with_same_id_has_its_own_state_file(tmp_path: Path) -> None:
    """The first run's file stays, and the second run does not use its state."""
    files = set()
    for created in (1, 2):
        inbox = ResultInbox()
        run = replace(inbox.feed.view.run, created=created)
        feed = RunFeed(replace(inbox.feed.view, run=run))
        ports = replace(inbox.ports, feed=feed, coordinator=SimpleNamespace(wallet=bytes(32)))
        state = private_state.PrivateState(
            ports, inbox.role, inbox.workers, OwnState(ports, inbox.workers.state), tmp_path
        )
        files.add(state._file)
    assert len(files) == 2
