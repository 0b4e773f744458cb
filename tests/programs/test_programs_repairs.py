"""Test what the owner can repair: finished runs, bad checkpoints and models, harmful wallets."""

import dataclasses

import pytest
from solders.keypair import Keypair

from aftermath.rules import committee
from aftermath.rules.model import Recorded
from aftermath.rules.state import CheckpointKind, MemberState, ModelSource, RunState
from programs.harness import Outcome, World
from programs.scenario import CONFIG, Scenario, member, model_params


def hashes(epoch: int) -> dict[int, bytes]:
    return {level: bytes([level + 1, epoch]) * 16 for level in range(3)}


def epoch(run: Scenario, number: int) -> None:
    """Play an epoch of three members. The first one records its checkpoint."""
    run.train([0, 1, 2])
    run.finish_rounds()
    for index in range(3):
        run.attest(index, hashes(number)).ok()
    place = {
        "kind": 2,
        "repo": f"step{run.run.trained_steps}",
        "revision": "",
        "hashes": list(hashes(number).values()),
    }
    run.by(0, "checkpoint", place).ok()
    assert run.run.state in (RunState.WAITING_FOR_MEMBERS, RunState.FINISHED)


def repos(run: Scenario) -> list[str]:
    return [
        one.checkpoint.repo
        for one in run.model.recorded
        if one.checkpoint.kind is not CheckpointKind.NONE
    ]


def kick(run: Scenario, index: int, barred: bool, signer: Keypair | None = None) -> Outcome:
    signer = signer or run.authority
    keys = {"authority": signer.pubkey()}
    step = run.instruction("kick", member(index).pubkey(), barred, accounts=keys)
    return run.world.send(step, signers=[signer])


# ---- a finished run
def test_finished_run_is_reopened_with_more_steps(world: World) -> None:
    run = Scenario(world).start(total_steps=4)
    epoch(run, 0)
    assert run.run.state is RunState.FINISHED
    run.join(0).refused("RunHalted")
    run.owner("set_paused", False).refused("StepsDone")
    run.update(config={**CONFIG, "total_steps": 12}).ok()
    run.owner("set_paused", False).ok()
    assert (run.run.state, run.run.cold_start) == (RunState.WAITING_FOR_MEMBERS, True)
    epoch(run, 1)
    assert run.run.trained_steps > 4


def test_queue_is_cleared_when_run_finishes(world: World) -> None:
    """The exploit: a waiting wallet began the next epoch with its old bond, tier and schema."""
    run = Scenario(world).start(total_steps=4)
    run.train([0, 1, 2])
    for index in range(3):
        run.join(index).ok()
    run.finish_rounds()
    run.world.advance(31)
    run.tick().ok()
    assert run.run.state is RunState.FINISHED
    assert not run.members.pending
    schema = {"hash": b"n" * 32, "tier_widths": [256, 128]}
    run.update(config={**CONFIG, "total_steps": 12, "join_bond": 10**9}, schema=schema).ok()
    run.owner("set_paused", False).ok()
    run.world.advance(40)
    run.tick().refused("NothingToTick")
    assert not run.members.pending
    run.join(0).refused("SchemaMismatch")
    run.join(0, schema_hash=b"n" * 32).refused("BondTooLow")


def test_finished_run_is_reopened_by_rewind(world: World) -> None:
    run = Scenario(world).start(total_steps=10)
    epoch(run, 0)
    epoch(run, 1)
    assert run.run.state is RunState.FINISHED
    run.owner("rewind", 1, 6).ok()
    run.owner("set_paused", False).ok()
    assert (run.run.state, run.run.trained_steps) == (RunState.WAITING_FOR_MEMBERS, 5)


# ---- checkpoints
def test_run_rewinds_to_recorded_checkpoint_and_returns(run: Scenario) -> None:
    for number in range(2):
        epoch(run, number)
    assert repos(run) == ["step10", "step5", "checkpoints/start"]
    first = run.model.earlier[0]
    assert (first.step, first.data_index, first.hashes) == (6, 5 * 48, tuple(hashes(0).values()))
    run.owner("rewind", 1, 6).refused("NotHalted")
    run.owner("set_paused", True).ok()
    epochs = run.run.epoch
    run.owner("rewind", 1, 6).ok()
    state = run.run
    model = run.model
    assert (state.trained_steps, state.data_index, state.epoch) == (5, 5 * 48, epochs)
    assert (state.model_source, state.finishers, state.cold_start) == (
        ModelSource.CHECKPOINT,
        0,
        True,
    )
    assert (state.level_hashes, state.levels_attested & 0b111) == (tuple(hashes(0).values()), 0b111)
    assert (model.checkpoint.repo, model.checkpoint_step, model.checkpoint_data_index) == (
        "step5",
        6,
        240,
    )
    assert repos(run) == ["step5", "step10", "checkpoints/start"]
    run.owner("rewind", 1, 11).ok()  # undoes the mistaken rewind
    assert (run.run.trained_steps, run.run.data_index, repos(run)[0]) == (10, 480, "step10")
    run.owner("rewind", 2, 0).ok()
    assert (run.run.trained_steps, run.run.step, run.run.data_index) == (0, 1, 0)
    run.owner("set_paused", False).ok()
    epoch(run, 7)
    assert (run.run.trained_steps, run.model.checkpoint.repo) == (5, "step5")


