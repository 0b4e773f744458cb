"""Test that epochs that newcomers could decide are undone, and that the run waits for finishers
that hold the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest

from aftermath.rules import bitmap
from aftermath.rules.deadlines import HOLDERS_WAIT, next_deadline
from aftermath.rules.state import ExitReason, MemberState, ModelSource, RunState
from programs.harness import World
from programs.level_holders import one_round
from programs.scenario import Scenario, member

HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}
NEWER = {level: bytes([level + 9]) * 32 for level in range(3)}
FALSE = dict.fromkeys(range(3), b"\xbb" * 32)
FOUNDERS = {0: 0, 1: 0, 2: 1, 3: 0, 4: 2}
NEWCOMERS = range(20, 24)


def founded(
    world: World, tiers: Mapping[int, int], *, saved: bool = False, rounds: int = 4, **config: int
) -> Scenario:
    """Return a run whose members of these tiers finished an epoch and attested every level."""
    run = Scenario(world).start(rounds_per_epoch=rounds, **config)
    run.train_of(tiers)
    while run.run.state.training:
        one_round(run, {})
    attest(run, tiers)
    if saved:
        run.by(
            0,
            "checkpoint",
            {"kind": 1, "repo": "team/model", "revision": "r1", "hashes": list(HASHES.values())},
        ).ok()
    if run.run.state is RunState.COOLDOWN:
        world.advance(31)
        run.tick(min(tiers)).ok()
    assert (run.run.levels_attested, run.members.established) == (
        0b111,
        bitmap.from_seats(range(len(tiers))),
    )
    return run


def attest(run: Scenario, members: Iterable[int], hashes: Mapping[int, bytes] = HASHES) -> None:
    """Let each of these members attest its levels. Refusals are fine."""
    for index in members:
        seat = run.members.seats[run.seat_of(index)]
        if run.run.state is RunState.COOLDOWN and seat.state is MemberState.HEALTHY:
            run.attest(index, {level: hashes[level] for level in range(seat.tier, 3)})


def begin(run: Scenario, sender: int) -> None:
    """End the warm-up."""
    run.draw()
    run.world.advance(31)
    run.tick(sender).ok()


def train(
    run: Scenario, sender: int, view: Callable[[int, int], int | None], drops: Iterable[int] = ()
) -> None:
    """Play all rounds.

    `view` returns what a member records in a round of this height, or None if it is silent. After
    each round, `sender` reports the members of `drops`. Refusals are fine.
    """
    while run.run.state.training:
        height = run.run.current.height
        judged = run.run.round(run.run.config.judged(height))
        for index in run.elected():
            recorded = view(index, height)
            if recorded is not None and run.run.state.training and run.run.current.height == height:
                run.witness(index, recorded & judged.roster if judged else 0)
        for seconds in (21, 6):
            if run.run.state.training and run.run.current.height == height:
                run.world.advance(seconds)
                run.tick(sender)
        for index in drops if run.run.state.training else ():
            run.by(sender, "health_check", run.names([run.seat_of(index)]))


def end(run: Scenario, sender: int) -> None:
    if run.run.state is RunState.COOLDOWN:
        run.world.advance(31)
        run.tick(sender).ok()


def known(run: Scenario) -> tuple[object, ...]:
    """Return the run's knowledge of its model and of its members."""
    state = run.run
    model = (
        state.level_hashes,
        state.levels_attested,
        state.attested_step,
        state.model_source,
        state.step,
    )
    return (*model, state.finishers, run.members.established)


def join(run: Scenario, tiers: Mapping[int, int]) -> None:
    for index, tier in tiers.items():
        run.join(index, tier=tier).ok()


# ---- finishers that hold the model


def test_newcomers_that_show_no_level_are_no_finishers(world: World) -> None:
    """Epochs of one step show nothing. Such a wallet would otherwise open the model to others."""
    run = founded(world, {0: 0, 1: 2}, rounds=1, init_min_clients=2)
    run.train_of({0: 0, 1: 2} | {index: index % 3 for index in NEWCOMERS})
    while run.run.state.training:
        one_round(run, {})
    attest(run, (0, 1), NEWER)
    world.advance(31)
    run.tick().ok()
    assert run.members.established == 0b11
    assert run.run.finishers == 0b11


