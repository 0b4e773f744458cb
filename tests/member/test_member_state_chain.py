"""The chain of state roots: the state before each result is the state after the last one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.member.state_chain import StateChain
from aftermath.optim.engine import outline_of
from aftermath.optim.state_merkle import tree_of
from aftermath.p2p.transport import RequestRefused
from aftermath.replica.state_sharing import ask_block
from aftermath.rules.announcements import NOTHING, Commitment, PrivateRoots, decode_announcement
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.sim_transport import SimTransport
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.sim.virtual_time import run_virtual
from member.dishonest_members import Lie, falsify_results, sign, tell_all
from member.result_inbox import ResultInbox, commitment_of, plan_of
from member.short_runs import SHORT
from member.test_state_roots import ALL, SPARSELOCO, restart

BROKEN = "its optimizer state "


def root(number: int) -> bytes:
    return bytes([number]) * 32


def commitment(
    height: int, before: int, after: int, since: tuple[int, int] | None, epoch: int = 2
) -> Commitment:
    roots = PrivateRoots(root(before) if since else NOTHING, root(after), since)
    return commitment_of(None, 0, height, epoch=epoch, private=roots)


def chain_of(*commitments: Commitment) -> StateChain:
    lineage = StateChain()
    for one in commitments:
        lineage.hear(one)
    return lineage


# --- the rule -------------------------------------------------------------------------------------


def test_state_chain_accepts_continuous_state() -> None:
    chain = [commitment(0, 0, 1, None), commitment(1, 1, 2, (2, 0)), commitment(3, 2, 3, (2, 1))]
    assert [chain_of(*chain).fault(one) for one in chain] == [None] * 3
    assert [chain_of(*reversed(chain)).fault(one) for one in chain] == [None] * 3, (
        "in whatever order it was heard"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        commitment(1, 9, 2, (2, 0)),
        commitment(3, 9, 3, (2, 1)),
        commitment(3, 1, 3, (2, 0)),
        commitment(3, 0, 3, None),
        commitment(3, 1, 3, (1, 7)),
    ],
    ids=[
        "another root",
        "another root later",
        "its last result left out",
        "nothing",
        "another epoch",
    ],
)
def test_state_chain_faults_discontinuous_state(wrong: Commitment) -> None:
    chain = [commitment(0, 0, 1, None), commitment(1, 1, 2, (2, 0))]
    assert (chain_of(*chain).fault(wrong) or "").startswith(BROKEN)
    assert chain_of().fault(wrong) is None, "who heard nothing of it cannot tell"


def test_state_chain_ignores_missing_commitment() -> None:
    """The member's announcement of round 1 was lost, or reached only other members."""
    assert chain_of(commitment(0, 0, 1, None)).fault(commitment(2, 7, 8, (2, 1))) is None


def test_state_of_round_without_a_share_is_a_fault() -> None:
    """The member could invent such a state once it knows its next share."""
    lineage = StateChain()
    lineage.begin(2)
    for height, owing in enumerate(({0, 1}, {1}, {0, 1}, {0})):
        lineage.open(height, owing)
    lineage.hear(commitment(0, 0, 1, None))
    assert (lineage.fault(commitment(2, 7, 8, (2, 1))) or "").startswith(BROKEN)
    assert lineage.fault(commitment(2, 1, 8, (2, 0))) is None
    assert lineage.fault(commitment(3, 7, 8, (2, 2))) is None, "its announcement was lost"
    lineage.begin(3)
    assert lineage.fault(commitment(0, 7, 8, (2, 1), epoch=3)) is None


def test_first_state_of_round_without_a_share_is_a_fault() -> None:
    lineage = StateChain()
    lineage.begin(2, starts_empty=True)
    for height in range(30):
        lineage.open(height, {1})
    assert (lineage.fault(commitment(30, 7, 8, (2, 3))) or "").startswith(BROKEN)
    assert lineage.fault(commitment(30, 0, 8, None)) is None


