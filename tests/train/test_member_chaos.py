"""Eight members of mixed tiers under seeded faults: whatever happens, the laws of a run hold and it ends."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from aftermath.run.state import RunState
from aftermath.sim.simulation import Player, Simulation, play
from aftermath.watch.events import Event

TIERS = (0, 0, 0, 1, 1, 2, 2, 2)


class Trouble:
    """Faults of one seed: crashes, returns, leaving, outages of the chain, cuts, lost messages and replies, pauses."""

    def __init__(self, sim: Simulation, seed: int, seconds: float) -> None:
        self._sim, self._random, self._seconds = sim, random.Random(seed), seconds
        self.touched: set[str] = set()

    async def make(self) -> None:
        kinds = [self._crash, self._crash, self._leave, self._alone, self._outage, self._cut, self._lose, self._replies]
        while self._sim.now < self._seconds:
            await asyncio.sleep(self._random.uniform(2, 15))
            await self._random.choice([*kinds, self._pause])()
        await self._calm()

    def _pick(self) -> Player:
        player = self._random.choice(self._sim.players)
        self.touched.add(player.name)
        return player

    async def _crash(self) -> None:
        player = self._pick()
        if player.alive:
            await self._sim.kill(player)
        else:
            self._sim.start(player)

    async def _leave(self) -> None:
        player = self._pick()
        if player.alive:
            await self._sim.stop(player)

    async def _alone(self) -> None:
        player = self._pick()
        if player.chain is not None:
            player.chain.down = True
            await asyncio.sleep(self._random.uniform(1, 25))
            player.chain.down = False

    async def _outage(self) -> None:
        self._touch_all()
        self._sim.chain.down = True
        await asyncio.sleep(self._random.uniform(1, 20))
        self._sim.chain.down = False

    async def _cut(self) -> None:
        one = self._pick()
        for other in self._random.sample([player for player in self._sim.players if player is not one], 3):
            self._sim.network.cut(one.id, other.id)
        self._touch_all()
        await asyncio.sleep(self._random.uniform(1, 12))
        self._sim.network.mend()

    async def _lose(self) -> None:
        lot = random.Random(self._random.random())
        self._touch_all()
        self._sim.network.loses = lambda sender, receiver: lot.random() < 0.3
        await asyncio.sleep(self._random.uniform(1, 10))
        self._sim.network.loses = lambda sender, receiver: False

    async def _replies(self) -> None:
        player = self._pick()
        if player.chain is not None:
            player.chain.replies_lost = self._random.randint(1, 4)

    async def _pause(self) -> None:
        if self._sim.run.state.halted:
            return
        self._sim.pause(True)
        await asyncio.sleep(self._random.uniform(0, 20))
        if self._sim.run.pending_pause or self._sim.run.state is RunState.PAUSED:
            self._sim.pause(False)

    def _touch_all(self) -> None:
        self.touched |= {player.name for player in self._sim.players}

    async def _calm(self) -> None:
        if self._sim.run.state is RunState.PAUSED or self._sim.run.pending_pause:
            self._sim.pause(False)
        for player in self._sim.players:
            if not player.alive and self._sim.run.state is not RunState.FINISHED:
                self._sim.start(player)


def _storm(place: Path, seed: int, *, seconds: float = 150.0, steps: int = 24) -> tuple[Simulation, Trouble]:
    """Faults for so many virtual seconds; then everybody comes back and the run goes on to its end."""
    found: list[Trouble] = []

    async def story(sim: Simulation) -> None:
        for index, tier in enumerate(TIERS):
            sim.add(tier, seconds=(0.4, 0.7, 1.2)[index % 3])
        trouble = Trouble(sim, seed, seconds)
        found.append(trouble)
        await trouble.make()
        await sim.until_finished()

    rules = {"min_clients": 3, "init_min_clients": 4, "total_steps": steps, "rounds_per_epoch": 5, "cooldown_time": 12}
    return play(place, story, **rules, global_batch_size_start=24, global_batch_size_end=24), found[0]


def _judge(sim: Simulation, trouble: Trouble) -> None:
    disturbed = [player for player in sim.players if player.name in trouble.touched]
    assert sim.check(dropped=disturbed) > 0
    assert sim.run.lost_sequences == 0
    assert sim.run.step == 25


@pytest.mark.parametrize("seed", range(3))
def test_the_laws_hold_under_faults(tmp_path: Path, seed: int) -> None:
    _judge(*_storm(tmp_path, seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 23))
def test_the_laws_hold_under_more_faults(tmp_path: Path, seed: int) -> None:
    _judge(*_storm(tmp_path, seed))


def test_the_same_seed_gives_the_same_events(tmp_path: Path) -> None:
    first, _ = _storm(tmp_path / "first", 7, seconds=60, steps=10)
    second, _ = _storm(tmp_path / "second", 7, seconds=60, steps=10)
    assert len(first.players[0].events) > 100
    for one, other in zip(first.players, second.players, strict=True):
        assert [_placeless(e) for e in one.events] == [_placeless(e) for e in other.events], one.name


def _placeless(event: Event) -> Event:
    return {key: value for key, value in event.items() if key != "path"}