@pytest.mark.parametrize(("refuses", "have_word"), [((1,), True), ((0, 1), False)])
def test_one_of_two_last_level_judges_removes_no_vote(
    world: World, refuses: tuple[int, ...], have_word: bool
) -> None:
    """Two founders judge level 2. One claims that it got nothing from any newcomer."""
    run = founded(world, {0: 0, 1: 2}, init_min_clients=2)
    run.train_of({0: 0, 1: 2} | {index: index % 3 for index in range(20, 28)})
    founders = 0b11

    def view(index: int, height: int) -> int:
        return founders if index in refuses else 2**256 - 1

    train(run, 0, view)
    attest(run, (0, 1), NEWER)
    end(run, 0)
    assert (run.members.established != founders) is have_word
    assert not have_word or run.members.established == bitmap.from_seats(range(10))


# ---- newcomers that drop the established members


@pytest.mark.parametrize("tier", [0, 2])
@pytest.mark.parametrize("saved", [True, False])
def test_newcomers_that_drop_first_returner_replace_nothing(
    world: World, tier: int, saved: bool
) -> None:
    """Five established members have an outage.

    The first one to return begins with four newcomers. They record its result once, have it
    dropped, and attest another model.
    """
    run = founded(world, FOUNDERS, saved=saved, rounds=6)
    before = known(run)
    first = 3 if tier == 0 else 4
    join(run, dict.fromkeys(NEWCOMERS, 0))
    world.advance(40)
    run.join(first, tier=tier).ok()
    run.tick(first).refused("NothingToTick")
    world.advance(36)
    run.tick(first).ok()
    assert run.run.state is RunState.WARMUP
    others = {index: tier for index, tier in FOUNDERS.items() if index != first}
    join(run, others)
    begin(run, NEWCOMERS[0])
    own = 1 << run.seat_of(first)
    train(
        run,
        NEWCOMERS[0],
        lambda index, height: 2**256 - 1 if index == first or height < 2 else ~own,
        drops=[first],
    )
    assert run.members.seats[run.seat_of(first)].state is MemberState.DROPPED
    attest(run, NEWCOMERS, FALSE)
    place = {"kind": 2, "repo": "theirs", "revision": "", "hashes": list(FALSE.values())}
    run.owner("checkpoint", place, accounts={"user": run.authority.pubkey()}).refused(
        "CheckpointMismatch"
    )
    end(run, NEWCOMERS[0])
    world.advance(6)
    run.tick(0)
    assert run.run.state is RunState.WARMUP, "the others need not wait"
    assert known(run) == before


@pytest.mark.parametrize("gone", ["crashes", "leaves", "restarts"])
@pytest.mark.parametrize("height", [None, 0, 2], ids=["warm-up", "first round", "third round"])
def test_absence_of_one_of_three_gives_newcomers_no_vote(
    world: World, gone: str, height: int | None
) -> None:
    """Otherwise newcomers would have the other two dropped, and could void every epoch."""
    founders = {0: 0, 1: 0, 2: 1}
    run = founded(world, founders, saved=True, rounds=10)
    join(run, founders | dict.fromkeys(NEWCOMERS, 0))
    world.advance(6)
    run.tick(0).ok()
    if height is None:
        run.draw()
    else:
        begin(run, 0)
    for _ in range(height or 0):
        one_round(run, {})
    if gone == "leaves":
        run.by(2, "leave_run").ok()
    if gone == "restarts":
        run.join(2, tier=1, stateless=True).ok()
    if height is None:
        world.advance(31)
        run.tick(0).ok()
    run.witness(20, 0).refused("NotElected")

    def view(index: int, height: int) -> int | None:
        if index in founders:
            return None if index == 2 else ~0b100
        return ~0b111

    train(run, 20, view, drops=founders)
    assert bitmap.from_seats(founders) & run.members.healthy & 0b11 == 0b11
    for index in NEWCOMERS:
        run.attest(index, FALSE).refused("NotElected")
    attest(run, (0, 1), NEWER)
    end(run, 20)
    assert (run.run.level_hashes, run.run.step) == (tuple(NEWER.values()), run.run.start_step + 10)


