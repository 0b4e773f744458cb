"""Test that waiting wallets cannot discard what honest members trained: model sources, finishers
and seats.
"""

from collections.abc import Iterable, Sequence

import pytest

from aftermath.events.status import status_of
from aftermath.rules import bitmap
from aftermath.rules.deadlines import HOLDERS_WAIT, next_deadline
from aftermath.rules.state import MemberState, ModelSource, RunState
from programs.harness import World
from programs.scenario import Scenario, member

HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}
NEWER = {level: bytes([level + 9]) * 32 for level in range(3)}
HONEST = range(3)
STRANGERS = range(10, 13)


def trained(world: World, founders: Sequence[int] = HONEST, **config: int) -> Scenario:
    """Return a run whose members finished an epoch that no durable checkpoint contains."""
    run = Scenario(world).start(**config)
    run.train(founders).finish_rounds()
    for index in founders:
        run.attest(index, HASHES).ok()
    run.world.advance(31)
    run.tick().ok()
    assert (run.run.model_source, run.run.finishers) == (
        ModelSource.PEERS,
        bitmap.from_seats(founders),
    )
    return run


def trained_and_lost(world: World, founders: Sequence[int] = HONEST, **config: int) -> Scenario:
    """Return a run whose members declare that they lost the trained model, and leave."""
    run = trained(world, founders, **config)
    for index in founders:
        run.join(index, stateless=True).ok()
        run.by(index, "leave_run").ok()
    assert run.run.finishers == 0
    return run


def strangers_begin(run: Scenario, wait: int = HOLDERS_WAIT) -> None:
    """Let three wallets without a replica begin from the durable checkpoint."""
    for index in STRANGERS:
        run.join(index).ok()
    run.world.advance(wait)
    run.tick(10).ok()
    assert (run.run.state, run.run.model_source) == (RunState.WARMUP, ModelSource.CHECKPOINT)


def known(run: Scenario) -> tuple[object, ...]:
    """Return the run's knowledge of its model."""
    state = run.run
    hashes = (
        state.level_hashes,
        state.levels_attested & 0b111,
        state.attested_step,
        state.attested_data_index,
    )
    return (
        *hashes,
        state.model_source,
        state.finishers,
        state.levels_lost,
        state.step,
        state.data_index,
    )


def rounds_pass(run: Scenario, sender: int) -> None:
    while run.run.state is not RunState.COOLDOWN:
        run.world.advance(31)
        run.tick(sender).ok()
    run.world.advance(31)
    run.tick(sender).ok()


def test_run_without_finisher_does_not_begin(world: World) -> None:
    """Strangers would start from an older checkpoint, and their hashes would replace the run's."""
    run = trained(world)
    before = known(run)
    for index in STRANGERS:
        run.join(index).ok()
    assert next_deadline(run.run, run.members, run.model) is None
    waits = status_of(run.run, run.model, run.members, run.world.now).waits
    assert any("rewind --run-id test" in one for one in waits)
    for _ in range(3):
        run.world.advance(100_000)
        run.tick(10).refused("NothingToTick")
    assert known(run) == before
    run.join(HONEST[0]).ok()
    run.world.advance(6)
    run.tick().ok()
    assert (run.run.state, run.run.model_source) == (RunState.WARMUP, ModelSource.PEERS)


def test_run_without_finisher_begins_after_rewind(world: World) -> None:
    run = trained(world)
    run.owner("set_paused", True).ok()
    run.owner("rewind", 0, 0).ok()
    run.owner("set_paused", False).ok()
    for index in STRANGERS:
        run.join(index).ok()
    assert next_deadline(run.run, run.members, run.model) == run.run.state_started_at + 35
    world.advance(34)
    run.tick(10).refused("NothingToTick")  # its members may join again
    strangers_begin(run, wait=1)


def test_run_without_finisher_begins_from_full_checkpoint(world: World) -> None:
    run = trained(world)
    checkpoint = {
        "kind": 1,
        "repo": "team/model",
        "revision": "r1",
        "hashes": list(HASHES.values()),
    }
    run.by(HONEST[0], "checkpoint", checkpoint).ok()
    for index in STRANGERS:
        run.join(index).ok()
    run.world.advance(HOLDERS_WAIT)
    run.tick(10).ok()
    assert (run.run.state, run.run.level_hashes) == (RunState.WARMUP, tuple(HASHES.values()))


