"""The real chain client on its simulated road: what a sick node says, or does not say, ends no member."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from solders.keypair import Keypair
from solders.rpc.requests import GetAccountInfo, GetGenesisHash, GetSlot

from aftermath.rules.state import RunState
from aftermath.sim.faulty_rpc import Mood
from aftermath.sim.sim_chain import SimChain, SimMember
from aftermath.sim.sim_node import BEHIND
from aftermath.sim.simulation import Simulation, play
from aftermath.sim.virtual_time import run_virtual
from member.short_runs import SHORT


@pytest.mark.slow
def test_a_node_that_names_no_genesis_hash_for_a_while_ends_nobody(tmp_path: Path) -> None:
    """A node that was away is asked again which cluster it serves; whatever it says instead is not another cluster."""

    async def story(sim: Simulation) -> None:
        players = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        for mood, seconds in ((Mood.FAILS, 4), (Mood.GENESIS, 6), (Mood.GOOD, 0)):
            for player in players:
                player.set_moods([mood])
            await asyncio.sleep(seconds)
        await sim.until_finished()

    sim = play(tmp_path, story, cooldown_time=30, rounds_per_epoch=4, total_steps=8)
    assert sim.check(dropped=sim.players) > 0
    assert sim.run.lost_sequences == 0


@pytest.mark.parametrize(
    "mood",
    [
        mood if mood is Mood.TYPES else pytest.param(mood, marks=pytest.mark.slow)
        for mood in Mood
        if mood is not Mood.GOOD
    ],
)
def test_a_member_whose_node_is_sick_for_ten_seconds_comes_back(tmp_path: Path, mood: Mood) -> None:
    async def story(sim: Simulation) -> None:
        players = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        players[2].set_moods([mood])
        await asyncio.sleep(10)
        players[2].set_moods([Mood.GOOD])
        await sim.until_finished()

    sim = play(tmp_path, story, rounds_per_epoch=4, total_steps=8)
    assert sim.check(dropped=[sim.players[2]]) > 0
    assert sim.run.lost_sequences == 0
    assert sim.players[2].saw("finished")


@pytest.mark.parametrize(
    "mood", [*(pytest.param(mood, marks=pytest.mark.slow) for mood in (Mood.SILENT, Mood.TYPES)), Mood.BEHIND]
)
def test_a_second_node_bridges_the_sickness_of_the_first(tmp_path: Path, mood: Mood) -> None:
    """Nobody is missed, although each member's first node is sick for the rest of the run."""

    async def story(sim: Simulation) -> None:
        players = [sim.add(tier, nodes=2) for tier in (0, 1, 2)]
        await sim.until_round(1)
        for player in players:
            player.set_moods([mood, Mood.GOOD])
        await sim.until_finished()

    sim = play(tmp_path, story, max_round_train_time=30, cooldown_time=60, **SHORT)
    assert not sim.record.dropped
    assert sim.check() == 24


def test_a_mute_websocket_is_noticed_and_polled_around(tmp_path: Path) -> None:
    async def story(sim: Simulation) -> None:
        player = sim.add(0)
        for tier in (1, 2):
            sim.add(tier)
        player.set_moods([Mood.MUTE])
        await sim.until_finished()

    sim = play(tmp_path, story, **SHORT)
    assert not sim.record.dropped
    assert sim.check() == 24


def test_moods_say_what_they_are_called() -> None:
    """The bytes that arrive, mood by mood."""

    async def main() -> dict[Mood, object]:
        chain = SimChain()
        keypair = Keypair.from_seed(bytes(32))
        member = SimMember(chain, keypair, "none")
        client, url = member.road.http(), member.road.endpoints[0].http
        found: dict[Mood, object] = {}

        async def ask(request: object) -> object:
            reply = await client.post(url, content=request.to_json())  # type: ignore[attr-defined]
            return reply.status_code if reply.status_code != 200 else reply.text

        await asyncio.sleep(60)
        genesis, slot = json.loads(str(await ask(GetGenesisHash())))["result"], json.loads(str(await ask(GetSlot())))
        assert len(genesis) in (43, 44)
        for mood in (Mood.LIMITS, Mood.FAILS, Mood.HTML, Mood.CUT, Mood.TYPES, Mood.GENESIS, Mood.BEHIND):
            member.road.set_moods([mood])
            asked = GetGenesisHash() if mood is Mood.GENESIS else GetSlot()
            found[mood] = await ask(asked if mood is not Mood.TYPES else GetAccountInfo(keypair.pubkey()))
        assert json.loads(str(found[Mood.BEHIND]))["result"] == slot["result"] - BEHIND
        assert json.loads(str(found[Mood.GENESIS]))["result"] != genesis
        return found

    found = run_virtual(main())
    assert (found[Mood.LIMITS], found[Mood.FAILS]) == (429, 500)
    assert str(found[Mood.HTML]).startswith("<html>")
    with pytest.raises(ValueError):
        json.loads(str(found[Mood.CUT]))
    assert run_virtual(main()) == found


def test_a_lagging_node_shows_the_run_as_it_was(tmp_path: Path) -> None:
    async def story(sim: Simulation) -> None:
        players = [sim.add(tier, nodes=2) for tier in (0, 1, 2)]
        await sim.until_round(3)
        assert players[0].chain is not None
        players[0].set_moods([Mood.BEHIND, Mood.GOOD])
        run = (await players[0].chain.view(fresh=True)).run
        assert run.current.height >= 3, "a reply older than what is known is not taken"
        await sim.until(lambda run: run.state is RunState.COOLDOWN)

    play(tmp_path, story)