def test_rewind_to_current_checkpoint_is_accepted(run: Scenario) -> None:
    """The model went wrong after the checkpoint, in an epoch that nobody saved."""
    epoch(run, 0)
    run.train([0, 1, 2])
    run.witness_round()
    run.owner("set_paused", True).ok()
    run.finish_rounds()
    run.world.advance(31)
    run.tick().ok()
    assert (run.run.state, run.run.trained_steps > 5) == (RunState.PAUSED, True)
    run.owner("rewind", 0, 6).ok()
    assert (run.run.trained_steps, run.run.data_index, run.run.model_source) == (
        5,
        240,
        ModelSource.CHECKPOINT,
    )


@pytest.mark.parametrize(("index", "step"), [(0, 5), (1, 11), (3, 0), (4, 0), (255, 6)])
def test_rewind_to_unrecorded_checkpoint_is_refused(run: Scenario, index: int, step: int) -> None:
    for number in range(2):
        epoch(run, number)
    run.owner("set_paused", True).ok()
    before = run.world.data(run.accounts["model"])
    run.owner("rewind", index, step).refused("NoSuchCheckpoint")
    assert run.world.data(run.accounts["model"]) == before


def test_false_checkpoint_keeps_earlier_ones_recorded(run: Scenario) -> None:
    """A member records a location that does not exist, with the right hashes.

    Only the oldest checkpoint is dropped.
    """
    for number in range(4):
        epoch(run, number)
    assert repos(run) == ["step20", "step15", "step10", "step5"]
    assert len(run.model.earlier) == 3


def test_backlog_is_not_part_of_checkpoint(run: Scenario) -> None:
    run.train([0, 1, 2])
    while run.run.state.training:
        judged = run.run.round(run.run.config.judged(run.run.current.height))
        # the shares of the third member go to the backlog
        run.witness_round(participation=judged.roster & 0b011 if judged else 0)
    waiting = min(one.start for one in run.backlog)
    for index in range(2):
        run.attest(index, hashes(0)).ok()
    place = {"kind": 2, "repo": "x", "revision": "", "hashes": list(hashes(0).values())}
    run.by(0, "checkpoint", place).ok()
    assert waiting < run.run.data_index
    assert run.model.checkpoint_data_index == waiting


def test_new_schema_clears_recorded_checkpoints(run: Scenario) -> None:
    epoch(run, 0)
    run.owner("set_paused", True).ok()
    run.update(schema={"hash": b"s" * 32, "tier_widths": [8, 4]}).ok()
    assert {one.checkpoint.kind for one in run.model.earlier} == {CheckpointKind.NONE}


def test_checkpoint_replaced_by_owner_stays_recorded(run: Scenario) -> None:
    epoch(run, 0)
    run.owner("set_paused", True).ok()
    run.update(model=model_params(checkpoint={"kind": 2, "repo": "other", "revision": ""})).ok()
    assert repos(run) == ["other", "step5", "checkpoints/start"]
    recorded = Recorded(run.model.checkpoint, (bytes(32),) * 3, 240, 0)
    assert run.model.recorded[0] == recorded


# ---- wallets
def test_removed_wallet_leaves_queue_and_may_ask_again(run: Scenario) -> None:
    for index in range(3):
        run.join(index).ok()
    kick(run, 1, barred=False).ok()
    assert (run.members.pending, run.members.seats[1].removed) == (0b101, True)
    run.world.advance(6)
    run.tick().refused("NothingToTick")  # too few members wait
    run.join(1).ok()
    assert (run.members.pending, run.members.seats[1].removed) == (0b111, False)


def test_banned_wallet_stays_out_until_ban_is_lifted(run: Scenario) -> None:
    run.train([0, 1, 2, 3])
    kick(run, 3, barred=True, signer=run.grantor).ok()
    assert run.members.seats[3].state is MemberState.HEALTHY  # it stays in the running epoch
    run.join(3).refused("Barred")
    run.finish_rounds()
    for index in range(4):
        run.attest(index, hashes(0))
    run.world.advance(31)
    run.tick(0).ok()
    assert run.run.finishers == 0b0111
    for index in range(3):
        run.join(index).ok()
    run.join(3).refused("Barred")
    run.owner("set_paused", True).ok()
    run.owner("set_paused", False).ok()
    run.join(3).refused("Barred")  # a pause does not lift a bar
    kick(run, 3, barred=False).ok()
    run.join(3).ok()


