"""Test which announcements a member accepts, what it stores of them, and what it forgets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from solders.keypair import Keypair

from aftermath.member.announced_results import Results
from aftermath.member.round_plan import plan_round
from aftermath.member.rounds.collect import Collector
from aftermath.optim.schema import build_schema
from aftermath.p2p.transport import RequestRefused
from aftermath.rules.announcements import LevelPayload, SequenceInterval, encode_announcement
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.setup import CONFIG
from aftermath.sim.virtual_time import run_virtual
from member.result_inbox import (
    BATCH,
    DISTRO,
    SCHEMA,
    SECRETS,
    ResultInbox,
    commitment_of,
    header_of,
    key_to,
    p2p_of,
    plan_of,
    three_members,
)

# --- plan -----------------------------------------------------------------------------------------


def test_plan_shares_cover_whole_batch() -> None:
    plan = plan_of()
    spans = sorted((r.start, r.stop) for seat in range(3) for r in plan.ranges(seat))
    assert spans[0][0] == 100
    assert spans[-1][1] == 100 + BATCH
    assert all(left[1] == right[0] for left, right in pairwise(spans))
    assert plan.owing == frozenset(range(3))
    assert plan.ranges(17) == []


@pytest.mark.parametrize("seat", range(3))
def test_plan_admits_assigned_result(seat: int) -> None:
    assert plan_of().admits(commitment_of(None, seat), SCHEMA)


@pytest.mark.parametrize(
    "changed",
    [
        {"sender": p2p_of(2)},
        {"signer": (2).to_bytes(32, "big")},
        {"run_id": "other"},
        {"epoch": 3},
        {"height": 5},
        {"step": 6},
        {"seat": 0},
        {"seat": 200},
        {"tier": 2},
        {"intervals": (SequenceInterval(100, 109),)},
        {"intervals": (SequenceInterval(0, 3),)},
        {"schema_hash": bytes(32)},
        {"levels": {}},
        {"levels": {1: LevelPayload(b"d" * 32, SCHEMA.results.payload_bytes(1))}},
        {"levels": {2: LevelPayload(b"d" * 32, SCHEMA.results.payload_bytes(2))}},
        {
            "levels": {
                level: LevelPayload(b"d" * 32, SCHEMA.results.payload_bytes(level))
                for level in range(3)
            }
        },
        {
            "levels": {
                level: LevelPayload(b"d" * 32, SCHEMA.results.payload_bytes(level) + 1)
                for level in (1, 2)
            }
        },
    ],
)
def test_plan_rejects_result_differing_from_assignment(changed: dict[str, Any]) -> None:
    assert not plan_of().admits(msgspec.structs.replace(commitment_of(None, 1), **changed), SCHEMA)


@pytest.mark.parametrize(
    ("optimizer", "admitted"),
    [(DISTRO, False), (SparseLoCo(), False), (SparseLoCo(inner_optimizer="muon"), True)],
)
def test_only_plan_of_muon_admits_steps_in_bf16(optimizer: Optimizer, admitted: bool) -> None:
    """No judge can repeat steps that no device makes."""
    schema = build_schema(CONFIG.to_hf(), 3, optimizer)
    good = msgspec.structs.replace(
        commitment_of(None, 1),
        schema_hash=schema.hash(),
        levels={
            level: LevelPayload(b"d" * 32, schema.results.payload_bytes(level)) for level in (1, 2)
        },
    )
    in_bf16 = msgspec.structs.replace(good, passes=good.passes._replace(steps="bf16"))
    assert plan_of().admits(good, schema)
    assert plan_of().admits(in_bf16, schema) == admitted


def test_member_with_empty_share_owes_and_announces_nothing() -> None:
    plan = plan_round("test", 2, replace(header_of(), batch=0), three_members())
    assert plan.owing == frozenset()
    assert not plan.admits(commitment_of(None, 1), SCHEMA)


def test_result_with_all_levels_is_held() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of())
        commitment = inbox.hear(1)
        assert inbox.results.announced(4) == {1}
        assert inbox.results.attestable(4) == {}
        assert inbox.results.settled(4) == frozenset()
        await asyncio.sleep(1)
        assert inbox.results.attestable(4) == {1: commitment.digest}
        assert inbox.results.settled(4) == {1}
        inbox.results.close()

    run_virtual(scenario())


def test_repeated_announcement_changes_nothing() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of())
        inbox.hear(1)
        inbox.hear(1, loss=9.0)  # the loss is not part of the commitment
        await asyncio.sleep(1)
        assert len(inbox.results.candidates(4, 1)) == 1

    run_virtual(scenario())


def test_member_without_share_is_not_banned_for_strangers() -> None:
    """Anyone can create many keys, and peers relay what those sign."""

    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of())
        for number in range(40):
            key = bytes([100 + number // 39]) * 32
            sender = bytes(Keypair.from_seed(key).pubkey())
            commitment = msgspec.structs.replace(
                commitment_of(None, 1), sender=sender, loss=float(number)
            )
            inbox.results.admit(commitment, encode_announcement(commitment, key))
        assert inbox.transports[0].barred == []
        for number in range(17):
            inbox.hear(1, loss=float(number), schema_hash=bytes(32))
        assert [who for who, _ in inbox.transports[0].barred] == [p2p_of(1)]

    run_virtual(scenario())


def test_early_announcements_wait_for_their_round() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        inbox.hear(1, 5)
        assert inbox.results.announced(5) == frozenset()
        inbox.results.open(plan_of(5))
        assert inbox.results.announced(5) == {1}

    run_virtual(scenario())


def test_announcements_of_other_epochs_or_far_ahead_are_dropped() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        inbox.hear(1, 9)
        inbox.hear(1, 5, epoch=3)
        inbox.hear(1, 3)
        assert inbox.results._early == {}

    run_virtual(scenario())


def test_old_rounds_are_forgotten_and_payloads_withdrawn() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        commitment = inbox.hear(2, signer=(2).to_bytes(32, "big"))
        await asyncio.sleep(1)
        digest = commitment.levels[2].blake3
        assert digest in inbox.transports[0]._blobs
        for height in (5, 6, 7):
            inbox.results.open(plan_of(height))
            assert inbox.results.plan(4) is not None
        inbox.results.open(plan_of(8))
        assert inbox.results.plan(4) is None
        assert digest not in inbox.transports[0]._blobs

    run_virtual(scenario())


def test_applied_round_frees_votes_and_serves_payloads() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        digest = inbox.hear(1).levels[2].blake3
        await asyncio.sleep(1)
        (candidate,) = inbox.results.candidates(4, 1)
        assert sorted(candidate.votes) == [1, 2]
        inbox.results.applied(4)
        assert not candidate.votes
        assert inbox.results.payloads.is_valid(candidate)
        assert inbox.results.attestable(4) == {1: candidate.digest}
        assert digest in inbox.transports[0]._blobs

    run_virtual(scenario())


def test_payload_named_by_newer_round_stays_served() -> None:
    """Real results never have equal bytes, but anyone may name another's digest."""

    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        levels = inbox.hear(1).levels
        digest = levels[2].blake3
        await asyncio.sleep(1)
        for height in (5, 6, 7):
            inbox.results.open(plan_of(height))
        inbox.hear(1, 7, levels=levels)
        await asyncio.sleep(1)
        inbox.results.open(plan_of(8))
        assert digest in inbox.transports[0]._blobs

    run_virtual(scenario())