@pytest.mark.parametrize("how", ["leave", "restart"])
def test_tier_0_judge_gone_in_warm_up_gives_newcomers_no_vote(world: World, how: str) -> None:
    """Level 0 then goes back to the checkpoint. The other judges remain the only witnesses."""
    founders = {0: 0, 1: 1, 2: 1, 3: 2, 4: 1}
    stayed = [1, 2, 3, 4]
    run = founded(world, founders, saved=True, rounds=10)
    join(run, founders | dict.fromkeys(NEWCOMERS, 0))
    world.advance(6)
    run.tick(1).ok()
    run.draw()
    if how == "leave":
        run.by(0, "leave_run").ok()
    else:
        run.join(0, tier=0, stateless=True).ok()
    world.advance(31)
    run.tick(1).ok()
    run.witness(NEWCOMERS[0], 0).refused("NotElected")
    train(run, NEWCOMERS[0], lambda index, height: ~0b1, drops=stayed)
    assert run.members.healthy & bitmap.from_seats(stayed) == bitmap.from_seats(stayed)
    for index in NEWCOMERS:
        run.attest(index, FALSE).refused("NotElected")
    attest(run, stayed, NEWER)
    end(run, 1)
    assert run.run.level_hashes == (HASHES[0], NEWER[1], NEWER[2])
    assert not run.members.established & bitmap.from_seats(map(run.seat_of, NEWCOMERS))


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["honest first", "hostile first"])
def test_one_of_two_judges_left_removes_no_vote(world: World, order: tuple[int, int]) -> None:
    """The third leaves. Judge 2 records its own results only, before or after the honest
    judge 1.
    """
    founders = {0: 0, 1: 0, 2: 1}
    run = founded(world, founders, saved=True, rounds=10)
    join(run, founders | dict.fromkeys(NEWCOMERS, 0))
    world.advance(6)
    run.tick(1).ok()
    begin(run, 1)
    one_round(run, {})
    run.by(0, "leave_run").ok()
    recorded = {1: ~0b1, 2: 0b100}
    while run.run.state.training:
        height = run.run.current.height
        judged = run.run.round(run.run.config.judged(height))
        for index in order:
            run.witness(index, recorded[index] & judged.roster if judged else 0).ok()
        for seconds in (21, 6):
            if run.run.state.training and run.run.current.height == height:
                world.advance(seconds)
                run.tick(1)
    attest(run, (1, 2), NEWER)
    end(run, 1)
    assert bitmap.contains(run.members.established, 1)


@pytest.mark.parametrize("how", ["leave", "restart"])
def test_last_judge_alone_drops_nobody(world: World, how: str) -> None:
    """The others leave or restart in one round.

    Otherwise the last judge alone would decide who delivered.
    """
    run = founded(world, FOUNDERS, saved=True, rounds=10)
    join(run, FOUNDERS | dict.fromkeys(NEWCOMERS, 0))
    world.advance(6)
    run.tick(0).ok()
    begin(run, 0)
    one_round(run, {})
    for index in (1, 2, 3, 4):
        if how == "leave":
            run.by(index, "leave_run").ok()
        else:
            run.join(index, tier=FOUNDERS[index], stateless=True).ok()
    newcomers = bitmap.from_seats(run.seat_of(index) for index in NEWCOMERS)
    train(run, 0, lambda index, height: 0, drops=NEWCOMERS)
    assert run.run.exit_reason is ExitReason.QUORUM_MISSING
    assert run.members.healthy & newcomers == newcomers


def test_epoch_whose_judges_all_restart_is_undone(world: World) -> None:
    """The epoch ends at once, and they begin again from the checkpoint."""
    founders = {0: 0, 1: 0, 2: 1}
    run = founded(world, founders, saved=True, rounds=10)
    before = known(run)
    join(run, founders | dict.fromkeys(NEWCOMERS, 0))
    world.advance(6)
    run.tick(0).ok()
    begin(run, 0)
    for _ in range(3):
        one_round(run, {})
    for index in founders:
        run.join(index, tier=founders[index], stateless=True).ok()
    world.advance(1)
    run.tick(20)
    assert run.run.state is RunState.COOLDOWN
    for index in NEWCOMERS:
        run.attest(index, FALSE).refused("NotElected")
    end(run, 20)
    *model, _, established = before
    assert known(run) == (*model, 0, established)
    world.advance(6)
    run.tick(0)
    assert run.run.state is RunState.WARMUP


