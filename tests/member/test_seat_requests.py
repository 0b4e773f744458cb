"""A member's seat on chain in virtual time: no abandoned seats, and no floods of joins."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.coordinator.errors import Refused
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import ALONE, SHORT

LATENCY = 0.5  # virtual seconds in each direction


@pytest.mark.parametrize(
    "after", [2.25, 2.75], ids=["before it lands", "before its confirmation is seen"]
)
def test_ctrl_c_during_join_leaves_no_seat(tmp_path: Path, after: float) -> None:
    """Parametrised by the delay to Ctrl-C: while the join is looked up, simulated, sent or
    landing.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim.chain.latency = LATENCY
        sim_member = sim.add(0)
        assert sim_member.chain is not None
        joined = sim_member.chain.join
        sent: list[float] = []

        async def noted(**wish: object) -> None:
            sent.append(sim.now)
            await joined(**wish)  # type: ignore[arg-type]

        sim_member.chain.join = noted  # type: ignore[method-assign, assignment]
        await sim.until(lambda _: bool(sent))
        await asyncio.sleep(sent[0] + after - sim.now)
        assert not sim_member.saw("joined")
        await sim.stop(sim_member)
        await asyncio.sleep(60)
        assert sim.members.pending == 0
        assert len(sim_member.saw("left")) == 1

    sim = play(tmp_path, scenario)
    assert sim.members.find(bytes(sim.sim_members[0].key.pubkey())) is not None, "the join did land"
    assert sim.run.current.roster == 0


def test_leave_without_seat_is_not_an_error(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until(lambda _: sim.members.pending > 0)
        await sim.stop(sim_member)
        assert sim_member.member is not None
        await sim_member.member.leave()
        assert len(sim_member.saw("left")) == 1

    play(tmp_path, scenario)


@pytest.mark.slow
def test_two_processes_with_one_wallet_limit_their_requests(tmp_path: Path) -> None:
    """Each corrects the tier that the other declares, with growing delays."""
    seconds = 600

    async def scenario(sim: SimulatedRun) -> None:
        first = sim.add(0)
        second = sim.add(2)
        await _end_at_once(sim, second)
        second.key = first.key
        sim.start(second)
        await asyncio.sleep(seconds)
        for sim_member in (first, second):
            assert sim_member.chain is not None
            assert sim_member.alive
            joins = len(sim_member.saw("joined"))
            assert 3 <= joins <= 20, joins
            assert sim_member.chain.costs()["transactions"] <= joins + 5
            assert any(
                "no other process uses this wallet" in e["message"]
                for e in sim_member.saw("warning")
            )

    play(tmp_path, scenario)


def test_second_process_of_wallet_is_reported_once(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        first = sim.add(0)
        await sim.until_round(2)
        second = sim.add(0)
        await _end_at_once(sim, second)
        second.key = first.key
        sim.start(second)
        await sim.until(lambda _: bool(second.saw("joined")))
        await sim.until(lambda run: run.epoch == 1)
        for sim_member in (first, second):
            warnings = [event["message"] for event in sim_member.saw("warning")]
            about = [text for text in warnings if "another process signed up with this" in text]
            assert len(about) == (sim_member is first), warnings

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 20})


def test_second_process_in_same_epoch_is_named(tmp_path: Path) -> None:
    """Both have the same wallet and peer identity, and peers talk to only one of them."""

    async def scenario(sim: SimulatedRun) -> None:
        sim.add(0)
        first = sim.add(0)
        second = sim.add(0, seconds=first.seconds * 2)
        await _end_at_once(sim, second)
        second.key = first.key
        second.identity = first.identity
        await sim.until(lambda _: bool(first.saw("joined")))
        sim.start(second)
        await sim.until(lambda run: run.epoch == 2)
        warnings = [event["message"] for one in (first, second) for event in one.saw("warning")]
        assert any("another process signed up with this wallet\n" in text for text in warnings)
        fell_out = [text for text in warnings if text.startswith("fell out")]
        assert fell_out
        for text in fell_out:
            assert "another process uses this wallet; " in text

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 8, "total_steps": 60})


def test_restart_with_other_speed_while_waiting_is_not_warned(tmp_path: Path) -> None:
    """The seat still waits with the weight that the killed process declared."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until(lambda _: bool(sim_member.saw("joined")))
        declared = sim.members.seats[0].declared
        await sim.kill(sim_member)
        sim_member.seconds *= 1.1
        sim.start(sim_member)
        sim.add(0)
        await sim.until(lambda run: run.epoch == 0 and run.state.training)
        assert sim.members.seats[0].declared == declared
        await sim.until(lambda run: run.epoch == 1)
        warnings = [event["message"] for event in sim_member.saw("warning")]
        assert not any("another process" in text for text in warnings), warnings

    play(tmp_path, scenario, **ALONE | {"init_min_clients": 2, "rounds_per_epoch": 8})


@pytest.mark.parametrize("speed", [1.0, 1.1, 3.0])
def test_member_alone_with_its_wallet_is_not_warned(tmp_path: Path, speed: float) -> None:
    """The seat keeps the weight of the killed process until the epoch is over."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until_round(2)
        await sim.kill(sim_member)
        sim_member.seconds *= speed
        sim.start(sim_member)
        await sim.until(lambda run: run.epoch == 2)
        assert not [
            event for event in sim_member.saw("warning") if "another process" in event["message"]
        ]

    play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 3, "total_steps": 60})


