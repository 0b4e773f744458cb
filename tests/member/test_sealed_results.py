"""Sealed results, their keys, and closing messages."""

from __future__ import annotations

import asyncio

import msgspec

from aftermath.member.announced_results import CLOSED_ON
from aftermath.rules.announcements import encode_announcement
from aftermath.rules.seal import RoundClosed
from aftermath.sim.virtual_time import run_virtual
from member.result_inbox import SECRETS, ResultInbox, commitment_of, key_to, p2p_of, plan_of


def test_sealed_result_is_held_after_its_own_reveal() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of())
        commitment = inbox.hear_sealed(1)
        await asyncio.sleep(1)
        assert inbox.results.fetched(4) == inbox.results.sealed(4) == {1}
        assert inbox.results.attestable(4) == {}
        for wrong in (
            key_to(commitment, key=b"k" * 32),
            key_to(commitment, seed=8),
            key_to(commitment, epoch=3),
            key_to(commitment, run_id="other"),
            key_to(commitment, signer=b"x" * 32),
            key_to(commitment, seat=0),
        ):
            inbox.results.hear_key(wrong, b"")
        await asyncio.sleep(1)
        assert inbox.results.attestable(4) == {}
        inbox.tell(key_to(commitment))
        await asyncio.sleep(1)
        assert inbox.results.attestable(4) == {1: commitment.digest}
        answer = msgspec.msgpack.decode(
            await inbox.results._answer(b"", msgspec.msgpack.encode((4, [1])))
        )
        assert answer == [
            encode_announcement(one, SECRETS[1]) for one in (commitment, key_to(commitment))
        ]
        inbox.results.close()

    run_virtual(scenario())


def test_copied_bytes_cannot_be_revealed() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of())
        theirs = commitment_of(inbox.transports[2], 2)
        levels = commitment_of(inbox.transports[1], 1).levels | theirs.levels
        commitment = inbox.hear_sealed(1, levels=levels, seal=theirs.seal)
        for key in (key_to(theirs), key_to(commitment), key_to(commitment, key=key_to(theirs).key)):
            inbox.results.hear_key(key, b"")
        await asyncio.sleep(1)
        assert not inbox.results.candidates(4, 1)[0].key
        assert inbox.results.attestable(4) == {}
        inbox.results.close()

    run_virtual(scenario())


def test_result_after_closing_is_kept_but_not_attested() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of())
        commitment = inbox.hear(1)
        inbox.results.close_round(4)
        late = inbox.hear(2)
        await asyncio.sleep(1)
        assert inbox.results.attestable(4) == {1: commitment.digest}
        assert inbox.results.settled(4) == {1, 2}
        assert [c.commitment for c in inbox.results.candidates(4, 2)] == [late]
        assert [(e["seat"], e["why"]) for e in inbox.events if e["kind"] == "refused"] == [
            (2, CLOSED_ON)
        ]
        inbox.results.close()

    run_virtual(scenario())


def test_closings_count_once_per_witness() -> None:
    inbox = ResultInbox()
    closed_rounds = inbox.results.closed_rounds

    def closed(by: int, **changed: object) -> RoundClosed:
        closing = RoundClosed(
            sender=p2p_of(by),
            signer=by.to_bytes(32, "big"),
            run_id=inbox.feed.run.run_id,
            epoch=2,
            height=4,
            seed=7,
            seat=by,
        )
        return msgspec.structs.replace(closing, **changed)

    for wrong in (
        {"seed": 8},
        {"epoch": 3},
        {"height": 5},
        {"run_id": "other"},
        {"sender": p2p_of(2)},
        {"seat": 9},
    ):
        closed_rounds.hear(closed(1, **wrong), b"")
    assert closed_rounds.announcements(4, range(3)) == []
    closed_rounds.hear(closed(1), b"one")
    closed_rounds.hear(closed(1), b"again")
    assert closed_rounds.announcements(4, range(3)) == [b"one"]
    closed_rounds.hear(closed(2), b"two")
    assert closed_rounds.announcements(4, [2, 0, 1]) == [b"two", b"one"]
