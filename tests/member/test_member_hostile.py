"""Lying members lose their share. Honest ones keep their replicas, seats and pace."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import torch

from aftermath.member.readiness import Readiness
from aftermath.rules import bitmap
from aftermath.rules.announcements import Commitment, LevelPayload, Ready, encode_announcement
from aftermath.rules.consensus import unpack_fingerprints
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.sim_transport import SimTransport
from aftermath.sim.simulation import SimulatedRun, play
from member.dishonest_members import (
    Lie,
    conspire,
    falsify_results,
    garbage_in,
    hides,
    nan_in,
    other_result,
    sign,
    tell_all,
)
from member.short_runs import EITHER_OVERLAP, SHORT

ROUND_SECONDS = 15  # as in the run's rules


def _epoch_with_a_liar(
    place: Path,
    lie_of: object,
    *,
    tiers: tuple[int, ...] = (0, 1, 2, 0),
    rounds: int = 3,
    **rules: object,
) -> SimulatedRun:
    """Run the first epoch to its end. Member 0 lies from round 1 on."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in tiers]
        await sim.until_round(1)
        lie: Lie = lie_of(sim, sim_members[0])  # type: ignore[operator]
        falsify_results(sim_members[0], lie)
        await sim.until(lambda run: run.epoch == 1)

    return play(place, scenario, init_min_clients=len(tiers), rounds_per_epoch=rounds, **rules)


def seat_of(sim_member: SimMember) -> int:
    """Return a member's seat, which depends on the order of joins."""
    seat: int = sim_member.saw("joined")[-1]["seat"]
    return seat


def _undisturbed(sim: SimulatedRun) -> None:
    """Check that honest members finished the epoch with equal replicas and only the liar was
    dropped.
    """
    liar, *honest = sim.sim_members
    assert sim.check(hostile=[liar]) > 0
    for sim_member in honest:
        assert [e["epoch"] for e in sim_member.saw("cooldown")] == [0], sim_member.name
    assert {sim.members.seats[seat].signer for _, seat in sim.record.dropped} == {
        bytes(liar.key.pubkey())
    }
    assert sim.run.lost_sequences == 0


def test_garbage_payloads_are_left_out_without_delay(tmp_path: Path) -> None:
    sim = _epoch_with_a_liar(tmp_path, lambda sim, liar: garbage_in(liar, range(3)), rounds=4)
    _undisturbed(sim)
    assert any(
        "a bit after the last index is set" in e["why"] for e in sim.sim_members[1].saw("refused")
    )
    rounds = [e["t"] for e in sim.sim_members[1].saw("round", epoch=0)]
    assert max(b - a for a, b in pairwise(rounds)) < ROUND_SECONDS


@pytest.mark.slow
def test_garbage_on_upper_levels_costs_large_tiers_nothing(tmp_path: Path) -> None:
    """Four witnesses of tier 2 attest their valid levels. Tier 0 leaves out the level with
    garbage.
    """
    sim = _epoch_with_a_liar(
        tmp_path,
        lambda sim, liar: garbage_in(liar, range(1)),
        tiers=(0, 0, 0, 2, 2, 2, 2, 2, 2),
        rounds=4,
    )
    honest = sim.sim_members[1:]
    assert sim.compare(honest) > 0
    for sim_member in honest:
        assert [e["epoch"] for e in sim_member.saw("cooldown")] == [0], sim_member.name
        assert not sim_member.saw("warning"), sim_member.name
    sequences = {e["height"]: e["results"] for e in honest[0].saw("applied")}
    assert sequences[1] == len(sim.sim_members)  # valid levels of the result count


def _runs_without_level_0(sim: SimulatedRun, *, waits: int = 1) -> None:
    """Check that no member is dropped and no replica has level 0 of the liar's results."""
    honest = sim.sim_members[1:]
    assert sim.compare(honest) > 0
    assert not sim.record.dropped
    for sim_member in honest:
        assert [e["epoch"] for e in sim_member.saw("cooldown")] == [0], sim_member.name
        assert not sim_member.saw("warning"), sim_member.name
    assert sim.run.lost_sequences == 0
    assert any("level 0 left out" in e["why"] for e in honest[0].saw("refused"))
    rounds = [e["t"] for e in honest[0].saw("round", epoch=0)]
    assert sum(later - now > 0.8 * ROUND_SECONDS for now, later in pairwise(rounds)) <= waits, (
        "it waits in vain once only"
    )


