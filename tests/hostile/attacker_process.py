"""The process of all hostile members of a run. Each one joins for its epochs and attacks.

python attacker_process.py SCHEDULE

SCHEDULE is a JSON list of {"attack", "first", "epoch", "settings"}. It also writes actions.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from solders.pubkey import Pubkey

from aftermath.base.concurrency import every, first_of
from aftermath.chain.addresses import run_addresses
from aftermath.chain.member import SolanaMember
from aftermath.chain.views import parse_run
from aftermath.chain.wallet import identity_secret, load_wallet
from aftermath.coordinator.errors import CoordinatorError
from aftermath.p2p.iroh import open_iroh
from aftermath.programs import COORDINATOR_ID
from aftermath.replica.origin import Origin
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from aftermath.train import connection, session, sinks
from aftermath.train.connection import on_solana
from aftermath.train.device_options import device_setup
from aftermath.train.settings import TrainSettings
from e2e.network import read
from hostile.attacks import ATTACKS
from hostile.hostile_member import Behaviour, HostileMember, HostileTransport

POLL_S = 0.2
SETTINGS = TypeAdapter(TrainSettings)


class AttackerProcess:
    """All hostile members of a run, by their keys."""

    def __init__(self, schedule: list[dict[str, Any]], place: Path) -> None:
        self._schedule = schedule
        self._actions_file = place
        self._by_secret: dict[bytes, HostileMember] = {}
        self._by_wallet: dict[Pubkey, HostileMember] = {}
        self._actions: dict[str, tuple[int, int]] = {}
        self._run: Run

    def corrupt(self) -> None:
        """Make sessions with these keys hostile."""

        async def opened(secret: bytes, **options: Any) -> HostileTransport:
            return self._by_secret[secret].on_endpoint(await open_iroh(secret, **options))

        def chained(pool: Any, wallet: Any, *given: Any, **more: Any) -> SolanaMember:
            return self._by_wallet[wallet.pubkey].on_chain(
                SolanaMember(pool, wallet, *given, **more)
            )

        session.open_iroh = opened  # type: ignore[assignment, attr-defined]
        connection.SolanaMember = chained  # type: ignore[assignment, attr-defined]
        Origin.measure_weight = lambda self, replica, seq_len: Behaviour.weight  # type: ignore[method-assign]

    async def play(self) -> None:
        """Run each scheduled member in turn."""
        settings = SETTINGS.validate_python(self._schedule[0]["settings"])
        address = run_addresses(Pubkey.from_string(COORDINATOR_ID), settings.run_id).run

        async def follow() -> None:
            while True:
                self._run = await asyncio.to_thread(read, settings.rpc, address, parse_run)
                await asyncio.sleep(POLL_S)

        self._run = await asyncio.to_thread(read, settings.rpc, address, parse_run)
        await first_of(follow(), every(map(self._play_part, self._schedule)))

    async def _play_part(self, part: dict[str, Any]) -> None:
        """Run one member, from shortly before its first epoch to the end of its last."""
        first = part["first"]
        last = part["epoch"]
        while not self._close_to(first):
            await asyncio.sleep(POLL_S)
        while not self._past(last):
            await self._live(part)

    def _close_to(self, epoch: int) -> bool:
        """Return whether it is time to request a seat in this epoch."""
        run = self._run
        return self._past(epoch - 1) or (
            run.epoch == epoch - 1 and run.state.active and run.current.height >= 2
        )

    def _past(self, epoch: int) -> bool:
        return self._run.epoch > epoch or self._run.state is RunState.FINISHED

    async def _live(self, part: dict[str, Any]) -> None:
        """Run a member until its epochs end or it restarts."""
        kinds = ATTACKS[part["attack"]]
        settings = SETTINGS.validate_python(part["settings"])
        wallet = load_wallet(settings.wallet_private_key_path)
        secret = identity_secret(settings.run_id, wallet)
        me = HostileMember([kind() for kind in kinds], part["epoch"], secret)
        self._by_secret[secret] = self._by_wallet[wallet.pubkey] = me
        lives_for = min(
            (kind.lives_for for kind in kinds if kind.lives_for is not None), default=float("inf")
        )
        playing = asyncio.create_task(_session(settings))
        loop = asyncio.get_running_loop()
        ends_at = float("inf")
        while not self._past(part["epoch"]) and loop.time() < ends_at and not playing.done():
            if self._run.epoch == part["epoch"] and self._run.state.training:
                ends_at = min(ends_at, loop.time() + lives_for)
            await asyncio.sleep(POLL_S)
        if not self._past(part["epoch"]):
            me.actions += loop.time() >= ends_at
        elif not playing.done():
            with contextlib.suppress(CoordinatorError):
                await me.chain.leave()  # also gives up a pending seat request
        playing.cancel()
        await asyncio.wait([playing], timeout=5)
        me.end()
        before, began = self._actions.get(part["attack"], (0, me.began or 0))
        self._actions[part["attack"]] = before + me.actions, began
        self._actions_file.write_text(json.dumps(self._actions))


async def _session(settings: TrainSettings) -> None:
    with contextlib.ExitStack() as stack:
        events = sinks.events_of(settings, stack)
        try:
            named = device_setup(settings, on_solana(settings))
            session._emit_started(
                settings, named.backend.wallet, named.backend.pool.signs_with, events
            )
            await session._session(settings, named, events)
        except Exception:  # log only: how the member ends does not matter here
            traceback.print_exc()


if __name__ == "__main__":
    schedule = Path(sys.argv[1])
    attackers = AttackerProcess(
        json.loads(schedule.read_text()), schedule.with_name("actions.json")
    )
    attackers.corrupt()
    asyncio.run(attackers.play())
