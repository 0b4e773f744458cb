"""A member that copies another's result gets no credit, and abusing the defence gains nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from aftermath.member.announced_results import CLOSED_ON
from aftermath.member.round_plan import RoundPlan
from aftermath.rules import bitmap
from aftermath.rules.announcements import Commitment, LevelPayload, decode_announcement
from aftermath.rules.seal import Reveal, RoundClosed, key_of, masked
from aftermath.rules.state import RunState
from aftermath.sim.chain_invariants import InvariantBroken
from aftermath.sim.faults import Faults
from aftermath.sim.invariants import Invariants
from aftermath.sim.sim_member import SimMember
from aftermath.sim.sim_transport import SimTransport
from aftermath.sim.simulation import SimulatedRun, play
from member.dishonest_members import Lie, falsify_results, sign, tell_all
from member.short_runs import SHORT

ROUND_SECONDS = 15  # as in the run's rules

EITHER_OVERLAP = [pytest.param(0, marks=pytest.mark.slow), 1]

_SECRETS: dict[bytes, bytes] = {}
"""Secrets of a run's members, by p2p key."""
Copied = Callable[[Commitment, Commitment, bytes, SimTransport], Commitment]
"""Returns the copier's announcement, from its own commitment, its victim's, and the victim's key if
it waits for that.
"""


def seat_of(sim_member: SimMember) -> int:
    seat: int = sim_member.saw("joined")[-1]["seat"]
    return seat


# --- copying --------------------------------------------------------------------------------------


def copies(
    sim: SimulatedRun, copier: SimMember, victim: SimMember, copied: Copied, *, opened: bool = False
) -> Lie:
    """Wait for the victim's announcement or its key, and announce the same result as one's own."""
    tasks: list[asyncio.Task[None]] = []

    async def wait(commitment: Commitment, transport: SimTransport) -> None:
        member = copier.member
        assert member is not None
        while True:
            for theirs in member._results.candidates(commitment.height, seat_of(victim)):
                if not opened or theirs.key:
                    await asyncio.sleep(0.2)  # time to fetch the payloads
                    tell_all(
                        transport,
                        sign(
                            copier,
                            copied(
                                commitment,
                                theirs.commitment,
                                getattr(theirs, "key", b""),
                                transport,
                            ),
                        ),
                    )
                    return
            await asyncio.sleep(0.05)

    async def lie(commitment: Commitment, transport: SimTransport) -> None:
        tasks.append(asyncio.ensure_future(wait(commitment, transport)))

    return lie


def the_bytes(
    commitment: Commitment, theirs: Commitment, key: bytes, transport: SimTransport
) -> Commitment:
    return msgspec.structs.replace(commitment, levels=theirs.levels)


def the_bytes_and_the_seal(
    commitment: Commitment, theirs: Commitment, key: bytes, transport: SimTransport
) -> Commitment:
    return msgspec.structs.replace(commitment, levels=theirs.levels, seal=theirs.seal)


def the_work(
    commitment: Commitment, theirs: Commitment, key: bytes, transport: SimTransport
) -> Commitment:
    """Return a result masked under the copier's own seal: a valid commitment."""
    own = key_of(_SECRETS[commitment.sender], commitment.place)
    levels = {}
    for level, payload in theirs.levels.items():
        data = masked(masked(transport._blobs[payload.blake3], key, level), own, level)
        levels[level] = LevelPayload(transport.publish(data), len(data))
    return msgspec.structs.replace(commitment, levels=levels)