def test_unfetched_payload_is_not_withdrawn() -> None:
    """A liar that names another payload's digest must not stop us from serving that payload."""

    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        ours = inbox.transports[0].publish(b"a tensor for joiners")
        levels = {
            level: LevelPayload(ours, SCHEMA.results.payload_bytes(level)) for level in (1, 2)
        }
        inbox.hear(1, levels=levels)
        await asyncio.sleep(5)
        for height in range(5, 9):
            inbox.results.open(plan_of(height))
        inbox.results.close()
        assert ours in inbox.transports[0]._blobs

    run_virtual(scenario())


def test_payload_comes_from_another_holder_without_its_trainer() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        commitment = commitment_of(inbox.transports[1], 1)
        for data in inbox.transports[1]._blobs.values():
            inbox.transports[0]._network._nodes[p2p_of(2)].publish(data)
        members = three_members()
        seats = list(members.seats)
        seats[2] = replace(seats[2], tier=0)
        inbox.results.begin(2)
        inbox.results.open(replace(plan_of(4), seats=tuple(seats)))
        inbox.transports[0]._network.crash(p2p_of(1))
        inbox.results.hear(commitment, encode_announcement(commitment, SECRETS[1]))
        inbox.tell(key_to(commitment))
        await asyncio.sleep(2)
        assert inbox.results.attestable(4) == {1: commitment.digest}

    run_virtual(scenario())