def test_seat_of_awaited_finisher_is_never_reassigned(world: World) -> None:
    run = trained(world)
    full(run, last_epoch=3)
    state = run.world.record("Run", "test")
    state["finishers"][0] = b"\xff" * 32
    run.world.store("Run", "test", state)
    run.world.advance(100_000)
    run.join(50).refused("MembersFull")
    record = run.world.record("Members", "test")
    record["seats"][0]["pending"][7] = 1  # a member that is not established is back
    run.world.store("Members", "test", record)
    run.join(50).refused("MembersFull")
    # an established member is back, and the others' time is over
    record["seats"][0]["pending"][0] = 1
    run.world.store("Members", "test", record)
    run.join(50).ok()


def test_seat_of_established_is_kept_for_a_day(world: World) -> None:
    """Otherwise 256 waiting wallets would take the seats of members that are cut off, and begin
    without them.
    """
    run = trained(world, range(4))
    place = {"kind": 2, "repo": "team/model", "revision": "", "hashes": list(HASHES.values())}
    run.by(HONEST[0], "checkpoint", place).ok()
    seats = run.world.record("Members", "test")["seats"][0]["signer"][:4].copy()
    full(run, last_epoch=3)
    record = run.world.record("Members", "test")
    record["seats"][0]["signer"][:4] = seats
    record["seats"][0]["pending"][4:] = 1
    world.store("Members", "test", record)
    world.advance(HOLDERS_WAIT - 1)
    run.join(50).refused("MembersFull")
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    world.advance(1)
    run.join(50).ok()


def test_abandoned_warm_up_of_strangers_changes_nothing(world: World) -> None:
    run = trained_and_lost(world)
    before = known(run)
    strangers_begin(run)
    for index in STRANGERS:
        run.by(index, "leave_run").ok()
        if run.run.state is RunState.WAITING_FOR_MEMBERS:
            break
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    assert known(run) == before


def test_epoch_of_strangers_without_step_changes_nothing(world: World) -> None:
    run = trained_and_lost(world)
    before = known(run)
    strangers_begin(run)
    rounds_pass(run, 10)
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    waiting = sum(interval.len for interval in run.backlog)
    handed_out = run.run.data_index - before[-1]  # type: ignore[operator]
    assert known(run)[:-2] == before[:-2]
    assert handed_out in (0, waiting)


def test_epoch_without_training_accepts_no_attestation(world: World) -> None:
    """The exploit: a finisher began with strangers before the others were back, trained nothing,
    and left.
    """
    run = trained(world)
    before = known(run)
    for index in (HONEST[0], *STRANGERS):
        run.join(index).ok()
    run.world.advance(6)
    run.tick().ok()
    assert (run.run.state, run.run.model_source) == (RunState.WARMUP, ModelSource.PEERS)
    run.by(HONEST[0], "leave_run").ok()
    rounds_pass(run, 10)
    assert bitmap.contains(run.run.finishers, run.seat_of(HONEST[1]))
    assert not bitmap.contains(run.run.finishers, run.seat_of(HONEST[0]))
    for index in HONEST:
        run.join(index).ok()
    run.world.advance(6)
    run.tick().ok()
    assert (run.run.state, run.run.model_source) == (RunState.WARMUP, ModelSource.PEERS)
    assert known(run)[:4] == before[:4]


def test_owner_pausing_warm_up_of_strangers_loses_nothing(world: World) -> None:
    run = trained_and_lost(world)
    before = known(run)
    strangers_begin(run)
    run.owner("set_paused", True).ok()
    assert known(run) == before


def test_older_model_is_adopted_once_quorum_trained_it(world: World) -> None:
    run = trained_and_lost(world)
    step = run.run.step
    strangers_begin(run)
    run.world.advance(31)
    run.tick(10).ok()
    run.witness_round()
    run.finish_rounds()
    run.world.advance(31)
    run.tick(10).ok()
    assert run.run.step > step
    assert run.run.finishers == bitmap.from_seats(run.seat_of(index) for index in STRANGERS)


