"""The real chain client over a simulated connection: no answer of a faulty node ends a member."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from solders.keypair import Keypair
from solders.rpc.requests import GetAccountInfo, GetGenesisHash, GetSlot

from aftermath.rules.state import RunState
from aftermath.sim.faulty_rpc import NodeFault
from aftermath.sim.sim_chain import SimChain, SimMemberChain
from aftermath.sim.sim_node import BEHIND
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.sim.virtual_time import run_virtual
from member.short_runs import SHORT

SLOW = {NodeFault.SILENT, NodeFault.LIMITS, NodeFault.HTML, NodeFault.BEHIND, NodeFault.MUTE}
"""No answer, an error, a wrong answer, an old answer, no notifications. Similar faults are nightly.
"""


@pytest.mark.slow
def test_missing_genesis_hash_ends_no_member(tmp_path: Path) -> None:
    """The client asks a returning node for its cluster again. An invalid answer is not another
    cluster.
    """

    async def story(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        for node_fault, seconds in (
            (NodeFault.FAILS, 4),
            (NodeFault.GENESIS, 6),
            (NodeFault.GOOD, 0),
        ):
            for sim_member in sim_members:
                sim_member.set_node_faults([node_fault])
            await asyncio.sleep(seconds)
        await sim.until_finished()

    sim = play(tmp_path, story, cooldown_time=30, rounds_per_epoch=4, total_steps=8)
    assert sim.check(dropped=sim.sim_members) > 0
    assert sim.run.lost_sequences == 0


@pytest.mark.parametrize(
    "node_fault",
    [
        NodeFault.TYPES,
        *(
            pytest.param(
                node_fault, marks=pytest.mark.slow if node_fault in SLOW else pytest.mark.nightly
            )
            for node_fault in NodeFault
            if node_fault not in (NodeFault.GOOD, NodeFault.TYPES)
        ),
    ],
)
def test_member_with_faulty_node_for_ten_seconds_returns(
    tmp_path: Path, node_fault: NodeFault
) -> None:
    async def story(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        sim_members[2].set_node_faults([node_fault])
        await asyncio.sleep(10)
        sim_members[2].set_node_faults([NodeFault.GOOD])
        await sim.until_finished()

    sim = play(tmp_path, story, rounds_per_epoch=4, total_steps=8)
    assert sim.check(dropped=[sim.sim_members[2]]) > 0
    assert sim.run.lost_sequences == 0
    assert sim.sim_members[2].saw("finished")


@pytest.mark.slow
@pytest.mark.parametrize("node_fault", [NodeFault.SILENT, NodeFault.TYPES, NodeFault.BEHIND])
def test_second_node_bridges_fault_of_first(tmp_path: Path, node_fault: NodeFault) -> None:
    """No member drops out, although each member's first node stays faulty."""

    async def story(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier, nodes=2) for tier in (0, 1, 2)]
        await sim.until_round(1)
        for sim_member in sim_members:
            sim_member.set_node_faults([node_fault, NodeFault.GOOD])
        await sim.until_finished()

    sim = play(tmp_path, story, max_round_train_time=30, cooldown_time=60, **SHORT)
    assert not sim.record.dropped
    assert sim.check() == 24


@pytest.mark.slow
def test_mute_websocket_is_replaced_by_polling(tmp_path: Path) -> None:
    async def story(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        for tier in (1, 2):
            sim.add(tier)
        sim_member.set_node_faults([NodeFault.MUTE])
        await sim.until_finished()

    sim = play(tmp_path, story, **SHORT)
    assert not sim.record.dropped
    assert sim.check() == 24


def test_node_faults_match_their_names() -> None:
    """Check the bytes that arrive with each fault."""

    async def main() -> dict[NodeFault, object]:
        chain = SimChain()
        keypair = Keypair.from_seed(bytes(32))
        member = SimMemberChain(chain, keypair, "none")
        client = member.rpc.http()
        url = member.rpc.endpoints[0].http
        found: dict[NodeFault, object] = {}

        async def ask(request: object) -> object:
            reply = await client.post(url, content=request.to_json())  # type: ignore[attr-defined]
            return reply.status_code if reply.status_code != 200 else reply.text

        await asyncio.sleep(60)
        genesis = json.loads(str(await ask(GetGenesisHash())))["result"]
        slot = json.loads(str(await ask(GetSlot())))
        assert len(genesis) in (43, 44)
        for node_fault in (
            NodeFault.LIMITS,
            NodeFault.FAILS,
            NodeFault.HTML,
            NodeFault.CUT,
            NodeFault.TYPES,
            NodeFault.GENESIS,
            NodeFault.BEHIND,
        ):
            member.rpc.set_node_faults([node_fault])
            asked = GetGenesisHash() if node_fault is NodeFault.GENESIS else GetSlot()
            found[node_fault] = await ask(
                asked if node_fault is not NodeFault.TYPES else GetAccountInfo(keypair.pubkey())
            )
        assert json.loads(str(found[NodeFault.BEHIND]))["result"] == slot["result"] - BEHIND
        assert json.loads(str(found[NodeFault.GENESIS]))["result"] != genesis
        return found

    found = run_virtual(main())
    assert (found[NodeFault.LIMITS], found[NodeFault.FAILS]) == (429, 500)
    assert str(found[NodeFault.HTML]).startswith("<html>")
    with pytest.raises(ValueError):
        json.loads(str(found[NodeFault.CUT]))
    assert run_virtual(main()) == found


def test_lagging_node_shows_old_run(tmp_path: Path) -> None:
    async def story(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier, nodes=2) for tier in (0, 1, 2)]
        await sim.until_round(3)
        assert sim_members[0].chain is not None
        sim_members[0].set_node_faults([NodeFault.BEHIND, NodeFault.GOOD])
        run = (await sim_members[0].chain.view(fresh=True)).run
        assert run.current.height >= 3, "a reply older than what is known is not taken"
        await sim.until(lambda run: run.state is RunState.COOLDOWN)

    play(tmp_path, story)