def _an_epoch(
    place: Path, hostile: Callable[[SimulatedRun, list[SimMember]], None], **rules: int
) -> SimulatedRun:
    """Run one epoch of tiers 0, 1, 2 and 0. The first member attacks from round 1 on."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 0)]
        _SECRETS.update({sim_member.id: sim_member.identity.secret() for sim_member in sim_members})
        await sim.until_round(1)
        hostile(sim, sim_members)
        await sim.until(lambda run: run.epoch == 1)

    return play(place, scenario, init_min_clients=4, rounds_per_epoch=4, **rules)


def _honest_are_whole(sim: SimulatedRun) -> None:
    """Check that all other members finished the epoch with equal replicas."""
    hostile, *honest = sim.sim_members
    assert sim.check(hostile=[hostile]) > 0
    for sim_member in honest:
        assert [e["epoch"] for e in sim_member.saw("cooldown")] == [0], sim_member.name
        assert not [
            e for e in sim_member.saw("refused", why=CLOSED_ON) if e["seat"] != seat_of(hostile)
        ], sim_member.name
    assert sim.run.lost_sequences == 0


def _dropped(sim: SimulatedRun) -> set[bytes]:
    return {sim.members.seats[seat].signer for _, seat in sim.record.dropped}


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
@pytest.mark.parametrize(
    "copied",
    [
        pytest.param(the_bytes, marks=pytest.mark.slow),
        pytest.param(the_bytes_and_the_seal, marks=pytest.mark.slow),
        the_work,
    ],
)
def test_copied_result_is_not_credited_and_member_drops_out(
    tmp_path: Path, copied: Copied, overlap: int
) -> None:
    """`the_bytes` attacks payloads that are not sealed: there, the copier is credited in every
    round.
    """

    def hostile(sim: SimulatedRun, sim_members: list[SimMember]) -> None:
        falsify_results(
            sim_members[0],
            copies(sim, sim_members[0], sim_members[3], copied, opened=copied is the_work),
        )

    sim = _an_epoch(tmp_path, hostile, overlap=overlap)
    _honest_are_whole(sim)
    assert _dropped(sim) == {sim.sim_members[0].wallet}
    copier = seat_of(sim.sim_members[0])
    refused = [
        event
        for sim_member in sim.sim_members[1:]
        for event in sim_member.saw("refused", seat=copier)
    ]
    assert copied is not the_work or any(event["why"] == CLOSED_ON for event in refused)


@pytest.mark.slow
def test_copied_result_with_lying_witness_is_not_credited(tmp_path: Path) -> None:
    """Two of five collude: one copies. Both close at once and still attest the copy."""

    rounds: set[int] = set()
    credited: set[int] = set()

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 0, 1)]

        def look() -> None:
            run = sim.run
            judged = sim.run.config.judged
            for header in run.rounds:
                if judged(header.height) > 0 and header.height < run.current.height:
                    rounds.add(judged(header.height))
                    if bitmap.contains(header.attested, seat_of(sim_members[0])):
                        credited.add(judged(header.height))

        _SECRETS.update({sim_member.id: sim_member.identity.secret() for sim_member in sim_members})
        await sim.until_round(1)
        for liar in sim_members[:2]:
            _closes_early_and_continues(liar)
        sim.chain.observers.append(look)
        falsify_results(
            sim_members[0], copies(sim, sim_members[0], sim_members[3], the_work, opened=True)
        )
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, init_min_clients=5)
    assert sim.check(hostile=sim.sim_members[:2]) > 0
    assert rounds
    assert not credited
    for sim_member in sim.sim_members[2:]:
        assert [e["epoch"] for e in sim_member.saw("cooldown")] == [0], sim_member.name
    assert sim.run.lost_sequences == 0


# --- abusing the defence --------------------------------------------------------------------------


def _closes_early_and_continues(sim_member: SimMember) -> None:
    """Close each round as soon as it begins, and attest later results anyway."""
    member = sim_member.member
    assert member is not None
    results = member._results
    opening = member._reveals
    results.close_round = lambda height: None  # type: ignore[method-assign]
    opened = results.open
    closing: list[asyncio.Task[None]] = []

    def early(plan: RoundPlan) -> None:
        opened(plan)
        if plan.owing:
            closing.append(asyncio.ensure_future(opening.close_round(plan, seat_of(sim_member))))

    results.open = early  # type: ignore[method-assign]


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_early_closing_member_leaves_out_nobody(tmp_path: Path, overlap: int) -> None:
    sim = _an_epoch(
        tmp_path,
        lambda sim, sim_members: _closes_early_and_continues(sim_members[0]),
        overlap=overlap,
    )
    _honest_are_whole(sim)
    assert not sim.record.dropped
    assert {e["results"] for sim_member in sim.sim_members for e in sim_member.saw("applied")} == {
        4
    }


def _intercept(
    sim_member: SimMember, kind: type, instead: Callable[[bytes, SimTransport], None]
) -> None:
    transport = sim_member.transport
    assert transport is not None
    honest = transport.announce

    async def announce(data: bytes) -> None:
        if isinstance(decode_announcement(data), kind):
            instead(data, transport)
        else:
            await honest(data)

    transport.announce = announce  # type: ignore[method-assign]


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_member_never_revealing_delivers_nothing(tmp_path: Path, overlap: int) -> None:
    """It costs an epoch one round's time, like any late member."""

    def hostile(sim: SimulatedRun, sim_members: list[SimMember]) -> None:
        _intercept(sim_members[0], Reveal, lambda data, transport: None)
        transport = sim_members[0].transport
        assert transport is not None

        async def answer(peer: bytes, body: bytes) -> bytes:
            return msgspec.msgpack.encode([])

        transport.handle("commitments", answer)

    sim = _an_epoch(tmp_path, hostile, overlap=overlap)
    _honest_are_whole(sim)
    assert _dropped(sim) == {sim.sim_members[0].wallet}
    rounds = [e["t"] for e in sim.sim_members[1].saw("round", epoch=0)]
    assert sum(later - now > 0.8 * ROUND_SECONDS for now, later in pairwise(rounds)) <= 1


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_reveal_to_one_peer_reaches_all(tmp_path: Path, overlap: int) -> None:
    """Every member relays the keys that it has."""

    def hostile(sim: SimulatedRun, sim_members: list[SimMember]) -> None:
        _intercept(
            sim_members[0], Reveal, lambda data, transport: transport.tell(sim_members[1].id, data)
        )

    sim = _an_epoch(tmp_path, hostile, overlap=overlap)
    _honest_are_whole(sim)
    assert not sim.record.dropped