class _HasForOthers(ResultInbox):
    """Return the inbox of a member that holds level 2 only and serves level 1 as a witness."""

    def __init__(self) -> None:
        super().__init__()
        self.results = Results(self.ports, replace(self.role, tier=2), self.workers.decode)
        self.results.begin(2)
        self.results.open(plan_of())
        self.results.payloads.note_fetched_by_all(4, frozenset({1}), [p2p_of(2)])
        self.results.fetch_for_others(4)

    async def hear_without(self, level: int) -> bytes:
        """Announce member 1's result without serving this level. Return the level's bytes to serve
        later.
        """
        digest = self.hear(1).levels[level].blake3
        data = self.transports[1]._blobs[digest]
        self.transports[1].retract(digest)
        await asyncio.sleep(10)
        return data

    def fetched(self) -> list[int]:
        return sorted(self.results.candidates(4, 1)[0].payloads)


def test_witness_fetches_its_own_levels_first() -> None:
    async def scenario() -> None:
        inbox = _HasForOthers()
        own = await inbox.hear_without(2)
        assert inbox.fetched() == []
        inbox.transports[1].publish(own)
        await asyncio.sleep(10)
        assert inbox.fetched() == [1, 2]
        assert list(inbox.results.attestable(4)) == [1]

    run_virtual(scenario())


def test_witness_stops_fetching_for_others_after_attesting() -> None:
    async def scenario() -> None:
        inbox = _HasForOthers()
        lacking = await inbox.hear_without(1)
        assert not inbox.results.attestable(4)
        inbox.results.stop_for_others(4)
        inbox.transports[1].publish(lacking)
        inbox.hear(2)
        await asyncio.sleep(30)
        assert inbox.fetched() == [2]
        assert not [event for event in inbox.events if event["kind"] == "warning"]

    run_virtual(scenario())


def test_only_first_failures_of_payload_are_reported() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of())
        payload = LevelPayload(b"d" * 32, SCHEMA.results.payload_bytes(2))
        inbox.hear(2, levels={2: payload})
        counts = []
        for _ in range(2):
            await inbox.ports.clock.sleep(1000)
            counts.append(sum(event["kind"] == "fetch_failed" for event in inbox.events))
        assert 1 < counts[0] == counts[1] < 10
        assert not inbox.results.payloads.is_decoded(inbox.results.candidates(4, 2)[0])
        inbox.results.close()

    run_virtual(scenario())