async def _end_at_once(sim: SimulatedRun, sim_member: SimMember) -> None:
    """Stop a member before it sends anything to the chain."""
    await sim.kill(sim_member)
    assert sim.members.pending == 0


@pytest.mark.slow
def test_member_that_lost_its_seat_rejoins_soon(tmp_path: Path) -> None:
    """Only members that lose their seat repeatedly wait before they rejoin."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        assert sim_members[2].chain is not None
        sim_members[2].chain.down = True
        await asyncio.sleep(20)
        sim_members[2].chain.down = False
        await sim.until(lambda _: len(sim_members[2].saw("joined")) > 1)
        (noticed,) = [
            e["t"] for e in sim_members[2].saw("warning") if "out of this epoch" in e["message"]
        ]
        assert sim_members[2].saw("joined")[1]["t"] - noticed < 2

    play(tmp_path, scenario)


def test_repeated_pauses_do_not_slow_joins(tmp_path: Path) -> None:
    """A pause frees the seats of waiting members, so a lost seat does not mean another process."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1)]  # one member too few for an epoch
        for times in range(1, 9):
            await sim.until(lambda _: sim.members.pending.bit_count() == len(sim_members))
            sim.pause(True)
            await asyncio.sleep(1)
            sim.pause(False)
            resumed = sim.now
            await sim.until(lambda _: sim.members.pending.bit_count() == len(sim_members))
            assert sim.now - resumed < 2.5, f"after {times} pauses they wait"
        assert not [
            e
            for sim_member in sim_members
            for e in sim_member.saw("warning")
            if "no other process uses this wallet" in e["message"]
        ]

    play(tmp_path, scenario)


def test_removed_and_banned_members_get_reason(tmp_path: Path) -> None:
    """A removed member rejoins. A barred one ends with an error that says who can lift the bar."""
    messages: list[str] = []

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1)]  # one member too few for an epoch
        await sim.until(lambda _: sim.members.pending == 0b11)
        for barred in (False, True):
            sim.kick(sim_members[1], barred=barred)
            await sim.until(lambda _: len(sim_members[0].saw("kicked")) == 1 + barred)  # noqa: B023
            if not barred:
                await sim.until(lambda _: sim.members.pending == 0b11)
        with pytest.raises(Refused) as end:
            await sim.until(lambda _: False)
        messages.append(end.value.message)
        sim_members[1].task = None

    sim = play(tmp_path, scenario)
    wallet = str(sim.sim_members[1].key.pubkey())
    assert [(e["wallet"], e["barred"]) for e in sim.sim_members[0].saw("kicked")] == [
        (wallet, False),
        (wallet, True),
    ]
    assert "barred from" in messages[0]


@pytest.mark.slow
def test_members_continue_from_rewound_checkpoint(tmp_path: Path) -> None:
    """After two epochs the owner rewinds to the end of the first while members stay connected."""

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until(lambda run: run.epoch == 2 and run.state is RunState.WARMUP)
        sim.pause(True)
        await sim.until(lambda run: run.state is RunState.PAUSED)
        back = next(
            place
            for place, one in enumerate(sim.model.recorded)
            if one.step == sim.run.config.rounds_per_epoch + 1
        )
        sim.rewind(back)
        assert sim.run.trained_steps == sim.run.config.rounds_per_epoch
        sim.pause(False)
        epoch = sim.run.epoch
        await sim.until(lambda run: run.epoch == epoch + 1 and run.state is RunState.WARMUP)

    sim = play(tmp_path, scenario, rounds_per_epoch=3)
    for sim_member in sim.sim_members:
        assert [(e["before"], e["step"]) for e in sim_member.saw("rewound")] == [(6, 3)]
        assert [e["step"] for e in sim_member.saw("trained")] == [1, 2, 3, 4, 5, 6, 4, 5, 6]
    ends = [
        {tuple(e["hashes"].items()) for e in p.saw("cooldown", step=6)} for p in sim.sim_members
    ]
    assert all(ends)
    top = [dict(e["hashes"]) for p in sim.sim_members for e in p.saw("cooldown", step=6)]
    for level in range(3):
        assert len({hashes[level] for hashes in top if level in hashes}) <= 2


@pytest.mark.slow
def test_late_member_reports_waiting_once(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        early = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        late = sim.add(1)
        await sim.until_finished()
        assert [e["epoch"] for e in late.saw("waiting")] == [1]
        assert not any(sim_member.saw("waiting") for sim_member in early)

    play(tmp_path, scenario, **SHORT)


def test_member_giving_up_seat_rejoins_with_backoff(tmp_path: Path) -> None:
    """A member without a source of the model leaves every epoch and rejoins with growing delays."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        assert sim_member.member is not None
        while sim.now < 60:
            joins = len(sim_member.saw("joined"))
            await sim.until(lambda _, joins=joins: len(sim_member.saw("joined")) > joins)
            await sim_member.member._joining.leave_epoch_now()
        messages = [event["message"] for event in sim_member.saw("warning")]
        assert len(messages) >= 2
        assert all(
            message.startswith("this member gave up its seat; it joins again")
            for message in messages
        )

    play(tmp_path, scenario)