def test_one_newcomers_results_continue_lost_model(world: World) -> None:
    """No earlier member has come for a day.

    One of three newcomers delivers. Its model is the newest one, and only it attests the model.
    """
    run = trained_and_lost(world)
    step = run.run.step
    strangers_begin(run)
    run.world.advance(31)
    run.tick(10).ok()
    while run.run.state.training:
        run.witness_round(participation=1 << run.seat_of(10) if run.run.current.height else 0)
    for index in STRANGERS[1:]:
        run.attest(index, HASHES).refused("NotElected")
    run.attest(10, NEWER).ok()
    run.world.advance(31)
    run.tick(10).ok()
    assert (run.run.step > step, run.run.level_hashes) == (True, tuple(NEWER.values()))
    assert run.run.lost_sequences == 0


@pytest.mark.parametrize(
    "model", ["in a checkpoint", "lost", "with finishers that delivered nothing"]
)
def test_newcomers_alone_wait_a_day(world: World, model: str) -> None:
    """All members are cut off. Newcomers would train, and their hashes would replace the run's."""
    run = trained_and_lost(world) if model == "lost" else trained(world)
    if model == "in a checkpoint":
        place = {"kind": 2, "repo": "team/model", "revision": "", "hashes": list(HASHES.values())}
        run.by(HONEST[0], "checkpoint", place).ok()
    for index in STRANGERS:
        run.join(index).ok()
    if model == "with finishers that delivered nothing":
        set_finishers(run, STRANGERS)
    run.owner("set_paused", True).ok()
    run.owner("set_paused", False).ok()
    for index in STRANGERS:
        run.join(index).ok()
    before = known(run)
    assert next_deadline(run.run, run.members, run.model) == run.run.state_started_at + HOLDERS_WAIT
    waits = status_of(run.run, run.model, run.members, world.now).waits
    holder = (
        "an absent member that trained before"
        if model == "in a checkpoint"
        else "an absent member that had the model"
    )
    assert any(holder in one for one in waits)
    world.advance(HOLDERS_WAIT - 1)
    run.tick(10).refused("NothingToTick")
    assert known(run) == before
    run.world.advance(1)
    run.tick(10).ok()
    assert run.run.state is RunState.WARMUP


def test_newcomers_do_not_wait_for_banned_member(world: World) -> None:
    run = trained_and_lost(world)
    for index in STRANGERS:
        run.join(index).ok()
    for index in HONEST:
        run.world.advance(6)
        run.tick(10).refused("NothingToTick")
        keys = {"authority": run.authority.pubkey()}
        kick = run.instruction("kick", member(index).pubkey(), True, accounts=keys)
        run.world.send(kick, signers=[run.authority]).ok()
    run.tick(10).ok()
    assert run.run.state is RunState.WARMUP


def test_established_member_ends_wait_of_newcomers(world: World) -> None:
    run = trained_and_lost(world)
    for index in (*STRANGERS, HONEST[1]):
        run.join(index).ok()
    run.world.advance(6)
    run.tick(10).ok()
    assert run.run.state is RunState.WARMUP


@pytest.mark.parametrize(("rounds", "stands"), [(1, False), (3, True)])
def test_epoch_whose_judge_left_stands_if_it_judged(
    world: World, rounds: int, stands: bool
) -> None:
    """The judge ends the wait of newcomers that begin from an older model, and leaves during their
    rounds.

    Before it has judged a round, nobody could attest what they train.
    """
    run = trained_and_lost(world)
    before = known(run)
    for index in (*STRANGERS, HONEST[0]):
        run.join(index, stateless=index in HONEST).ok()
    run.world.advance(6)
    run.tick().ok()
    run.draw()
    run.world.advance(31)
    run.tick(10).ok()
    for _ in range(rounds):
        run.witness_round()
    run.by(HONEST[0], "leave_run").ok()
    run.finish_rounds()
    run.world.advance(31)
    run.tick(10).ok()
    assert (known(run)[:-1] != before[:-1]) is stands