@pytest.mark.slow
def test_level_hidden_from_other_holder_is_left_out(tmp_path: Path) -> None:
    """The other witnesses do not hold level 0. Their votes must not force the holder to have it."""
    sim = _epoch_with_a_liar(
        tmp_path, lambda sim, liar: hides(liar, 0), rounds=6, tiers=(0, 0, 1, 2)
    )
    _runs_without_level_0(sim)


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_two_colluding_newcomers_do_not_drop_holder(tmp_path: Path, overlap: int) -> None:
    """Two of three members that declare tier 0 show level 0 only to each other. The third is
    established.
    """

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 1, 2, 2):
            sim.add(tier)
        await sim.until_round(1)
        liars = [sim.add(0), sim.add(0)]
        conspire(liars, 0)
        await sim.until(lambda run: run.epoch == 2)

    sim = play(
        tmp_path, scenario, overlap=overlap, init_min_clients=5, rounds_per_epoch=4, total_steps=100
    )
    *honest, _, _ = sim.sim_members
    assert sim.compare(honest) > 0
    for sim_member in honest:
        assert [e["epoch"] for e in sim_member.saw("cooldown")] == [0, 1], sim_member.name
        assert not sim_member.saw("warning"), sim_member.name
    assert len({e["epoch"] for liar in sim.sim_members[5:] for e in liar.saw("trained")}) == 1
    assert any("level 0 left out" in e["why"] for e in honest[0].saw("refused"))
    assert sim.run.lost_sequences == 0


@pytest.mark.slow
def test_hidden_level_without_overlap_costs_time_only(tmp_path: Path) -> None:
    lie = {"rounds": 6, "tiers": (0, 0, 1, 2), "overlap": 0}
    _runs_without_level_0(
        _epoch_with_a_liar(tmp_path, lambda sim, liar: hides(liar, 0), **lie), waits=6
    )


@pytest.mark.slow
def test_member_ignoring_one_peer_does_not_drop_it(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 0, 1, 2)]
        await sim.until_round(1)
        liar, shunned = (sim_member.transport for sim_member in sim_members[:2])
        assert liar is not None
        assert shunned is not None
        honest = liar.set_members
        liar.set_members = lambda ids: honest(one for one in ids if one != shunned.node_id)  # type: ignore[method-assign]
        liar.set_members(sim_member.id for sim_member in sim_members)
        await sim.until(lambda run: run.epoch == 1)

    _runs_without_level_0(play(tmp_path, scenario, init_min_clients=4, rounds_per_epoch=6))


def test_nan_votes_are_refused(tmp_path: Path) -> None:
    sim = _epoch_with_a_liar(tmp_path, nan_in, rounds=4, quantize=False)
    _undisturbed(sim)
    assert any("not finite" in e["why"] for e in sim.sim_members[1].saw("refused"))


def _wrong_size(sim: SimulatedRun, liar: SimMember) -> Lie:
    async def lie(commitment: Commitment, transport: SimTransport) -> None:
        levels = {
            level: LevelPayload(payload.blake3, payload.size + 1)
            for level, payload in commitment.levels.items()
        }
        tell_all(transport, sign(liar, msgspec.structs.replace(commitment, levels=levels)))

    return lie


def _share_of_another(sim: SimulatedRun, liar: SimMember) -> Lie:
    async def lie(commitment: Commitment, transport: SimTransport) -> None:
        stolen = msgspec.structs.replace(
            commitment,
            seat=seat_of(sim.sim_members[1]),
            signer=bytes(sim.sim_members[1].key.pubkey()),
        )
        tell_all(transport, sign(liar, stolen))

    return lie


@pytest.mark.parametrize(
    "lie_of", [_wrong_size, pytest.param(_share_of_another, marks=pytest.mark.slow)]
)
def test_unassigned_result_is_refused_before_fetching(tmp_path: Path, lie_of: object) -> None:
    sim = _epoch_with_a_liar(tmp_path, lie_of)
    _undisturbed(sim)
    assert sim.sim_members[1].saw(
        "refused", why="it announced a result that it was not assigned", height=1
    )
    assert not sim.sim_members[1].saw("fetched", seat=seat_of(sim.sim_members[0]), height=1)


