"""Test how judges fetch private states from members and auditors, in virtual time."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from aftermath.audit.claim import ProvenBlocks
from aftermath.member.ports import Ports, Workers
from aftermath.member.rounds.evidence_fetch import EvidenceFetch
from aftermath.optim.engine import outline_of
from aftermath.optim.state_merkle import BLOCK
from aftermath.p2p.transport import RequestRefused
from aftermath.replica.state_sharing import TOPIC, StateShare, copy_state
from aftermath.rules.announcements import Commitment, PrivateRoots
from aftermath.sim.sim_transport import SimNetwork, SimTransport
from aftermath.sim.virtual_time import InlineWorker, VirtualClock, run_virtual
from optim.private_states import OPTIMIZERS, trained
from rules.test_announcements import GOOD

MEMBER = b"m" * 32
AUDITOR = b"a" * 32
JUROR = b"j" * 32
LATENCY = 0.4
Serves = Callable[[int], bool]
"""Called with the number of earlier requests. Returns whether a peer serves this one."""


class Case:
    """A member with one private state, its auditor that lends it, and a juror."""

    def __init__(self, directory: Path, member: Serves, auditor: Serves) -> None:
        self.requests = {MEMBER: 0, AUDITOR: 0}
        self._serves = {MEMBER: member, AUDITOR: auditor}
        self._schema, engine = trained(OPTIMIZERS["sparseloco"], 0)
        self._state = copy_state(engine, engine.tree(), states=1)
        self.blocks = outline_of(self._schema, 0).count
        network = SimNetwork()
        transports = [network.open(peer) for peer in (JUROR, MEMBER, AUDITOR)]
        for transport in transports:
            transport.set_members([JUROR, MEMBER, AUDITOR])
        for transport in transports[1:]:
            self._serve(transport)
        worker = InlineWorker()
        ports = Ports(*[cast(Any, None)] * 2, transports[0], VirtualClock(), *[cast(Any, None)] * 2)
        self.fetch = EvidenceFetch(ports, self._schema, Workers(*[worker] * 7), directory)
        self.commitment = msgspec.structs.replace(
            Commitment(**GOOD),
            sender=MEMBER,
            tier=0,
            private=PrivateRoots(self._state.tree.root, self._state.tree.root, (0, 0)),
        )

    def _serve(self, transport: SimTransport) -> None:
        share = StateShare(transport)
        share.offer(self._state, states=1)
        peer = transport.node_id

        async def answer(asker: bytes, body: bytes) -> bytes:
            self.requests[peer] += 1
            await asyncio.sleep(LATENCY)
            if not self._serves[peer](self.requests[peer] - 1):
                raise RequestRefused("no")
            return await share.answer(asker, body)

        transport.handle(TOPIC, answer)

    def evidence(self) -> ProvenBlocks:
        return run_virtual(self.fetch.evidence(self.commitment, 0, AUDITOR))


def always(_: int) -> bool:
    return True


def never(_: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("member", "auditor"),
    [
        (always, always),
        (never, always),
        (always, never),
        pytest.param(lambda earlier: earlier < 80, always, id="member stops"),
        pytest.param(lambda earlier: 20 <= earlier < 80, lambda earlier: earlier > 9, id="both"),
    ],
)
def test_juror_fetches_each_block_from_member_or_auditor(
    tmp_path: Path, member: Serves, auditor: Serves
) -> None:
    case = Case(tmp_path, member, auditor)
    evidence = case.evidence()
    assert len(evidence.before) == case.blocks
    assert evidence.before == evidence.after
    # Few blocks are fetched twice or refused.
    assert sum(case.requests.values()) < 2 * case.blocks * 1.3


def test_refusing_member_gets_few_requests(tmp_path: Path) -> None:
    case = Case(tmp_path, never, never)

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(120.0):
                await case.fetch.evidence(case.commitment, 0, None)

    run_virtual(wait())
    assert "refused" in case.fetch.trouble(case.commitment)
    assert 0 < case.requests[MEMBER] < 60


def test_fetches_together_leave_space_for_own_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, always, always)
    needed = 2 * case.blocks * BLOCK  # before and after the share
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2 * needed))

    async def fetch_twice_at_once() -> None:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(case.fetch.evidence(case.commitment, 0, None))
            await asyncio.sleep(LATENCY)
            with pytest.raises(OSError, match="No space left"):
                await case.fetch.evidence(case.commitment, 0, None)
        assert len(first.result().after) == case.blocks
        await case.fetch.evidence(case.commitment, 0, None)

    run_virtual(fetch_twice_at_once())
