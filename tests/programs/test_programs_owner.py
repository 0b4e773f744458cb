"""Test the owner's instructions: create, grow, configure, pause and close a run, with every
refusal.
"""

from typing import Any

import numpy as np
import pytest
from solders.keypair import Keypair

from aftermath.chain.views import VERSION
from aftermath.rules.state import CheckpointKind, RunState
from programs.harness import World, address
from programs.scenario import CONFIG, SCHEMA, Scenario, model_params


def test_run_is_created_in_one_transaction(world: World) -> None:
    scenario = Scenario(world)
    scenario.create("v1").ok()
    run = scenario.run
    model = scenario.model
    assert run.state is RunState.UNINITIALIZED
    assert (run.run_id, run.seq, run.version) == ("test", 1, VERSION)
    assert run.main_authority == bytes(scenario.authority.pubkey())
    assert run.join_authority == bytes(scenario.grantor.pubkey())
    assert model.client_version == "v1"
    assert not any(seat.used for seat in scenario.members.seats)
    assert len(world.data(scenario.accounts["witnesses"])) == 56_248


@pytest.mark.parametrize("run_id", ["", "a\0b", "x" * 32])
def test_run_ids_have_1_to_32_bytes(world: World, run_id: str) -> None:
    scenario = Scenario(world, run_id)
    outcome = scenario.create()
    if len(run_id) == 32:
        outcome.ok()
        assert scenario.run.run_id == run_id
    else:
        outcome.refused("RunIdInvalid")


def test_run_id_longer_than_seed_is_refused(world: World) -> None:
    scenario = Scenario(world)
    scenario.run_id = "x" * 33
    world.send(scenario.creation()[0]).refused("RunIdInvalid")
    scenario.run_id = "other"  # the addresses are derived from another id
    world.send(scenario.creation()[0]).refused("InvalidSeeds")


def test_client_version_longer_than_field_is_refused(world: World) -> None:
    Scenario(world).create("v" * 97).refused("ClientVersionTooLong")


def test_repeated_run_creation_is_refused(run: Scenario) -> None:
    before = run.world.data(run.accounts["run"])
    assert run.world.send(run.creation()[0]).error is not None
    assert run.world.data(run.accounts["run"]) == before


def test_create_accepts_prefunded_addresses(world: World) -> None:
    scenario = Scenario(world)
    for name in ("run", "members"):
        world.airdrop(scenario.accounts[name], 1_000_000)
    scenario.create().ok()
    assert scenario.run.state is RunState.UNINITIALIZED


def test_grow_is_required_and_bounded(world: World) -> None:
    scenario = Scenario(world)
    init, *grows = scenario.creation()
    world.send(init).ok()
    scenario.update().refused("NotGrown")
    scenario.owner("set_paused", False).refused("NotGrown")
    world.send(*grows).ok()
    scenario.update().ok()
    for which in (0, 1):
        world.send(scenario.instruction("grow", which)).refused("AlreadyGrown")
    world.send(scenario.instruction("grow", 2)).refused("UnknownAccount")


def test_update_stores_every_part(world: World) -> None:
    scenario = Scenario(world)
    scenario.create().ok()
    scenario.configure(epoch_time=600, verification_percent=10).ok()
    about = {"name": "N" * 64, "description": "D" * 280, "num_parameters": 7, "vocab_size": 9}
    progress = {"epoch": 3, "step": 5, "data_index": 77}
    scenario.update(metadata=about, progress=progress).ok()
    run = scenario.run
    model = scenario.model
    assert (run.config.epoch_time, run.config.verification_percent, run.config.max_seq_len) == (
        600,
        10,
        128,
    )
    assert (run.epoch, run.step, run.data_index, run.levels) == (3, 5, 77, 3)
    assert (model.metadata.name, model.metadata.description) == ("N" * 64, "D" * 280)
    assert (model.schema_hash, model.tiers, model.tier_widths) == (SCHEMA, 3, (256, 128, 64))
    assert model.checkpoint.kind is CheckpointKind.LOCAL
    assert model.lr_schedule.base_lr == pytest.approx(4e-4)
    assert model.optimizer.decay == pytest.approx(0.999)
    assert (run.seq, run.model_seq) == (4, 3)


