"""A member's place on chain under a virtual clock: no ghost stays behind, and no storm of joins."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from train.simulated import Simulation, play

LATENCY = 1.0  # virtual seconds to the chain, and as many back


@pytest.mark.parametrize("after", [0.5, 1.5], ids=["before it lands", "before its confirmation is seen"])
def test_ctrl_c_while_a_join_is_under_way_leaves_no_ghost(tmp_path: Path, after: float) -> None:
    """The time from the sending of join to Ctrl-C: half a second after the join left, or after it landed."""

    async def story(sim: Simulation) -> None:
        sim.chain.latency = LATENCY
        player = sim.add(0)
        assert player.chain is not None
        joined = player.chain.join
        sent: list[float] = []

        async def noted(**wish: object) -> None:
            sent.append(sim.now)
            await joined(**wish)  # type: ignore[arg-type]

        player.chain.join = noted  # type: ignore[method-assign, assignment]
        await sim.until(lambda _: bool(sent))
        await asyncio.sleep(sent[0] + after - sim.now)
        assert not player.saw("joined")
        await sim.stop(player)
        await asyncio.sleep(60)
        assert sim.members.pending == 0
        assert len(player.saw("left")) == 1

    sim = play(tmp_path, story)
    assert sim.members.find(bytes(sim.players[0].key.pubkey())) is not None, "the join did land"
    assert sim.run.current.roster == 0


def test_leaving_without_a_place_is_no_error(tmp_path: Path) -> None:
    async def story(sim: Simulation) -> None:
        player = sim.add(0)
        await sim.until(lambda _: sim.members.pending > 0)
        await sim.stop(player)
        assert player.member is not None
        await player.member.leave()
        assert len(player.saw("left")) == 1

    play(tmp_path, story)