@pytest.mark.parametrize(
    ("back", "weight", "stands"),
    [
        ("dropped", 60, False),  # ten wallets vote to drop it
        ("idle", 1, False),  # it owes nothing, so it counts as delivering
        ("honest next to a two-faced one", 60, True),  # one of two must not void the epoch
    ],
)
def test_epoch_from_older_model_stands_if_established_delivers(
    world: World, back: str, weight: int, stands: bool
) -> None:
    """One or two members return from an outage and witness together with ten newcomers."""
    run = trained_and_lost(world)
    before = known(run)
    established = HONEST[: 1 + stands]
    newcomers = range(10, 20)
    for index in established:
        run.join(index, stateless=True, weight=weight).ok()
    for index in newcomers:
        run.join(index).ok()
    run.world.advance(6)
    run.tick().ok()
    run.draw()
    run.world.advance(31)
    run.tick(10).ok()
    seats = bitmap.from_seats(run.seat_of(index) for index in newcomers)
    lacking = 1 << run.seat_of(HONEST[1])
    while run.run.state.training:
        height = run.run.current.height
        judged = run.run.round(run.run.config.judged(height))
        for index in (*newcomers, *established) if stands else newcomers:
            participation = (
                judged.roster & ~(lacking * (index % 2))
                if judged and stands
                else seats
                if judged
                else 0
            )
            if run.run.state.training and run.run.current.height == height:
                run.witness(index, participation).ok()
        for seconds in (21, 6):
            if run.run.state.training and run.run.current.height == height:
                world.advance(seconds)
                run.tick(10)
        if run.run.state.training:
            run.by(10, "health_check", run.names([run.seat_of(established[-1])]))
    assert run.run.step > before[-2]  # type: ignore[operator]
    state = run.members.seats[run.seat_of(established[-1])].state
    assert state is MemberState.DROPPED or back != "dropped"
    world.advance(31)
    run.tick(10).ok()
    assert (known(run)[:-1] == before[:-1]) is not stands


def test_established_members_wait_a_day_for_only_finisher(world: World) -> None:
    """A level is in no checkpoint, and only one wallet holds it.

    That wallet must not stop the run by leaving.
    """
    run = trained(world)
    set_finishers(run, HONEST[2:])
    for index in (*HONEST[:2], *STRANGERS):
        run.join(index).ok()
    before = known(run)
    assert next_deadline(run.run, run.members, run.model) == run.run.state_started_at + HOLDERS_WAIT
    assert any(
        "24 hours" in one for one in status_of(run.run, run.model, run.members, world.now).waits
    )
    world.advance(HOLDERS_WAIT - 1)
    run.tick(10).refused("NothingToTick")
    world.advance(1)
    run.tick(10).ok()
    assert (run.run.state, run.run.model_source) == (RunState.WARMUP, ModelSource.CHECKPOINT)
    run.owner("set_paused", True).ok()
    assert known(run) == before  # nobody has trained from the older model


def set_finishers(run: Scenario, members: Iterable[int]) -> None:
    record = run.world.record("Run", "test")
    record["finishers"][0] = bitmap.to_bytes(
        bitmap.from_seats(run.seat_of(index) for index in members)
    )
    run.world.store("Run", "test", record)


@pytest.mark.parametrize("newcomers", [3, 12])
def test_silent_newcomers_do_not_void_others_work(world: World, newcomers: int) -> None:
    """The exploit: established members restarted from the durable checkpoint, and more than a third
    of the members delivered nothing.

    At the end, the others' training was undone.
    """
    run = trained(world)
    silent = range(20, 20 + newcomers)
    for index in (*HONEST, *silent):
        run.join(index, stateless=index in HONEST).ok()
    run.world.advance(75)
    run.tick().ok()
    assert (run.run.state, run.run.model_source) == (RunState.WARMUP, ModelSource.CHECKPOINT)
    run.draw()
    run.world.advance(31)
    run.tick().ok()
    step = run.run.step
    while run.run.state.training:
        height = run.run.current.height
        for index in HONEST:
            if run.run.current.height == height:
                run.witness(index, bitmap.from_seats(HONEST) if height else 0).ok()
    run.world.advance(31)
    run.tick().ok()
    assert run.run.step > step