def test_opening_needs_config_model_and_schema(world: World) -> None:
    scenario = Scenario(world)
    scenario.create().ok()
    scenario.owner("set_paused", True).refused("AlreadyHalted")
    scenario.owner("set_paused", False).refused("ConfigMissing")
    scenario.update(config=CONFIG).ok()
    scenario.owner("set_paused", False).refused("ModelMissing")
    scenario.write_spec().ok()
    scenario.update(model=model_params()).ok()
    scenario.owner("set_paused", False).refused("SchemaMissing")
    scenario.update(schema={"hash": SCHEMA, "tier_widths": [64]}).ok()
    scenario.owner("set_paused", False).ok()
    run = scenario.run
    assert (run.state, run.step, run.cold_start) == (RunState.WAITING_FOR_MEMBERS, 1, True)
    scenario.owner("set_paused", False).refused("NotPaused")


def test_run_past_last_step_opens_as_finished(world: World) -> None:
    scenario = Scenario(world)
    scenario.create().ok()
    scenario.configure(total_steps=4).ok()
    scenario.update(progress={"epoch": 1, "step": 5, "data_index": 0}).ok()
    scenario.owner("set_paused", False).ok()
    assert scenario.run.state is RunState.FINISHED
    scenario.owner("set_paused", False).refused("StepsDone")
    scenario.configure().ok()
    scenario.owner("set_paused", True).refused("AlreadyHalted")


def test_waiting_run_pauses_at_once_and_clears_queue(run: Scenario) -> None:
    run.join(0).ok()
    run.configure().refused("NotHalted")
    run.owner("update_client_version", "v2").refused("NotHalted")
    run.owner("set_paused", True).ok()
    assert (run.run.state, run.members.pending) == (RunState.PAUSED, 0)
    run.owner("set_paused", True).refused("AlreadyHalted")
    run.owner("update_client_version", "v2").ok()
    assert run.model.client_version == "v2"
    run.owner("update_client_version", "v" * 97).refused("ClientVersionTooLong")
    run.owner("set_paused", False).ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS


def test_rates_apply_from_next_epoch(run: Scenario) -> None:
    run.owner("set_future_epoch_rates", 300, None).ok()
    run.owner("set_future_epoch_rates", None, 7).ok()
    assert (run.run.future_earning_rate, run.run.future_slashing_rate, run.run.earning_rate) == (
        300,
        7,
        0,
    )
    run.warm_up([0, 1, 2])
    assert (run.run.earning_rate, run.run.slashing_rate) == (300, 7)


def _other_checkpoint() -> dict[str, Any]:
    return model_params(checkpoint={"kind": 2, "repo": "other", "revision": ""})


def test_new_checkpoint_or_schema_clears_old_hashes(run: Scenario) -> None:
    run.owner("set_paused", True).ok()
    model = run.world.record("Model", "test")
    state = run.world.record("Run", "test")
    model["checkpoint_hashes"][0, :3] = [b"h" * 32] * 3
    model["checkpoint_step"][0] = 50
    state["step"][0] = 60
    run.world.store("Model", "test", model)
    run.world.store("Run", "test", state)
    run.update(model=model_params(), use_durable=True).ok()  # with the same checkpoint
    assert (run.run.levels_attested, run.run.attested_step, run.run.level_hashes[0]) == (
        7,
        50,
        b"h" * 32,
    )
    run.update(progress={"epoch": 0, "step": 40, "data_index": 0}).ok()
    assert (run.model.checkpoint_step, run.run.attested_step) == (39, 40)
    run.update(model=_other_checkpoint(), use_durable=True).ok()
    assert (run.run.levels_attested, run.model.checkpoint_step, run.model.checkpoint_hashes[0]) == (
        0,
        0,
        bytes(32),
    )
    run.world.store("Model", "test", model)
    run.update(schema={"hash": b"s" * 32, "tier_widths": [8, 4]}).ok()
    assert (run.run.levels, run.run.levels_attested, run.model.checkpoint_hashes) == (
        2,
        0,
        (bytes(32),) * 2,
    )