@pytest.mark.parametrize("how", ["leave", "restart"])
def test_judges_leaving_warm_up_give_newcomers_no_model(world: World, how: str) -> None:
    """Clients leave by themselves if no source has the model, for example while the Hub is down.

    Wallets that never had the model would train on and attest it.
    """
    run = founded(world, FOUNDERS, saved=True)
    for index, tier in FOUNDERS.items():
        run.join(index, tier=tier, stateless=True).ok()
    before = known(run)
    join(run, dict.fromkeys(NEWCOMERS, 0))
    world.advance(6)
    run.tick(0)
    assert run.run.state is RunState.WARMUP
    run.draw()
    for index, tier in FOUNDERS.items():
        if how == "leave":
            run.by(index, "leave_run").ok()
        run.join(index, tier=tier, stateless=True).ok()
    world.advance(31)
    run.tick(20).ok()
    train(run, 20, lambda index, height: 2**256 - 1)
    attest(run, NEWCOMERS, FALSE)
    end(run, 20)
    assert known(run) == before
    world.advance(6)
    run.tick(0)
    assert run.run.state is RunState.WARMUP, "the established members wait again already"


def test_established_member_without_results_voids_one_epoch(world: World) -> None:
    """The founders have left for good. One returns in every epoch, and is silent."""
    run = founded(world, FOUNDERS, saved=True)
    before = known(run)
    silent = 4
    seat = 1 << run.seat_of(silent)
    for epoch in range(2):
        join(run, dict.fromkeys(NEWCOMERS, 0) | {silent: 2})
        if epoch:
            assert (
                next_deadline(run.run, run.members, run.model)
                == run.run.state_started_at + HOLDERS_WAIT
            )
            world.advance(HOLDERS_WAIT - 1)
            run.tick(20).refused("NothingToTick")
        world.advance(1 if epoch else 36)
        run.tick(20)
        assert run.run.state is RunState.WARMUP
        begin(run, 20)
        train(run, 20, lambda index, _: None if index == silent else ~seat, drops=[silent])
        attest(run, NEWCOMERS, NEWER)
        end(run, 20)
        assert (known(run) == before) is not epoch
    assert run.run.level_hashes == tuple(NEWER.values())
    assert not bitmap.contains(run.members.established, run.seat_of(silent))


def test_other_established_member_ends_wait_after_undone_epoch(world: World) -> None:
    run = founded(world, FOUNDERS, saved=True)
    join(run, dict.fromkeys(NEWCOMERS, 0) | {4: 2})
    world.advance(36)
    run.tick(20)
    begin(run, 20)
    train(run, 20, lambda index, _: None if index == 4 else ~(1 << run.seat_of(4)), drops=[4])
    end(run, 20)
    join(run, dict.fromkeys(NEWCOMERS, 0) | {4: 2})
    world.advance(36)
    run.tick(20).refused("NothingToTick")
    established = run.members.established
    run.join(3, tier=0).ok()
    world.advance(6)
    run.tick(20).ok()
    assert (run.run.state, run.members.established) == (RunState.WARMUP, established)


def test_progress_reset_by_owner_delays_nobody(world: World) -> None:
    """The owner discards the last epoch, which looks as if it had been undone."""
    run = founded(world, {0: 0, 1: 1, 2: 2}, saved=True)
    join(run, {0: 0, 1: 1, 2: 2})
    run.owner("set_paused", True).ok()
    run.update(
        progress={"epoch": run.run.epoch, "step": run.run.start_step, "data_index": 0},
        use_durable=True,
    ).ok()
    run.owner("set_paused", False).ok()
    join(run, {0: 0, 1: 1, 2: 2})
    world.advance(6)
    run.tick().ok()
    assert run.run.state is RunState.WARMUP


def test_last_epochs_checkpoint_is_recorded_in_next_epoch(world: World) -> None:
    """An upload takes longer than the wait for members.

    The running epoch may still be undone, but this checkpoint's model may not.
    """
    run = founded(world, FOUNDERS)
    run.train_of(FOUNDERS)
    run.by(
        0,
        "checkpoint",
        {"kind": 1, "repo": "team/model", "revision": "r1", "hashes": list(HASHES.values())},
    ).ok()
    assert run.model.checkpoint_hashes[:3] == tuple(HASHES.values())