def test_level_without_waiting_holder_survives_aborted_warmup(world: World) -> None:
    """Members of tiers 1 and 2 begin without the one of tier 0, and leave again."""
    run = Scenario(world).start()
    for index in HONEST:
        run.join(index, tier=index).ok()
    run.world.advance(6)
    run.tick().ok()
    run.world.advance(31)
    run.tick().ok()
    run.finish_rounds()
    for index in HONEST:
        run.attest(index, {level: HASHES[level] for level in range(index, 3)})
    run.world.advance(31)
    run.tick().ok()
    before = known(run)
    assert run.run.levels_attested & 1 == 1
    for index in (1, 2):
        run.join(index, tier=index).ok()
    run.join(10, tier=2).ok()
    run.world.advance(40)
    run.tick(1).ok()
    assert (run.run.levels_lost, run.run.level_hashes[0]) == (1, bytes(32))
    for index in (1, 2):
        run.by(index, "leave_run").ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    assert known(run) == before


# ---- seats
def full(run: Scenario, **fields: int) -> None:
    """Give every seat to an absent wallet whose seat has these `fields`."""
    record = run.world.record("Members", "test")
    seats = record["seats"][0]
    seats["used"] = 1
    seats["declared"] = 60
    for name, value in fields.items():
        seats[name] = value
    for index in range(256):
        seats["signer"][index] = bytes(member(1000 + index).pubkey())
        run.put_membership(1000 + index)
    run.world.store("Members", "test", record)


@pytest.mark.parametrize("worth", [{"points": 7}, {"weight": 120}, {"last_epoch": 8}])
def test_worthless_seat_is_reused_first(run: Scenario, worth: dict[str, int]) -> None:
    """All wallets but one have points, have delivered, or were here recently.

    A newcomer takes that one's seat.
    """
    full(run, last_epoch=3)
    state = run.world.record("Run", "test")
    state["epoch"] = 9
    run.world.store("Run", "test", state)
    record = run.world.record("Members", "test")
    for name, value in worth.items():
        record["seats"][0][name] = value
        record["seats"][0][name][200] = 0
    run.world.store("Members", "test", record)
    run.join(0).ok()
    assert run.seat_of(0) == 200


def test_silent_wallets_take_no_seat_of_members(run: Scenario) -> None:
    """Many wallets of one person join and leave.

    They evict each other and not the members that delivered.
    """
    full(run, last_epoch=9, weight=0)
    state = run.world.record("Run", "test")
    state["epoch"] = 9
    run.world.store("Run", "test", state)
    record = run.world.record("Members", "test")
    record["seats"][0]["weight"][:40] = 100
    record["seats"][0]["last_epoch"][:40] = 8
    run.world.store("Members", "test", record)
    for index in range(30):
        run.join(index).ok()
        run.by(index, "leave_run").ok()
    signers = [seat.signer for seat in run.members.seats[:40]]
    assert signers == [bytes(member(1000 + index).pubkey()) for index in range(40)]


def test_provisional_model_is_not_a_checkpoint(world: World) -> None:
    """One of two founders returns to a lost model, and newcomers outvote it.

    They attest a model and record it at once, before their epoch is undone.
    """
    run = trained_and_lost(world, founders=range(2), init_min_clients=2)
    before = known(run)
    for index in (0, *STRANGERS):
        run.join(index, stateless=index == 0).ok()
    run.world.advance(36)
    run.tick(10).ok()
    run.draw()
    run.world.advance(31)
    run.tick(10).ok()
    newcomers = bitmap.from_seats(run.seat_of(index) for index in STRANGERS)
    while run.run.state.training:
        height = run.run.current.height
        run.witness(0).ok()
        for index in STRANGERS:
            if run.run.current.height == height:
                run.witness(index, newcomers if height else 0).ok()
        for seconds in (21, 6):
            if run.run.state.training and run.run.current.height == height:
                run.world.advance(seconds)
                run.tick(10)
    for index in STRANGERS:
        run.attest(index, NEWER).ok()
    assert run.run.levels_attested == 0b111
    place = {"kind": 2, "repo": "theirs", "revision": "", "hashes": list(NEWER.values())}
    run.by(10, "checkpoint", place).refused("CheckpointMismatch")
    run.world.advance(31)
    run.tick(10).ok()
    assert known(run)[:-1] == before[:-1]