def test_peer_questions_are_answered_and_malformed_ones_not() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        commitment = inbox.hear_sealed(1)
        ask = inbox.results._answer
        assert msgspec.msgpack.decode(
            await ask(b"", msgspec.msgpack.encode((4, [1, 1, 2, 99999])))
        ) == [encode_announcement(commitment, SECRETS[1])]
        assert msgspec.msgpack.decode(await ask(b"", msgspec.msgpack.encode((77, [1])))) == []
        everybody = msgspec.msgpack.encode((4, list(range(256))))
        assert len(msgspec.msgpack.decode(await ask(b"", everybody))) == 1
        endless = msgspec.msgpack.encode((4, [1] * 1024))
        for nonsense in (
            b"",
            b"\xff",
            msgspec.msgpack.encode("what"),
            msgspec.msgpack.encode((1, "2")),
            endless,
        ):
            with pytest.raises(RequestRefused):
                await ask(b"", nonsense)

    run_virtual(scenario())


@pytest.mark.parametrize(
    "reply", [b"", b"\xff\xff", msgspec.msgpack.encode([b"no", b"announcement"]), b"\x90"]
)
def test_malformed_peer_answer_is_rejected(reply: bytes) -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))

        async def answer(peer: bytes, body: bytes) -> bytes:
            return reply

        inbox.transports[1].handle("commitments", answer)
        await Collector(inbox.ports, inbox.role.levels, inbox.results, 2).ask(
            4, [1, 2], lambda commitment: True
        )
        assert inbox.results.announced(4) == frozenset()

    run_virtual(scenario())


def test_answer_counts_only_for_requested_round_and_seats() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        replies = [commitment_of(None, 1), commitment_of(None, 2)]

        async def answer(peer: bytes, body: bytes) -> bytes:
            return msgspec.msgpack.encode(
                [encode_announcement(reply, SECRETS[reply.seat]) for reply in replies]
            )

        inbox.transports[1].handle("commitments", answer)
        await Collector(inbox.ports, inbox.role.levels, inbox.results, 2).ask(
            4, [2], lambda commitment: False
        )
        assert inbox.results.announced(4) == {2}
        inbox.results.close()

    run_virtual(scenario())


@pytest.mark.parametrize(("values", "barred"), [(8, False), (9, True), (65_530, True)])
def test_oversized_answer_bans_the_peer(values: int, barred: bool) -> None:
    """The question is about one seat. The member reads no more than one seat can need."""

    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        announcement = encode_announcement(commitment_of(None, 2), SECRETS[2])

        async def answer(peer: bytes, body: bytes) -> bytes:
            return msgspec.msgpack.encode(
                [announcement] + [announcement if values < 10 else b""] * (values - 1)
            )

        kept_out: list[bytes] = []
        inbox.transports[0].bar = lambda peer, why: kept_out.append(peer)  # type: ignore[method-assign]
        inbox.transports[1].handle("commitments", answer)
        await Collector(inbox.ports, inbox.role.levels, inbox.results, 2).ask(
            4, [2], lambda commitment: False
        )
        assert (inbox.results.announced(4) == {2}) is not barred
        assert (p2p_of(1) in kept_out) is (values == 9), (
            "more bytes than were asked for are not even read"
        )
        inbox.results.close()

    run_virtual(scenario())


@pytest.mark.parametrize(("relay", "barred"), [(1, False), (2, True)])
def test_signer_is_liable_only_for_what_it_sends(relay: int, barred: bool) -> None:
    """Member 2 signed announcements in other attempts at the round. Member 1 relays them, or 2
    sends them.
    """

    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        seeds = iter(range(1000, 2000))

        async def answer(peer: bytes, body: bytes) -> bytes:
            commitments = [commitment_of(None, 2, seed=next(seeds)) for _ in range(4)]
            return msgspec.msgpack.encode(
                [encode_announcement(one, SECRETS[2]) for one in commitments]
            )

        kept_out: list[bytes] = []
        inbox.transports[0].bar = lambda peer, why: kept_out.append(peer)  # type: ignore[method-assign]
        inbox.transports[relay].handle("commitments", answer)
        collector = Collector(inbox.ports, inbox.role.levels, inbox.results, 2)
        for _ in range(5):
            await collector.ask(4, [2], lambda commitment: False)
        assert (p2p_of(2) in kept_out) is barred
        assert p2p_of(1) not in kept_out

    run_virtual(scenario())
