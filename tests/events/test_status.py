"""Test a run's status: what it waits for in every state, until when, and each member's state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aftermath.events.status import (
    RunStatus,
    checkpoint_of,
    facts_of,
    line,
    shown_levels,
    status_of,
)
from aftermath.rules.members import Members
from aftermath.rules.model import Checkpoint, Model
from aftermath.rules.run import Run
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.rules.state import (
    CheckpointKind,
    EstablishedOnly,
    ExitReason,
    MemberState,
    ModelSource,
    RunState,
)
from rules import builders

CONFIG = builders.config(
    init_min_clients=3,
    min_clients=2,
    total_steps=100,
    warmup_time=60,
    min_round_time=2,
    max_round_train_time=40,
    round_witness_time=10,
    cooldown_time=90,
    waiting_for_members_extra_time=5,
)
BEGAN = 1_000


def members(count: int, **overrides: Any) -> Members:
    return builders.members(
        {seat: builders.seat(seat, tier=seat % 3, **overrides) for seat in range(count)}
    )


def at(
    state: RunState,
    *,
    now: int = BEGAN,
    members_: Members | None = None,
    model: Model | None = None,
    round_: dict[str, Any] | None = None,
    silent: int = 0,
    has_tick: bool = True,
    **overrides: Any,
) -> RunStatus:
    run = run_of(state, round_, **overrides)
    seats = members_ if members_ is not None else members(3)
    return status_of(run, model or builders.model(), seats, now, silent=silent, has_tick=has_tick)


def run_of(state: RunState, round_: dict[str, Any] | None = None, **overrides: Any) -> Run:
    rounds = (builders.header(0b111, **{"elected": 3} | (round_ or {})),)
    return builders.run(
        state, rounds=rounds, **{"config": CONFIG, "state_started_at": BEGAN, "step": 1} | overrides
    )


def test_status_of_halted_run_names_command_without_deadline() -> None:
    for state, word in (
        (RunState.UNINITIALIZED, "update-config"),
        (RunState.PAUSED, "set-paused resume"),
    ):
        status = at(state)
        assert word in status.waits[0]
        assert status.deadline is None
    finished = at(RunState.FINISHED, step=101)
    assert finished.waits == ("nothing: 100 steps are trained",)
    assert (finished.step, finished.deadline) == (100, None)


def test_outer_momentum_is_a_fact_only_if_it_is_on() -> None:
    assert "outer momentum" not in facts_of(at(RunState.PAUSED))
    model = builders.model(optimizer=SparseLoCo(outer_momentum=0.6))
    status = at(RunState.PAUSED, model=model)
    assert status.outer_momentum == 0.6
    assert facts_of(status)["outer momentum"] == "0.6"


def test_new_run_waits_for_config_and_then_start() -> None:
    new = {"state_started_at": 0, "now": 1_795_000_000}
    assert at(RunState.UNINITIALIZED, **new).waits == ("update-config by its owner",)
    configured = at(
        RunState.UNINITIALIZED, model=builders.model(schema_hash=bytes([1] * 32)), **new
    )
    assert configured.waits == ("set-paused resume by its owner",)
    assert configured.since is None
    assert facts_of(configured)["state"] == "new (epoch 0)"
    assert facts_of(at(RunState.PAUSED, now=BEGAN + 7))["state"] == "paused (epoch 0), for 7 s"
    assert line(at(RunState.PAUSED)).endswith("; waits for set-paused resume by its owner")
    assert line(at(RunState.FINISHED)).endswith("; waits for nothing: 100 steps are trained")


def test_status_of_waiting_run_counts_missing_members() -> None:
    few = at(
        RunState.WAITING_FOR_MEMBERS, members_=members(1, pending=True, state=MemberState.IDLE)
    )
    assert few.waits == ("members: 1 of 3",)
    assert few.deadline is None
    assert [member.standing for member in few.members] == ["joins the next epoch"]
    enough = at(RunState.WAITING_FOR_MEMBERS, now=BEGAN + 2, members_=members(3, pending=True))
    assert enough.waits == ("more members until the deadline: 3 of at least 3 members have joined",)
    assert enough.deadline == 3


def test_status_names_reason_of_last_epoch_end() -> None:
    reasons = [reason for reason in ExitReason if reason is not ExitReason.NONE]
    stay = members(3, pending=True, state=MemberState.IDLE)
    texts = {
        at(RunState.WAITING_FOR_MEMBERS, exit_reason=reason, members_=stay, step=101).waits[-1]
        for reason in reasons
    }
    assert len(texts) == len(reasons)
    complete = {ExitReason.ROUNDS_PER_EPOCH, ExitReason.EPOCH_TIME}
    assert sum("(the last epoch is complete" in sentence for sentence in texts) == len(complete)
    assert sum("(the last epoch ended: " in sentence for sentence in texts) == 4


def test_status_after_reopen_names_added_steps() -> None:
    facts: dict[str, Any] = {"exit_reason": ExitReason.TOTAL_STEPS}
    reopened = at(RunState.WAITING_FOR_MEMBERS, step=61, **facts)
    assert reopened.waits[0].endswith(" (all earlier steps were trained; the owner has added more)")


def away_for_a_day() -> tuple[Members, dict[str, Any]]:
    """Return members of whom only a newcomer waits, and the state of an undone epoch."""
    seats = {
        0: builders.seat(0, state=MemberState.IDLE),
        1: builders.seat(1, state=MemberState.IDLE, pending=True),
    }
    return builders.members(seats, established=0b1), {"epoch_started_at": BEGAN}


@pytest.mark.parametrize("has_tick", [True, False])
@pytest.mark.parametrize(
    ("source", "known"),
    [(ModelSource.PEERS, "had the model"), (ModelSource.CHECKPOINT, "trained before")],
)
def test_status_of_day_long_wait_names_rewind_on_chain(
    has_tick: bool, source: ModelSource, known: str
) -> None:
    """If the next epoch begins from the checkpoint, no member has a newer model."""
    away, facts = away_for_a_day()
    facts["model_source"] = source
    waiting = at(RunState.WAITING_FOR_MEMBERS, members_=away, has_tick=has_tick, **facts)
    assert waiting.waits[1].startswith(
        f"an absent member that {known} (after 24 hours, any member)"
    )
    assert ("then aftermath-solana rewind --run-id test --to-step" in waiting.waits[1]) is has_tick


@pytest.mark.parametrize(
    ("least", "end"),
    [(1, "resume"), (2, "the run needs 1 more member"), (3, "the run needs 2 more members")],
)
def test_status_of_day_long_wait_counts_missing_members(least: int, end: str) -> None:
    away, facts = away_for_a_day()
    config = replace(CONFIG, init_min_clients=least)
    waiting = at(RunState.WAITING_FOR_MEMBERS, members_=away, config=config, **facts)
    assert waiting.waits[1].endswith(end)


@pytest.mark.parametrize("step", [1, 61])
def test_status_of_day_long_wait_on_server_names_new_state(step: int) -> None:
    away, facts = away_for_a_day()
    model = builders.model(
        checkpoint_step=step, checkpoint=Checkpoint(CheckpointKind.LOCAL, "/a/b", "")
    )
    waiting = at(
        RunState.WAITING_FOR_MEMBERS, members_=away, model=model, has_tick=False, step=70, **facts
    )
    assert "start it with another --save-state-dir" in waiting.waits[1]
    assert ("write /a/b as the checkpoint into its state.toml" in waiting.waits[1]) is (step > 1)


def test_status_of_reopened_saved_run_loses_no_step() -> None:
    away, facts = away_for_a_day()
    model = builders.model(checkpoint_step=61)
    waiting = at(RunState.WAITING_FOR_MEMBERS, members_=away, model=model, step=61, **facts)
    assert waiting.waits[1].startswith(
        "an absent member that trained before (after 24 hours, any member), although no trained steps "
        "depend on it; to begin at once from the checkpoint, which has all 60 steps, the owner runs"
    )
    assert "rewind --run-id test --to-step 60, then" in waiting.waits[1]


@pytest.mark.parametrize("reason", [ExitReason.NO_ATTESTATION, ExitReason.QUORUM_MISSING])
def test_status_after_all_left_names_no_silent_witness(reason: ExitReason) -> None:
    """A newcomer that waits did not take part in the last epoch."""
    seats = {
        number: builders.seat(number, state=MemberState.IDLE, last_epoch=6) for number in range(3)
    }
    for newcomer in ({}, {3: builders.seat(3, state=MemberState.IDLE, pending=True, last_epoch=0)}):
        gone = builders.members(seats | newcomer, epoch=6)
        waits = at(RunState.WAITING_FOR_MEMBERS, exit_reason=reason, members_=gone).waits
        assert len(waits) == 1
        assert waits[0].endswith(" (all members of the last epoch have left)")
    stays = builders.members(seats | {0: replace(seats[0], pending=True)}, epoch=6)
    (waits,) = at(RunState.WAITING_FOR_MEMBERS, exit_reason=reason, members_=stays).waits
    assert " (the last epoch ended: " in waits


@pytest.mark.parametrize(
    ("state", "attestations", "words", "deadline"),
    [
        (
            RunState.WARMUP,
            1,
            "its members to load the model: 1 of 3 witnesses (2 must) have it",
            60,
        ),
        (RunState.ROUND_TRAIN, 1, "1 of 3 witnesses to confirm round 4", 40),
        (
            RunState.ROUND_TRAIN,
            2,
            "the minimum time of a round: 2 of 3 witnesses (2 must) have attested",
            2,
        ),
        (
            RunState.ROUND_WITNESS,
            2,
            "the witnesses that have not attested yet: 2 of 3 witnesses (2 must) have",
            10,
        ),
    ],
)
def test_status_counts_votes(state: RunState, attestations: int, words: str, deadline: int) -> None:
    status = at(state, round_={"attestations": attestations, "height": 4})
    assert status.waits == (words,)
    assert status.deadline == deadline


def test_status_of_cooldown_names_hashes_and_checkpoint() -> None:
    facts = {"step": 41, "levels": 3}
    nothing = at(RunState.COOLDOWN, **facts)
    assert nothing.waits == (
        "the hashes of the model: 0 of 3 levels are attested",
        "a tier-0 member to save a checkpoint of this epoch",
    )
    of_before = at(RunState.COOLDOWN, levels_attested=0b111, attested_step=21, **facts)
    assert of_before.waits[0] == nothing.waits[0], "hashes of the epoch before do not count"
    some = at(RunState.COOLDOWN, levels_attested=0b101, attested_step=41, **facts)
    assert some.waits[0] == "the hashes of the model: 2 of 3 levels are attested"
    with_checkpoint = at(
        RunState.COOLDOWN,
        levels_attested=0b111,
        attested_step=41,
        model=builders.model(checkpoint_step=41),
        **facts,
    )
    assert with_checkpoint.waits == ()
    small = builders.members(
        {0: builders.seat(0, tier=2), 1: builders.seat(1, tier=2), 2: builders.seat(2, tier=1)}
    )
    assert "0 of 2 levels" in at(RunState.COOLDOWN, members_=small, **facts).waits[0], (
        "nobody holds level 0"
    )


@pytest.mark.parametrize(
    ("percent", "deadline", "waits"),
    [(0, -29, ("a tick",)), (5, 60, ("judges that audit the last rounds",))],
)
def test_status_of_saved_cooldown_names_what_it_awaits(
    percent: int, deadline: int, waits: tuple[str, ...]
) -> None:
    found = at(
        RunState.COOLDOWN,
        now=BEGAN + 30,
        model=builders.model(checkpoint_step=41),
        config=replace(CONFIG, verification_percent=percent),
        step=41,
        levels=3,
        levels_attested=0b111,
        attested_step=41,
        round_={"established": EstablishedOnly.WITNESS},
    )
    assert found.deadline == deadline
    assert len(found.waits) == len(waits)
    assert found.waits[0].startswith(waits[0])
    assert found.is_stalled == (percent == 0)


def test_status_after_missed_deadline_asks_for_tick() -> None:
    late = at(RunState.WARMUP, now=BEGAN + 60 + 14)
    assert late.deadline == -14
    assert not any("tick" in sentence for sentence in late.waits)
    later = at(RunState.WARMUP, now=BEGAN + 60 + 15)
    assert later.waits[-1] == "a tick to advance it: aftermath-solana tick --run-id test"
    assert (late.is_stalled, later.is_stalled) == (False, True)


def test_status_without_member_in_epoch_is_stalled() -> None:
    gone = members(3, state=MemberState.WITHDRAWN)
    assert at(RunState.COOLDOWN, members_=gone).is_stalled
    assert not at(RunState.COOLDOWN).is_stalled
    assert not at(RunState.PAUSED, members_=gone).is_stalled


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({"has_tick": False}, "a connected member to advance it"),
        ({"silent": 20}, "its members to load the model: 0 of 3 witnesses (2 must) have it"),
        (
            {"silent": 20, "has_tick": False},
            "its members to load the model: 0 of 3 witnesses (2 must) have it",
        ),
    ],
    ids=["server", "silent chain", "silent server"],
)
def test_standing_without_tick_or_answer_gives_no_tick_advice(
    options: dict[str, Any], waits: str
) -> None:
    overdue = at(RunState.WARMUP, now=BEGAN + 60 + 15 + options.get("silent", 0), **options)
    assert overdue.deadline == -15
    assert overdue.waits[-1] == waits
    assert ("no answer; last known state" in line(overdue)) == ("silent" in options)


@pytest.mark.parametrize("established", [0, 0b10])
def test_overdue_epoch_of_last_member_names_its_wallet(established: int) -> None:
    """If no established member waits, the next epoch would wait for the last member again."""
    seats = {
        0: builders.seat(0, tier=0),
        1: builders.seat(1, state=MemberState.WITHDRAWN, pending=True),
    }
    away = builders.members(seats, established=established)
    for state, deadline in ((RunState.ROUND_TRAIN, 2), (RunState.COOLDOWN, 90)):
        overdue = at(
            state,
            now=BEGAN + deadline + 15,
            members_=away,
            step=4,
            start_step=1,
            seed_slot=9,
            round_={"elected": 1, "attestations": 1},
        )
        assert len(overdue.waits) == 1
        assert overdue.waits[0].startswith("wallet ")
        assert facts_of(overdue)["deadline"] == "in 24 h"
        assert overdue.is_stalled
        assert overdue.deadline == -15, "a tick ends the wait at once"
    (text,) = overdue.waits
    assert text.startswith(f"wallet {'1' * 32}, the last member of epoch 0: 3 steps of training")
    assert "until 1970-01-02 00:18 UTC" in text
    tick = "aftermath-solana tick --run-id test"
    assert text.endswith(tick if established else "set-paused --run-id test resume")
    assert tick in text
    assert (", then aftermath-solana rewind --run-id test --to-step 0" in text) == (not established)


def test_status_names_pending_pause() -> None:
    assert (
        "after which the owner's pause begins"
        in at(RunState.ROUND_TRAIN, pending_pause=True).waits[-1]
    )
    assert not any(
        "the owner's pause begins" in sentence
        for sentence in at(RunState.PAUSED, pending_pause=True).waits
    )


def test_status_remaining_time_follows_epochs_pace() -> None:
    facts = {"start_step": 11, "epoch_started_at": BEGAN - 40}
    assert at(RunState.ROUND_TRAIN, step=13, **facts).left is None, (
        "two steps say nothing of a pace"
    )
    assert at(RunState.ROUND_TRAIN, step=21, **facts).left == 80 * 40 // 10
    assert at(RunState.COOLDOWN, step=21, **facts).left is None


def test_status_members_equal_chain() -> None:
    seats = {
        0: builders.seat(0, weight=7, points=1200, slashed=5, last_epoch=3),
        1: builders.seat(1, state=MemberState.DROPPED, last_epoch=3),
        2: builders.seat(2, state=MemberState.HEALTHY, pending=True, last_epoch=3),
        3: builders.seat(3, state=MemberState.WITHDRAWN, last_epoch=3),
        5: builders.seat(5, state=MemberState.IDLE, pending=True),
        6: builders.seat(6, state=MemberState.IDLE, removed=True, last_epoch=1),
        7: builders.seat(7, state=MemberState.IDLE, barred=True),
        9: builders.seat(9, state=MemberState.IDLE, last_epoch=2),
    }
    before = builders.header(0b111, height=3, elected=2, attested=0b101, seed=1)
    now = builders.header(0b111, height=4, elected=2, attested=0b100, attestations=1, seed=2)
    run = replace(
        run_of(RunState.ROUND_TRAIN, epoch=3),
        rounds=(before, now, *run_of(RunState.PAUSED).rounds[2:]),
        head=1,
    )
    status = status_of(run, builders.model(), builders.members(seats), BEGAN)
    assert status.round == 4
    assert [(member.seat, member.standing, member.seen) for member in status.members] == [
        (0, "takes part", "epoch 3, round 3"),
        (1, "dropped", "epoch 3"),
        (2, "takes part, joins the next epoch", "epoch 3, round 4"),
        (3, "left", "epoch 3"),
        (5, "joins the next epoch", "epoch 0"),
        (6, "removed", "epoch 1"),
        (7, "barred", "epoch 0"),
        (9, "away", "epoch 2"),
    ]
    first = status.members[0]
    assert (first.weight, first.points, first.slashed) == (7, 1200, 5)
    assert sum(member.witness for member in status.members) == 2
    halted = status_of(
        replace(run, state=RunState.PAUSED), builders.model(), builders.members(seats), BEGAN
    )
    assert not any(member.witness or "takes part" in member.standing for member in halted.members)
    assert [member.seen for member in halted.members][:1] == ["epoch 3"]


def test_status_speed_is_sum_of_members_in_epoch() -> None:
    model = builders.model(max_seq_len=64)
    facts: dict[str, Any] = {
        "start_step": 1,
        "epoch_started_at": BEGAN,
        "round_": {"batch": 8},
        "model": model,
    }
    assert at(RunState.ROUND_TRAIN, now=BEGAN + 10, step=3, **facts).tokens_per_second is None
    assert (
        at(RunState.ROUND_TRAIN, now=BEGAN + 10, step=6, **facts).tokens_per_second
        == 5 * 8 * 64 // 10
    )
    assert at(RunState.COOLDOWN, now=BEGAN + 10, step=6, **facts).tokens_per_second is None
    drained = facts | {"round_": {"batch": 0}}
    assert at(RunState.ROUND_TRAIN, now=BEGAN + 10, step=6, **drained).tokens_per_second is None


def test_status_level_holders_have_its_tier_or_larger() -> None:
    running = at(RunState.ROUND_TRAIN, members_=members(4))
    assert [level.holders for level in running.levels] == [(0, 3), (0, 1, 3), (0, 1, 2, 3)]
    assert not any(level.attested or level.lost for level in running.levels)
    between = at(
        RunState.WAITING_FOR_MEMBERS, members_=members(4), finishers=0b110, step=7, attested_step=7
    )
    assert [level.holders for level in between.levels] == [(), (1,), (1, 2)]
    facts = {"step": 7, "attested_step": 7, "levels_attested": 0b101, "levels_lost": 0b010}
    levels = at(RunState.COOLDOWN, members_=members(4), **facts).levels
    assert [(level.attested, level.lost) for level in levels] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    old = at(RunState.COOLDOWN, members_=members(4), **facts | {"attested_step": 4}).levels
    assert not any(level.attested for level in old)


def test_status_levels_are_shown_by_earlier_deliveries() -> None:
    known = replace(members(4), established=0b0110)
    status = at(RunState.WAITING_FOR_MEMBERS, members_=known)
    assert [level.shown for level in status.levels] == [(), (1,), (1, 2)]
    assert shown_levels(status) == ["level 0: none yet", "level 1: 1 member", "level 2: 2 members"]


def test_standing_without_checkpoint_mentions_checkpoint_dir() -> None:
    """The chain does not know about the copy that a stopped member saved in its own directory."""
    status = at(RunState.ROUND_TRAIN, step=7, epoch=1)
    for words in (str(facts_of(status)["checkpoint"]), line(status)):
        assert "no recorded checkpoint has the last 6 steps" in words
        assert "--checkpoint-dir may have one" in words


def test_status_line_counts_active_members() -> None:
    for count, words in ((1, "; 1 member takes part; "), (3, "; 3 members take part; ")):
        assert words in line(
            at(RunState.ROUND_TRAIN, members_=members(count, state=MemberState.HEALTHY))
        )


def test_status_says_directory_is_on_another_machine() -> None:
    run = builders.run(RunState.FINISHED, step=7)
    model = builders.model(checkpoint_step=7)
    status = status_of(run, model, builders.members({}), now=0)
    assert checkpoint_of(status).endswith(", on the machine that saved it")
    on_hub = replace(model, checkpoint=replace(model.checkpoint, kind=CheckpointKind.HUB))
    status = status_of(run, on_hub, builders.members({}), now=0)
    assert "machine" not in checkpoint_of(status)