def test_epoch_continues_last_state_or_begins_without() -> None:
    lineage = chain_of(commitment(6, 0, 5, None), commitment(7, 5, 6, (2, 6)))
    lineage.begin(3)
    assert lineage.fault(commitment(0, 6, 7, (2, 7), epoch=3)) is None
    assert lineage.fault(commitment(0, 0, 7, None, epoch=3)) is None
    assert lineage.fault(commitment(0, 9, 7, (2, 7), epoch=3)) is not None
    assert lineage.fault(commitment(0, 5, 7, (2, 6), epoch=3)) is not None
    lineage.begin(4)
    assert lineage._roots == {}


def test_audited_epoch_begins_without_state() -> None:
    lineage = chain_of(commitment(7, 0, 6, None))
    lineage.begin(3, starts_empty=True)
    assert lineage.fault(commitment(0, 0, 7, None, epoch=3)) is None
    for since in ((2, 7), (0, 5), (3, 0), (3, 4)):
        assert lineage.fault(commitment(0, 6, 7, since, epoch=3)) is not None
    lineage.hear(commitment(0, 0, 7, None, epoch=3))
    assert lineage.fault(commitment(1, 7, 8, (3, 0), epoch=3)) is None


def test_repeated_epoch_forgets_first_attempt() -> None:
    lineage = chain_of(commitment(0, 0, 1, None))
    lineage.begin(2)
    assert lineage.fault(commitment(1, 9, 2, (2, 0))) is None


def test_state_may_continue_from_either_of_two_results() -> None:
    lineage = chain_of(commitment(0, 0, 1, None), commitment(0, 0, 2, None))
    assert [lineage.fault(commitment(1, before, 3, (2, 0))) is None for before in (1, 2, 3)] == [
        True,
        True,
        False,
    ]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=60))
def test_remembered_roots_are_bounded(record_commitments: list[tuple[int, int]]) -> None:
    lineage = StateChain()
    for height, signer in record_commitments:
        lineage.hear(commitment_of(None, 0, height, signer=root(signer)))
    assert all(len(places) <= 8 for places in lineage._roots.values())


# --- the witness's judgement ----------------------------------------------------------------------


def test_result_with_discontinuous_state_is_skipped() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results.open(plan_of(4))
        inbox.hear(1, private=PrivateRoots(NOTHING, root(1), None))
        inbox.results.open(plan_of(5))
        broken = inbox.hear(1, 5, private=PrivateRoots(root(9), root(2), (2, 4)))
        whole = inbox.hear(2, 5, private=PrivateRoots(root(8), root(3), (2, 4)))
        await asyncio.sleep(1)
        assert inbox.results.attestable(5) == {2: whole.digest}
        assert inbox.results.settled(5) == {1, 2}
        (candidate,) = inbox.results.candidates(5, 1)
        assert inbox.results.payloads.is_valid(candidate), (
            "it is there all the same, should a quorum accept it"
        )
        assert broken.digest == candidate.digest
        (refused,) = (event for event in inbox.events if event["kind"] == "refused")
        assert (refused["height"], refused["seat"]) == (5, 1)
        assert refused["why"].startswith(BROKEN)
        inbox.results.close()

    run_virtual(scenario())


def test_state_chain_compares_late_earlier_result() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        for height in (4, 5):
            inbox.results.open(plan_of(height))
        inbox.hear(1, 5, private=PrivateRoots(root(9), root(2), (2, 4)))
        await asyncio.sleep(1)
        assert set(inbox.results.attestable(5)) == {1}
        inbox.hear(1, 4, private=PrivateRoots(NOTHING, root(1), None))
        await asyncio.sleep(1)
        assert inbox.results.attestable(5) == {}
        assert set(inbox.results.attestable(4)) == {1}
        inbox.results.close()

    run_virtual(scenario())


# --- members --------------------------------------------------------------------------------------


def record_commitments(sim: SimulatedRun) -> dict[str, list[Commitment]]:
    """Return every commitment of every member in order, over restarts."""
    commitments: dict[str, list[Commitment]] = {
        sim_member.name: [] for sim_member in sim.sim_members
    }
    for sim_member in sim.sim_members:
        _listen(sim_member, commitments[sim_member.name])
    return commitments