@pytest.mark.slow
def test_unassigned_result_is_reported_once_with_sender(tmp_path: Path) -> None:
    def flood(sim: SimulatedRun, liar: SimMember) -> Lie:
        async def lie(commitment: Commitment, transport: SimTransport) -> None:
            for number in range(100):
                forged_commitment = msgspec.structs.replace(
                    commitment, seat=number % 4, schema_hash=bytes([number]) * 32
                )
                tell_all(transport, sign(liar, forged_commitment))

        return lie

    sim = _epoch_with_a_liar(tmp_path, flood)
    _undisturbed(sim)
    liar = sim.sim_members[0]
    honest = sim.sim_members[1]
    assert honest.transport is not None
    assert {who for who, _ in honest.transport.barred} == {liar.id}
    refusals = honest.saw("refused", why="it announced a result that it was not assigned")
    assert [event["seat"] for event in refusals] == [seat_of(sim.sim_members[0])] * len(refusals)
    assert 0 < len(refusals) == len({event["height"] for event in refusals})


def test_sender_of_invalid_announcement_is_banned_once(tmp_path: Path) -> None:
    """It sends undecodable bytes, other members' announcements and those of another run, all
    epoch.
    """

    def babble(sim: SimulatedRun, liar: SimMember) -> Lie:
        async def lie(commitment: Commitment, transport: SimTransport) -> None:
            for number in range(50):
                tell_all(transport, bytes([number]) * 300)
            tell_all(transport, sign(liar, msgspec.structs.replace(commitment, run_id="another")))

        return lie

    sim = _epoch_with_a_liar(tmp_path, babble)
    _undisturbed(sim)
    liar, *honest = sim.sim_members
    for sim_member in honest:
        assert sim_member.transport is not None
        assert {who for who, _ in sim_member.transport.barred} == {liar.id}
        assert any("another head" in why for _, why in sim_member.transport.barred)
        assert len([e for e in sim_member.saw("refused") if "peer" in e]) == 1


@pytest.mark.slow
def test_holder_serving_wrong_bytes_delivers_nothing(tmp_path: Path) -> None:
    def lying_bytes(sim: SimulatedRun, liar: SimMember) -> Lie:
        async def lie(commitment: Commitment, transport: SimTransport) -> None:
            for payload in commitment.levels.values():
                transport.forge(payload.blake3, b"\x02" * payload.size)
            tell_all(transport, sign(liar, commitment))

        return lie

    sim = _epoch_with_a_liar(tmp_path, lying_bytes, rounds=4)
    _undisturbed(sim)
    assert sim.sim_members[1].saw("fetch_failed", seat=seat_of(sim.sim_members[0]))


@pytest.mark.slow
def test_two_results_of_one_share_count_as_none(tmp_path: Path) -> None:
    def both(sim: SimulatedRun, liar: SimMember) -> Lie:
        async def lie(commitment: Commitment, transport: SimTransport) -> None:
            tell_all(transport, sign(liar, commitment))
            tell_all(transport, sign(liar, other_result(sim, commitment, transport)))

        return lie

    sim = _epoch_with_a_liar(tmp_path, both)
    _undisturbed(sim)
    assert sim.sim_members[1].saw("refused", why="it announced another result too")


@pytest.mark.slow
def test_equivocating_member_does_not_fork_replicas(tmp_path: Path) -> None:
    def offer_inconsistently(sim: SimulatedRun, liar: SimMember) -> Lie:
        async def lie(commitment: Commitment, transport: SimTransport) -> None:
            faces = sign(liar, commitment), sign(liar, other_result(sim, commitment, transport))
            for index, peer in enumerate(sorted(transport.reachable())):
                transport.tell(peer, faces[index % 2])

        return lie

    sim = _epoch_with_a_liar(tmp_path, offer_inconsistently, tiers=(0, 1, 2, 0, 1))
    honest = sim.sim_members[1:]
    assert sim.compare(honest) > 0
    sim.record.check_coverage(sim.backlog)
    for sim_member in honest:
        assert [e["epoch"] for e in sim_member.saw("cooldown")] == [0], sim_member.name


@pytest.mark.slow
def test_hidden_accepted_result_is_fetched_from_other_peers(tmp_path: Path) -> None:
    """All except member 1 receive the result. Member 1 receives two others, and still gets the
    right one.
    """

    def hiding(sim: SimulatedRun, liar: SimMember) -> Lie:
        async def lie(commitment: Commitment, transport: SimTransport) -> None:
            victim = sim.sim_members[1].id
            for peer in sorted(transport.reachable() - {victim}):
                transport.tell(peer, sign(liar, commitment))
            for tokens in (1.0, 2.0):
                fake = msgspec.structs.replace(
                    other_result(sim, commitment, transport), tokens_per_sec=tokens
                )
                transport.tell(victim, sign(liar, fake))
                commitment = fake

        return lie

    sim = _epoch_with_a_liar(tmp_path, hiding, tiers=(0, 0, 1, 2, 0))
    honest = sim.sim_members[1:]
    assert sim.compare(honest) > 0
    assert [e["epoch"] for e in sim.sim_members[1].saw("cooldown")] == [0]