@pytest.mark.slow
@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_witness_never_closing_delays_nobody(tmp_path: Path, overlap: int) -> None:
    sim = _an_epoch(
        tmp_path,
        lambda sim, sim_members: _intercept(
            sim_members[0], RoundClosed, lambda data, transport: None
        ),
        overlap=overlap,
    )
    _honest_are_whole(sim)
    assert not sim.record.dropped
    rounds = [e["t"] for e in sim.sim_members[1].saw("round", epoch=0)]
    assert max(later - now for now, later in pairwise(rounds)) < 0.8 * ROUND_SECONDS


# --- restarts and small runs ----------------------------------------------------------------------


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
@pytest.mark.parametrize("count", [1, 2])
def test_small_runs_reveal_their_results(tmp_path: Path, count: int, overlap: int) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in range(count):
            sim.add(tier)
        await sim.until_finished()

    sim = play(
        tmp_path, scenario, overlap=overlap, init_min_clients=count, min_clients=count, **SHORT
    )
    sim.check()
    assert not sim.record.dropped
    assert sim.run.lost_sequences == 0
    assert all(
        {e["results"] for e in sim_member.saw("applied")} == {count}
        for sim_member in sim.sim_members
    )


@pytest.mark.slow
def test_restarted_member_reveals_earlier_commitment(tmp_path: Path) -> None:
    """It has only its secret left. The result still counts."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 0)]
        await sim.until_round(1)
        await sim.until(lambda run: bool(sim_members[3].saw("trained", height=1)))
        await asyncio.sleep(0.1)
        await sim.kill(sim_members[3])
        sim.start(sim_members[3])
        header = (await sim.until_round(3)).round(2)  # the witnesses of round 2 judged round 1
        assert header is not None
        credited.append(bitmap.contains(header.attested, seat_of(sim_members[3])))
        await sim.until(lambda run: run.state is RunState.COOLDOWN)

    credited: list[bool] = []
    sim = play(tmp_path, scenario, init_min_clients=4, rounds_per_epoch=4)
    assert credited == [True]
    sim.check(dropped=[sim.sim_members[3]])


# --- the invariant --------------------------------------------------------------------------------


def test_closing_on_timely_member_violates_invariant(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        judge = Invariants(sim, Faults(sim, None, None))  # type: ignore[arg-type]
        judge.check_now()
        sim_members[0].member._results.close_round(2)  # type: ignore[union-attr]
        await sim.until_round(3)
        with pytest.raises(InvariantBroken, match=r"got the result of .* after it had closed"):
            judge.check_now()

    play(tmp_path, scenario)
