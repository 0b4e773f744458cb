"""A level without attestation comes from the checkpoint for all members, whatever peers offer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from aftermath.coordinator.errors import Unavailable
from aftermath.rules.contents import unattested
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.dishonest_members import offer_inconsistently

GONE_BACK = "level 0 of the model goes back to the checkpoint of step "
HOSTILE = 3


def _says_another_level_0(sim_member: SimMember) -> None:
    chain = sim_member.chain
    assert chain is not None
    honest = chain.attest

    async def attest(seat: int, place: object, hashes: Mapping[int, bytes]) -> None:
        await honest(seat, place, {**hashes, 0: b"\7" * 32} if 0 in hashes else hashes)  # type: ignore[arg-type]

    chain.attest = attest  # type: ignore[method-assign]


def _cannot_attest(sim_member: SimMember) -> None:
    chain = sim_member.chain
    assert chain is not None

    async def attest(*what: object) -> None:
        raise Unavailable("its node is down for this")

    chain.attest = attest  # type: ignore[method-assign]


def _told(sim_member: SimMember) -> list[str]:
    return [
        event["message"]
        for event in sim_member.saw("warning")
        if event["message"].startswith(GONE_BACK)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "parted",
    ["a newcomer", "a holder, with another one whose attestation is late"],
)
def test_inconsistent_offers_do_not_fork_replicas(tmp_path: Path, parted: str) -> None:
    """Two holders of a level attest different hashes, or one of three attests a wrong hash."""

    async def scenario(sim: SimulatedRun) -> None:
        tiers = (0, 1, 2, 0) if parted == "a newcomer" else (0, 0, 1, 0)
        sim_members = [sim.add(tier) for tier in tiers]
        await sim.until(lambda run: run.state is RunState.WARMUP)
        hostile = sim_members[HOSTILE]
        offer_inconsistently(hostile, {sim_members[0].id})
        if parted == "a newcomer":
            _says_another_level_0(hostile)
            await sim.until_round(1)
            sim.add(0)
        else:
            _cannot_attest(hostile)
            _cannot_attest(sim_members[0])
        run = await sim.until(lambda run: run.epoch == 1 and run.state is RunState.WARMUP)
        assert unattested(run) == [0]
        await sim.until(lambda run: run.epoch == 2)

    sim = play(
        tmp_path, scenario, init_min_clients=4, min_clients=2, rounds_per_epoch=3, total_steps=400
    )
    honest = [
        sim_member for sim_member in sim.sim_members if sim_member is not sim.sim_members[HOSTILE]
    ]
    assert sim.compare(honest) > 0
    for sim_member in honest:
        source = sim_member.saw("model")[-1]["source"]
        assert (
            source == "its own replica" if sim_member.tier else source.endswith("the checkpoint")
        ), sim_member.name
        assert len(_told(sim_member)) == 1