@pytest.mark.slow
def test_flood_of_early_announcements_displaces_nobody(tmp_path: Path) -> None:
    def flooding(sim: SimulatedRun, liar: SimMember) -> Lie:
        async def lie(commitment: Commitment, transport: SimTransport) -> None:
            for height in range(commitment.height, commitment.height + 100):
                ahead = msgspec.structs.replace(
                    commitment, height=height, tokens_per_sec=float(height)
                )
                tell_all(transport, sign(liar, ahead))

        return lie

    sim = _epoch_with_a_liar(tmp_path, flooding)
    liar, *honest = sim.sim_members
    assert sim.check(hostile=[liar]) > 0
    for sim_member in honest:
        early = sim_member.member._results._early  # type: ignore[union-attr]
        assert (
            sum(len(announcements) for of in early.values() for announcements in of.values()) <= 8
        )
        assert len(sim_member.saw("trained", epoch=0)) == 3


def test_readiness_counts_only_for_its_own_key(tmp_path: Path) -> None:
    """Member 0 reports all members as ready. Rounds begin only when the slow one is ready."""

    async def scenario(sim: SimulatedRun) -> None:
        liar = sim.add(0)
        sim.add(1), sim.add(2, seconds=3.5)
        await sim.until(lambda run: run.state is RunState.WARMUP)
        for seat in range(3):
            lie = Ready(
                sender=liar.id, signer=bytes(liar.key.pubkey()), run_id="sim", epoch=0, seat=seat
            )
            assert liar.transport is not None
            await liar.transport.announce(encode_announcement(lie, liar.identity.secret()))
        await sim.until_round(0)

    sim = play(tmp_path, scenario, max_round_train_time=40)
    loaded = sim.sim_members[2].saw("model")[0]["t"]
    assert all(e["t"] >= loaded for p in sim.sim_members for e in p.saw("round"))
    assert loaded > sim.sim_members[1].saw("model")[0]["t"] + 3


def test_readiness_of_key_counts_for_last_named_wallet() -> None:
    """One key claims many wallets. Only one entry is stored, and other members' readiness stays."""
    readiness = Readiness()
    cheat = bytes([1]) * 32
    honest = bytes([2]) * 32
    readiness.hear(Ready(sender=honest, signer=honest, run_id="sim", epoch=1, seat=0))
    for made_up in range(300):
        readiness.hear(
            Ready(sender=cheat, signer=made_up.to_bytes(32, "big"), run_id="sim", epoch=1, seat=0)
        )
    readiness.hear(Ready(sender=cheat, signer=cheat, run_id="sim", epoch=1, seat=0))
    assert readiness.of(1) == {(honest, honest), (cheat, cheat)}


@pytest.mark.slow
def test_nonfinite_gradient_is_left_out(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        replica = sim_members[1].member._replica  # type: ignore[union-attr]
        assert replica is not None
        name = "model.norm.weight"
        hook = replica.params[name].register_hook(lambda grad: torch.full_like(grad, float("nan")))
        await sim.until_round(3)
        hook.remove()  # five shares in a row that are not finite would end the member
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    assert any("this member skips step" in e["message"] for e in sim.sim_members[1].saw("warning"))
    assert sim.run.lost_sequences == 0
    assert sim.check(dropped=[sim.sim_members[1]]) > 0
    assert len(sim.sim_members[0].saw("applied")) == 6


def test_witness_record_names_held_results(tmp_path: Path) -> None:
    """The chain stores fingerprints of the announced commitments, salted by the attesting round."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until(lambda run: run.current.height == 2)
        assert sim_members[0].chain is not None
        before = sim.run.round(0)
        attesting = sim.run.round(1)
        assert before is not None
        assert attesting is not None
        attestations = await sim_members[0].chain.attestations(attesting)
        assert all(
            set(unpack_fingerprints(one, before.roster)) == set(bitmap.seats(before.roster))
            for one in attestations
        )
        assert (
            len({tuple(unpack_fingerprints(one, before.roster).items()) for one in attestations})
            == 1
        )

    play(tmp_path, scenario)