# ---- the owner's choice, seats, and epochs without a step


def test_abandoned_warm_up_after_rewind_adds_no_day(world: World) -> None:
    run = founded(world, {0: 0, 1: 0, 2: 1}, saved=True)
    run.owner("set_paused", True).ok()
    run.owner("rewind", 0, run.model.checkpoint_step).ok()
    run.owner("set_paused", False).ok()
    join(run, dict.fromkeys((50, 51, 52), 0))
    world.advance(36)
    run.tick(50).ok()
    for index in (51, 52):
        run.by(index, "leave_run").ok()
    assert run.run.epoch_started_at == 0
    join(run, dict.fromkeys((50, *NEWCOMERS), 0))
    world.advance(36)
    run.tick(50)
    assert run.run.state is RunState.WARMUP


@pytest.mark.parametrize("who", ["finishers", "established"])
def test_absent_members_keep_their_seats_while_epoch_runs(world: World, who: str) -> None:
    """All other seats are taken. The first member that returns begins an epoch, and the others find
    their seats.
    """
    run = founded(world, FOUNDERS)
    record = world.record("Members", "test")
    seats = record["seats"][0]
    for index in range(5, 256):
        seats["used"][index] = 1
        seats["declared"][index] = 60
        seats["signer"][index] = (5000 + index).to_bytes(32, "little")
        seats["last_epoch"][index] = 1
        seats["state"][index] = MemberState.HEALTHY
    if who == "finishers":
        record["established"][0] = bytes(32)
    record["healthy"][0] = bitmap.to_bytes(bitmap.from_seats(range(5, 256)))
    world.store("Members", "test", record)
    state = world.record("Run", "test")
    state["state"] = RunState.WARMUP
    state["began"][0] = state["next_roster"][0] = state["rounds"][0]["roster"][0] = record[
        "healthy"
    ][0]
    if who == "established":
        state["finishers"][0] = bytes(32)
    world.store("Run", "test", state)
    run.join(50).refused("MembersFull")


def test_epoch_without_step_makes_no_newcomer_a_finisher(world: World) -> None:
    """Three wallets that declare the whole model are in the epoch in which an outage begins."""
    run = founded(world, FOUNDERS)
    finishers = run.run.finishers
    join(run, FOUNDERS | dict.fromkeys(NEWCOMERS, 0))
    world.advance(6)
    run.tick().ok()
    begin(run, 0)
    train(run, 0, lambda index, height: None)
    end(run, 0)
    assert (run.run.state, run.run.finishers) == (RunState.WAITING_FOR_MEMBERS, finishers)
    join(run, dict.fromkeys(NEWCOMERS, 0))
    world.advance(HOLDERS_WAIT)
    run.tick(20).refused("NothingToTick")
    assert run.run.model_source is ModelSource.PEERS


def test_finisher_banned_in_abandoned_warm_up_is_not_awaited(world: World) -> None:
    """During a warm-up that is abandoned, the owner bars the only finisher that holds level 0."""
    run = founded(world, {0: 0, 1: 1, 2: 2}, init_min_clients=2)
    join(run, {0: 0, 1: 1})
    world.advance(36)
    run.tick(1)
    assert run.run.state is RunState.WARMUP
    kick = run.instruction(
        "kick", member(0).pubkey(), True, accounts={"authority": run.authority.pubkey()}
    )
    world.send(kick, signers=[run.authority]).ok()
    run.by(0, "leave_run").ok()
    assert (run.run.state, run.run.finishers) == (RunState.WAITING_FOR_MEMBERS, 0b110)


@pytest.mark.parametrize("first", [4, 2])
def test_newcomers_replace_no_level_of_later_returners(world: World, first: int) -> None:
    """The first member to return holds only the smaller levels and stays.

    The newcomers attest the larger ones.
    """
    run = founded(world, FOUNDERS, saved=True)
    tier = FOUNDERS[first]
    join(run, dict.fromkeys(NEWCOMERS, 0))
    world.advance(40)
    run.join(first, tier=tier).ok()
    world.advance(6)
    run.tick(first).ok()
    begin(run, NEWCOMERS[0])
    train(run, NEWCOMERS[0], lambda index, height: 2**256 - 1)
    for index in NEWCOMERS:
        run.attest(index, FALSE).refused("NotElected")
    attest(run, [first], NEWER)
    end(run, NEWCOMERS[0])
    assert run.run.level_hashes == (
        *(HASHES[level] for level in range(tier)),
        *(NEWER[level] for level in range(tier, 3)),
    )
    assert run.run.step == run.model.checkpoint_step + 4