def test_leave_does_not_lift_ban(run: Scenario) -> None:
    run.train([0, 1, 2, 3])
    kick(run, 3, barred=True).ok()
    run.by(3, "leave_run").ok()
    assert run.members.seats[3].state is MemberState.WITHDRAWN
    run.join(3).refused("Barred")
    run.by(3, "leave_run").refused("NotAMember")


def test_bans_of_256_wallets_leave_room_for_others(run: Scenario) -> None:
    """The exploit: each bar of a wallet that never came took a seat that nobody else could get."""
    for index in range(256):
        kick(run, 1000 + index, barred=True).ok()
    run.join(0).ok()
    assert run.seat_of(0) == 0
    kick(run, 9, barred=False).refused("NotAMember")


def test_only_both_authorities_remove_and_ban(run: Scenario) -> None:
    run.join(0).ok()
    for stranger in (Keypair(), member(0), member(1)):
        kick(run, 0, barred=True, signer=stranger).refused("NotAllowedToKick")
    for authority in (run.authority, run.grantor):
        kick(run, 0, barred=False, signer=authority).ok()
        run.join(0).ok()


def test_member_kicked_between_epochs_is_not_a_finisher(run: Scenario) -> None:
    epoch(run, 0)
    assert run.run.finishers == 0b111
    kick(run, 2, barred=True).ok()
    assert run.run.finishers == 0b011
    unchanged = dataclasses.replace(run.run, seq=0)
    kick(run, 2, barred=True).ok()
    assert dataclasses.replace(run.run, seq=0, members_seq=unchanged.members_seq) == unchanged


# ---- turns
def holders(run: Scenario, tiers: int = 5) -> list[int]:
    """Return the members of an ended epoch, by their turns to record its checkpoint."""
    run.train(range(tiers))
    run.finish_rounds()
    header = run.run.current
    for index in range(tiers):
        if run.run.levels_attested != 0b111:
            run.attest(index, hashes(0)).ok()
    order = committee.order(header.seed, b"checkpoint", header.clients)
    return [run.index_of(run.members.seats[header.members[rank]].signer) for rank in order]


def name(run: Scenario, index: int, repo: str, kind: int = 2) -> Outcome:
    place = {"kind": kind, "repo": repo, "revision": "", "hashes": list(hashes(0).values())}
    return run.by(index, "checkpoint", place)


def test_early_false_checkpoint_does_not_become_the_runs(run: Scenario) -> None:
    """The member with the last turn is the first to record a location, which does not exist, with
    the right hashes.
    """
    order = holders(run)
    name(run, order[-1], "bad").ok()
    name(run, order[2], "good").ok()
    assert repos(run) == ["good", "bad", "checkpoints/start"]
    name(run, order[-1], "bad").refused("CheckpointNotNewer")
    name(run, order[3], "worse").refused("CheckpointNotNewer")
    name(run, order[0], "best").ok()
    # two checkpoints of one step are kept, and no other is dropped
    assert repos(run) == ["best", "good", "checkpoints/start"]
    place = {"kind": 2, "repo": "owner", "revision": "", "hashes": list(hashes(0).values())}
    keys = {"user": run.authority.pubkey()}
    run.world.send(
        run.instruction("checkpoint", place, accounts=keys), signers=[run.authority]
    ).ok()
    name(run, order[0], "again").refused("CheckpointNotNewer")
    assert repos(run) == ["owner", "best", "checkpoints/start"]


def test_checkpoint_turns_end_with_next_epoch(run: Scenario) -> None:
    order = holders(run)
    name(run, order[1], "good").ok()
    for index in range(5):
        run.join(index).ok()
    run.world.advance(40)
    run.tick().ok()
    assert run.run.state is RunState.WARMUP
    name(run, order[0], "late").refused("CheckpointNotNewer")


def test_directory_is_recorded_after_false_hub_name(run: Scenario) -> None:
    """In a run with directories, a member records a repository that does not exist.

    The others have no Hub account.
    """
    order = holders(run)
    name(run, order[1], "no/model", kind=1).ok()
    name(run, order[0], "good").ok()
    assert repos(run) == ["good", "no/model", "checkpoints/start"]


def test_directory_replaces_hub_place_older_than_last_epoch(run: Scenario) -> None:
    """The run's last Hub location is false, and nobody recorded the model of the epoch before the
    last one.
    """
    epoch(run, 0)
    record = run.world.record("Model", "test")
    record["checkpoint"]["kind"] = CheckpointKind.HUB
    record["earlier"]["checkpoint"]["kind"] = CheckpointKind.NONE
    run.world.store("Model", "test", record)
    for _ in range(2):
        order = holders(run, tiers=3)
        if run.run.epoch == 1:
            name(run, order[0], "mine").refused("CheckpointPlaceRefused")
            run.world.advance(31)
            run.tick().ok()
    name(run, order[0], "mine").ok()
