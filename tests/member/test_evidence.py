"""Two signed results of one share are kept as evidence that anyone can check."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.member import evidence
from aftermath.member.evidence import Evidence, Pair, disputed, proves
from aftermath.rules.announcements import Commitment, encode_announcement
from aftermath.sim.sim_member import SimMember
from aftermath.sim.sim_transport import SimTransport
from aftermath.sim.simulation import SimulatedRun, play
from member.dishonest_members import Lie, falsify_results, other_result, sign, tell_all
from member.result_inbox import SECRETS, ResultInbox, commitment_of
from member.test_member_hostile import seat_of


def signed(**changed: object) -> bytes:
    return encode_announcement(commitment_of(None, 0, **changed), SECRETS[0])  # type: ignore[arg-type]


def another(commitment: Commitment) -> dict[str, object]:
    """Return the levels of another result."""
    return {
        "levels": {
            level: payload._replace(blake3=b"x" * 32)
            for level, payload in commitment.levels.items()
        }
    }


FIRST = commitment_of(None, 0)


def test_equivocation_is_proven_only_by_two_results_of_one_share() -> None:
    second = signed(**another(FIRST))
    assert proves(Pair(signed(), second))
    assert not proves(Pair(signed(), signed()))
    assert not proves(Pair(signed(), signed(loss=2.0))), "what is not committed to may differ"
    assert not proves(Pair(signed(), signed(height=5, **another(FIRST))))
    assert not proves(Pair(signed(), signed(seed=8, **another(FIRST)))), (
        "of another attempt at the epoch"
    )
    assert not proves(Pair(signed(), signed(epoch=3, **another(FIRST))))
    assert not proves(Pair(signed(), signed(run_id="another", **another(FIRST))))
    assert not proves(Pair(signed(), second[:-1]))
    other = msgspec.structs.replace(commitment_of(None, 1), seat=0, signer=FIRST.signer)
    assert not proves(Pair(signed(), encode_announcement(other, SECRETS[1]))), "of two keys"


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_equivocation_proof_with_changed_byte_fails(at: int, value: int) -> None:
    first = signed()
    second = signed(**another(FIRST))
    at %= len(second)
    changed = second[:at] + bytes([value]) + second[at + 1 :]
    assert proves(Pair(first, changed)) == (changed == second)


@pytest.mark.slow
def test_evidence_is_bounded_and_one_pair_per_share() -> None:
    inbox = ResultInbox()
    store = Evidence(inbox.ports.events)
    for height in range(evidence.MOST + 5):
        commitment = commitment_of(None, 0, height)
        pair = (
            encode_announcement(commitment, SECRETS[0]),
            signed(height=height, step=height + 1, **another(commitment)),
        )
        store.add(commitment, *pair), store.add(commitment, *pair)
    assert len(store._pairs) == evidence.MOST
    assert len([e for e in inbox.events if e["kind"] == "equivocated"]) == evidence.MOST + 5


def test_partial_equivocation_is_proven_by_all_members(tmp_path: Path) -> None:
    """No member receives both results. The witnesses' fingerprints differ, so members ask for the
    missing ones.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 0, 1, 1, 2)]
        await sim.until_round(1)

        async def offer_inconsistently(commitment: Commitment, transport: SimTransport) -> None:
            faces = (
                sign(sim_members[0], commitment),
                sign(sim_members[0], other_result(sim, commitment, transport)),
            )
            for index, peer in enumerate(sorted(transport.reachable())):
                transport.tell(peer, faces[index % 2])

        lie: Lie = offer_inconsistently
        falsify_results(sim_members[0], lie)
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, init_min_clients=5, rounds_per_epoch=4)
    liar, *honest = sim.sim_members
    assert sim.compare(honest) > 0
    check_evidence(liar, honest)
    check_ejected(sim, liar, honest)


def test_open_equivocation_is_proven_by_all_members(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)

        async def both(commitment: Commitment, transport: SimTransport) -> None:
            tell_all(transport, sign(sim_members[0], commitment))
            tell_all(transport, sign(sim_members[0], other_result(sim, commitment, transport)))

        lie: Lie = both
        falsify_results(sim_members[0], lie)
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, rounds_per_epoch=4)
    check_evidence(sim.sim_members[0], sim.sim_members[1:])
    check_ejected(sim, sim.sim_members[0], sim.sim_members[1:])


@pytest.mark.parametrize("bond", [0, 2_000_000])
def test_ejected_member_ends_and_says_so(tmp_path: Path, bond: int) -> None:
    """Started again by its user, it signs up and trains."""

    def allow_bond(sim_member: SimMember) -> None:
        assert sim_member.chain is not None
        sim_member.chain._max_bond = bond

    async def scenario(sim: SimulatedRun) -> None:
        members = [sim.add(tier) for tier in (0, 1, 2)]
        liar = members[0]
        for sim_member in members:
            allow_bond(sim_member)
        await sim.until_round(1)

        async def both(commitment: Commitment, transport: SimTransport) -> None:
            tell_all(transport, sign(liar, commitment))
            tell_all(transport, sign(liar, other_result(sim, commitment, transport)))

        lie: Lie = both
        falsify_results(liar, lie)
        await sim.until(lambda _: not liar.alive)
        lost = ", and its bond is lost" if bond else ""
        assert f"ejected from seat {seat_of(liar)}{lost}: two results" in liar.ejected
        assert len(liar.saw("joined")) == 1
        assert not [event for event in liar.saw("warning") if "joins" in event["message"]]
        sim.start(liar)
        allow_bond(liar)
        await sim.until_finished()
        assert len(liar.saw("joined")) == 2
        assert liar.saw("applied", epoch=1)

    play(tmp_path, scenario, rounds_per_epoch=4, total_steps=8, join_bond=bond)


def check_evidence(liar: SimMember, honest: list[SimMember]) -> None:
    """Check that every honest member recorded a proof against the liar and none against others."""
    for sim_member in honest:
        reports = sim_member.saw("equivocated")
        assert reports, sim_member.name
        assert {e["seat"] for e in reports} == {seat_of(liar)}
        assert all(
            proves(Pair(bytes.fromhex(e["first"]), bytes.fromhex(e["second"]))) for e in reports
        )


def check_ejected(sim: SimulatedRun, liar: SimMember, honest: list[SimMember]) -> None:
    """Check that one member submitted the proof and that the program ejected the liar."""
    events = [event for sim_member in honest for event in sim_member.saw("ejected")]
    assert [event["seat"] for event in events] == [seat_of(liar)]
    weights = {
        sim_member.id: seat.weight
        for sim_member in sim.sim_members
        for seat in sim.members.seats
        if seat.p2p == sim_member.id
    }
    assert weights[liar.id] == 1
    assert all(weights[sim_member.id] > 1 for sim_member in honest)


def test_agreeing_witnesses_dispute_nobody() -> None:
    assert disputed([], 0b111) == frozenset()