def test_undone_epoch_pays_nobody(world: World) -> None:
    run = founded(world, FOUNDERS, saved=True)
    run.owner("set_future_epoch_rates", 900, 0).ok()
    join(run, dict.fromkeys(NEWCOMERS, 0) | {4: 2})
    world.advance(36)
    run.tick(20)
    begin(run, 20)
    train(run, 20, lambda index, _: None if index == 4 else ~(1 << run.seat_of(4)), drops=[4])
    end(run, 20)
    assert (run.run.earning_rate, {seat.points for seat in run.members.seats}) == (900, {0})


@pytest.mark.parametrize(
    ("how", "stands"), [("outvoted", False), ("leaves", True), ("leaves early", False)]
)
def test_outvoted_first_returner_keeps_run_from_newcomers(
    world: World, how: str, stands: bool
) -> None:
    """A client that cannot get the attested results joins again without a replica.

    One that leaves was not outvoted.
    """
    run = founded(world, FOUNDERS)
    before = known(run)
    join(run, dict.fromkeys(NEWCOMERS, 0) | {4: 2})
    world.advance(36)
    run.tick(20)
    if how == "leaves early":
        run.draw()
        run.by(4, "leave_run").ok()
        world.advance(31)
        run.tick(20).ok()
    else:
        begin(run, 20)
        one_round(run, {})
        one_round(run, {})
        one_round(run, {})
        if how == "leaves":
            run.by(4, "leave_run").ok()
        else:
            run.join(4, tier=2, stateless=True).ok()
    train(run, 20, lambda index, height: ~(1 << run.seat_of(4)))
    attest(run, NEWCOMERS, FALSE)
    end(run, 20)
    assert (known(run)[:5] != before[:5]) is stands


def test_newcomers_do_not_outvote_judges_one_by_one(world: World) -> None:
    """One of three established members is away, so newcomers vote and leave out one of the other
    two.

    If that judge lost its status, the next epoch could not be undone.
    """
    run = founded(world, {0: 0, 1: 0, 2: 0}, rounds=6)
    newcomers = dict.fromkeys(NEWCOMERS, 0)
    join(run, {0: 0, 1: 0} | newcomers)
    run.world.advance(40)
    run.tick().ok()
    begin(run, 0)
    roster = run.run.current.roster
    judges = 0b11
    train(run, 1, lambda index, _: judges if index < 3 else roster & ~1)
    attest(run, (0, 1, *newcomers), NEWER)
    end(run, 1)
    assert run.run.step > run.run.start_step
    assert run.members.established & 0b111 == 0b111


def test_outvoted_member_stays_established_with_unsaved_levels(world: World) -> None:
    """Three wallets outvote the only member that is present.

    No checkpoint has the levels, so each epoch is undone until the owner acts.
    """
    run = founded(world, FOUNDERS, rounds=6)
    before = known(run)
    wallets = {20: 0, 21: 0, 22: 0}
    for epoch in range(2):
        join(run, wallets | {0: 0})
        world.advance(HOLDERS_WAIT if epoch else 36)
        run.tick(20).ok()
        begin(run, 20)
        train(run, 20, lambda index, _: 2**256 - 1 if index == 0 else ~1)
        attest(run, (0, *wallets), FALSE)
        end(run, 20)
        assert known(run) == before


def test_idle_newcomer_names_no_checkpoint(world: World) -> None:
    run = founded(world, {0: 0, 1: 0, 2: 0}, rounds=6)
    join(run, {0: 0, 1: 0, 2: 0, 20: 0})
    world.advance(6)
    run.tick(0).ok()
    begin(run, 0)
    train(run, 0, lambda index, _: 0b111 if index < 3 else 0)
    place = {"kind": 1, "repo": "theirs/model", "revision": "r", "hashes": list(NEWER.values())}
    attest(run, (0, 1, 2), NEWER)
    run.by(20, "checkpoint", place).refused("NotAllowedToCheckpoint")
    run.by(0, "checkpoint", place).ok()