def _listen(sim_member: SimMember, commitments: list[Commitment]) -> None:
    transport = sim_member.transport
    assert transport is not None
    honest = transport.announce

    async def announce(data: bytes) -> None:
        if isinstance(one := decode_announcement(data), Commitment):
            commitments.append(one)
        await honest(data)

    transport.announce = announce  # type: ignore[method-assign]


def breaks(chain: list[Commitment]) -> Iterator[Commitment]:
    """Return where a member begins without a state. Fail if its state is otherwise
    discontinuous.
    """
    last: Commitment | None = None
    for one in chain:
        if one.private.since is None:
            yield one
        else:
            assert last is not None
            assert one.private.since == (last.epoch, last.height)
            assert one.private.before == last.private.after
        last = one


@pytest.mark.parametrize(
    ("optimizer", "overlap"),
    [
        pytest.param(None, 1, id="distro"),
        pytest.param(SPARSELOCO, 0, id="sparseloco", marks=pytest.mark.slow),
    ],
)
def test_state_roots_form_chain_over_epochs(
    tmp_path: Path, optimizer: Mapping[str, Any] | None, overlap: int
) -> None:
    chains: dict[str, list[Commitment]] = {}

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        chains.update(record_commitments(sim))
        await sim.until_finished()

    sim = play(tmp_path, scenario, optimizer=optimizer, overlap=overlap, **SHORT)
    assert sim.check() > 0
    assert sim.run.epoch > 1
    for chain in chains.values():
        assert len({one.epoch for one in chain}) > 1
        assert [one.height for one in breaks(chain)] == [0]
        assert len({one.private.after for one in chain}) == len(chain)
    assert not any(
        str(e.get("why")).startswith(BROKEN)
        for sim_member in sim.sim_members
        for e in sim_member.saw("refused")
    )


@pytest.mark.slow
def test_restarted_member_resumes_its_saved_state_or_none(tmp_path: Path) -> None:
    for remembers in (True, False):
        chains: dict[str, list[Commitment]] = {}

        async def scenario(
            sim: SimulatedRun, remembers: bool = remembers, chains: Any = chains
        ) -> None:
            sim.stores_optimizer_state = remembers
            for tier in (0, 1, 2):
                sim.add(tier)
            chains.update(record_commitments(sim))
            await sim.until(
                lambda run: run.epoch == 1 and run.state is RunState.WAITING_FOR_MEMBERS
            )
            await asyncio.sleep(3)
            for sim_member in sim.sim_members[1:]:
                await sim.stop(sim_member)
                sim.start(sim_member)
                _listen(sim_member, chains[sim_member.name])
            await sim.until_finished()

        sim = play(tmp_path / str(remembers), scenario, **ALL, **SHORT)
        assert sim.check() > 0
        first, *others = (list(breaks(chain)) for chain in chains.values())
        assert [one.epoch for one in first] == [0]
        for other in others:
            assert [one.epoch for one in other] == ([0] if remembers else [0, 1])
        assert not any(
            str(e.get("why")).startswith(BROKEN)
            for sim_member in sim.sim_members
            for e in sim_member.saw("refused")
        )


@pytest.mark.slow
def test_saved_state_with_another_root_is_damaged(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    async def scenario(sim: SimulatedRun) -> None:
        sim.stores_optimizer_state = True
        await restart(sim)
        for file in (tmp_path / "private").iterdir():
            with safe_open(file, framework="pt") as opened:
                about = opened.metadata()
                state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            name = min(name for name in state if "residual" in name)
            state[name].view(-1)[0] += 1
            save_file(state, file, metadata=about)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **ALL, **SHORT)
    assert sim.check() > 0
    for sim_member in sim.sim_members[1:]:
        (warned,) = (
            event["message"]
            for event in sim_member.saw("warning")
            if "the optimizer" in event["message"]
        )
        assert "its hash is not the one that this member committed to" in warned