def test_only_main_authority_owns_run(run: Scenario) -> None:
    stranger = Keypair()
    empty = {
        "metadata": None,
        "config": None,
        "model": None,
        "schema": None,
        "progress": None,
        "use_durable": False,
    }
    calls = [
        ("set_paused", [True]),
        ("update", [empty]),
        ("update_client_version", ["x"]),
        ("close_run", []),
    ]
    for name, args in [*calls, ("set_future_epoch_rates", [1, 1])]:
        instruction = run.instruction(name, *args, accounts={"authority": stranger.pubkey()})
        run.world.send(instruction, signers=[stranger]).refused("NotMainAuthority")


def test_close_needs_halted_run_and_returns_all_rent(run: Scenario) -> None:
    run.owner("close_run").refused("NotHalted")
    run.owner("set_paused", True).ok()
    for name in ("run", "model", "members", "witnesses"):
        # Anchor's check of duplicate accounts comes before SpillCloses.
        run.owner("close_run", accounts={"spill": run.accounts[name]}).refused("custom 2040")
    names = ("run", "model", "members", "witnesses")
    rent = sum(run.world.svm.get_balance(run.accounts[name]) for name in names)
    wallet = run.authority.pubkey()
    before = run.world.lamports(wallet)
    run.owner("close_run", accounts={"spill": wallet}).ok()
    assert run.world.lamports(wallet) == before + rent
    assert all(run.world.data(run.accounts[name]) == b"" for name in names)
    run.create().ok()  # the id is free again
    assert run.run.seq == 1


def test_fewer_tiers_clear_old_levels(world: World) -> None:
    scenario = Scenario(world)
    scenario.create().ok()
    scenario.configure().ok()
    record = world.record("Model", "test")
    record["checkpoint_hashes"][:] = bytes([7]) * 32
    world.store("Model", "test", record)
    scenario.update(schema={"hash": SCHEMA, "tier_widths": [256, 64]}).ok()
    assert (scenario.model.tiers, scenario.model.tier_widths, scenario.run.levels) == (
        2,
        (256, 64),
        2,
    )
    assert not np.any(world.record("Model", "test")["tier_widths"][2:])
    assert not any(map(any, world.record("Model", "test")["checkpoint_hashes"][0]))


def test_change_counters_wrap_around(run: Scenario) -> None:
    record = run.world.record("Run", "test")
    record["members_seq"] = record["model_seq"] = np.iinfo(np.uint32).max
    run.world.store("Run", "test", record)
    run.join(0).ok()
    assert run.run.members_seq == 0


@pytest.mark.parametrize("counter", ["seq", "epoch"])
def test_counter_at_maximum_is_an_error_without_panic(run: Scenario, counter: str) -> None:
    record = run.world.record("Run", "test")
    record[counter] = np.iinfo(record[counter].dtype).max
    run.world.store("Run", "test", record)
    if counter == "seq":
        run.join(0).refused("Overflow")
        return
    run.train([0, 1, 2]).finish_rounds()
    run.world.advance(10**6)
    run.tick(0).refused("Overflow")
    assert run.run.state is RunState.COOLDOWN


def test_two_runs_do_not_affect_each_other(world: World) -> None:
    first = Scenario(world, "one").start()
    second = Scenario(world, "two")
    second.create().ok()
    second.configure().ok()
    first.owner("set_paused", True, accounts={"members": address("members", "two")}).refused(
        "InvalidSeeds"
    )
    second.owner("set_paused", False).ok()
    first.join(0).ok()
    assert (first.members.pending, second.members.pending) == (1, 0)