@pytest.mark.slow
def test_member_exchanging_its_state_delivers_nothing(tmp_path: Path) -> None:
    """The roots are of another state. No member attests the result, and the share is trained
    again.
    """

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2, 2):
            sim.add(tier)
        await sim.until_round(1)
        liar = sim.sim_members[-1]
        falsify_results(liar, exchanges(liar))
        await sim.until_finished()

    sim = play(tmp_path, scenario, rounds_per_epoch=4, total_steps=8)
    liar = sim.sim_members[-1]
    assert sim.check(hostile=[liar]) > 0
    assert sim.run.lost_sequences == 0
    seat = next(event["seat"] for event in liar.saw("joined") if event["seat"] is not None)
    refused = [
        e
        for p in sim.sim_members[:-1]
        for e in p.saw("refused")
        if str(e.get("why")).startswith(BROKEN)
    ]
    assert {event["seat"] for event in refused} == {seat}
    assert sim.record.dropped, "it is dropped, as who delivers nothing is"


def exchanges(sim_member: SimMember) -> Lie:
    async def lie(one: Commitment, transport: SimTransport) -> None:
        if one.private.since is not None:
            one = msgspec.structs.replace(one, private=one.private._replace(before=root(7)))
        tell_all(transport, sign(sim_member, one))

    return lie


@pytest.mark.slow
def test_checker_receives_states_around_judged_round(tmp_path: Path) -> None:
    """All members serve both states while the next round trains. The later one equals the
    optimizer's state.
    """
    compared = 0

    async def scenario(sim: SimulatedRun) -> None:
        nonlocal compared
        for tier in (0, 0, 0, 0, 0, 1):
            sim.add(tier)
        chains = record_commitments(sim)
        await sim.until(lambda run: run.epoch == 1 and run.current.height == 3)
        await asyncio.sleep(0.2)  # until its witnesses have closed and its results are revealed
        checker = sim.sim_members[0].transport
        assert checker is not None
        for sim_member in sim.sim_members[1:]:
            parts = outline_of(sim.schema, sim_member.tier)
            judged = next(
                one for one in chains[sim_member.name] if (one.epoch, one.height) == (1, 2)
            )
            for root in (judged.private.before, judged.private.after):
                for index in range(parts.count):
                    block = await ask_block(checker, sim_member.id, root, parts, index, 5)
                    assert len(block.data) == parts.place(index).size
                    compared += 1
            with pytest.raises(RequestRefused):
                await ask_block(checker, sim_member.id, NOTHING, parts, 0, 5)
            assert sim_member.member is not None
            assert sim_member.member._replica is not None
            assert (
                tree_of(sim_member.member._replica.optimizer.state_tensors()).root
                == chains[sim_member.name][-1].private.after
            )
        await sim.until_finished()

    rules = {"rounds_per_epoch": 4, "total_steps": 8, "verification_percent": 1}
    assert play(tmp_path, scenario, **rules).check() > 0
    assert compared > 0


def test_state_is_not_served_before_reveal(tmp_path: Path) -> None:
    """The state would reveal the result."""
    refused = 0

    async def scenario(sim: SimulatedRun) -> None:
        nonlocal refused
        sim.add(0), sim.add(0), sim.add(0), sim.add(0), sim.add(0, seconds=3.0)
        chains = record_commitments(sim)
        checker = sim.sim_members[0].transport
        sim_member = sim.sim_members[1]
        assert checker is not None
        parts = outline_of(sim.schema, sim_member.tier)
        await sim.until(lambda run: bool(sim_member.saw("trained", epoch=1, height=2)))
        mine = chains[sim_member.name][-1]
        assert (mine.height, sim.run.current.height) == (2, 2)
        await ask_block(checker, sim_member.id, mine.private.before, parts, 0, 5)
        with pytest.raises(RequestRefused):
            await ask_block(checker, sim_member.id, mine.private.after, parts, 0, 5)
        refused += 1
        # It copies the state before it trains the next share.
        await sim.until(lambda run: bool(sim_member.saw("trained", epoch=1, height=3)))
        await ask_block(checker, sim_member.id, mine.private.after, parts, 0, 5)

    play(tmp_path, scenario, rounds_per_epoch=4, verification_percent=1, init_min_clients=5)
    assert refused
