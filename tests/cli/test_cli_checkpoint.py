"""Tests of commands that need a finished epoch: recording the attested model, and a member's
record.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.chain.wallet import load_wallet
from aftermath.cli.checkpoint import _how_to_pause
from aftermath.config.document import load_config
from aftermath.events import status
from aftermath.model.checkpoint import load
from aftermath.model.segments import level_hash
from aftermath.owner.schema import shape_of
from aftermath.rules.state import RunState
from cli.cli_lone_member import one_epoch, quick_config
from cli.cli_runs import LOCAL, Outcome, Shell, invoke, invoke_typing
from cli.cli_torchless import torchless_server
from cli.conftest import SHAPE
from rules import builders


def calls(planned: Outcome) -> list[str]:
    """Return the instructions of a dry run that the simulation accepted."""
    (one,) = planned.data["transactions"]
    assert one["outcome"] == "accepted"
    return list(one["instructions"])


@pytest.mark.slow
def test_finished_run_checkpoint_is_recorded_and_run_reopened(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    """Run one epoch of two steps. Check which checkpoints may be recorded then, and how the run
    continues.
    """
    config = quick_config(
        run_dir,
        tmp_path,
        {"total_steps = 48": "total_steps = 2", "final_lr = 1.0e-3": "final_lr = 0.0"},
    )
    run_option = ("--run-id", run_id)
    for command, *arguments in (
        ("create-run",),
        ("update-config", "--config-path", config),
        ("set-paused", "resume"),
        ("set-future-epoch-rates", "--earning-rate-total-shared", 90),
    ):
        assert owner(command, *run_option, *arguments).code == 0
    assert invoke("can-join", "--rpc", owner.rpc, *run_option, "--address", owner.wallet).code == 0
    assert (
        "only a finished run can be reopened"
        in owner("reopen", *run_option, "--total-steps", 9).error["error"]
    )
    assert "can be rewound" in owner("rewind", *run_option, "--to-step", 0).error["error"]
    schema = shape_of(load_config(config)).schema.state
    weights = load(run_dir / "model", 0)
    hashes = {level: level_hash(weights, schema, level) for level in range(schema.levels)}
    run = asyncio.run(one_epoch(owner.rpc, owner.wallet, run_id, hashes))
    assert run.levels_attested == 0b111

    # Another model is refused before anything is sent; the attested one is recorded and ends the
    # cooldown.
    other = tmp_path / "other"
    assert invoke("model", "init", "--out", other, "--seed", "1", *SHAPE).code == 0
    refused = owner("checkpoint", *run_option, "--path", other).error
    assert "is not the model that the members attested" in refused["error"]
    checkpoint = ("checkpoint", *run_option, "--path", run_dir / "model")
    assert calls(owner(*checkpoint, "--dry-run")) == ["coordinator.checkpoint"]
    assert owner("json-dump-run", *run_option).data["model"]["checkpoint_step"] == 0
    recorded = owner(*checkpoint).data
    assert recorded["repo"] == str(run_dir / "model")
    # the chain counts the step that comes next
    assert recorded["step"] == run.attested_step - 1 == 2
    member = owner("json-dump-user", *run_option, "--address", owner.wallet).data["member"]
    assert member["points"] == 90
    assert owner("json-dump-run", *run_option).data["run"]["state"] == "finished"
    with torchless_server() as torchless:
        for tier in ("0", "auto"):
            ended = torchless(
                "train",
                "--rpc",
                owner.rpc,
                "-w",
                owner.wallet,
                *LOCAL,
                *run_option,
                "--matformer-tier",
                tier,
            )
            assert ended.code == 0, ended.err
            finished = f"on its machine, in {run_dir / 'model'}: ask the run's owner for it"
            assert ended.out.splitlines()[-1].endswith(finished)
            assert "loading PyTorch" not in ended.out + ended.err
    assert "reopen" in owner("set-paused", *run_option, "resume").error["fix"]
    assert (
        "has already trained 2 steps"
        in owner("reopen", *run_option, "--total-steps", 2).error["error"]
    )

    text = " ".join(invoke("show-run", "--rpc", owner.rpc, *run_option).out.split())
    assert f"checkpoint step 2 at {run_dir / 'model'}, on the machine that saved it" in text
    assert [one["step"] for one in owner("rewind", *run_option).data] == [2, 0]
    listed = invoke("rewind", "--rpc", owner.rpc, "-w", owner.wallet, *run_option)
    assert "2 checkpoints of run" in listed.out
    assert "next:" not in listed.err
    unknown = owner("rewind", *run_option, "--to-step", 1).error
    assert unknown["fix"] == "Choose one of these steps: 0, 2"
    assert calls(owner("rewind", *run_option, "--to-step", 0, "--dry-run")) == [
        "coordinator.rewind"
    ]
    assert owner("json-dump-run", *run_option).data["run"]["step"] == 3
    for step in (0, 2):
        rewound = owner("rewind", *run_option, "--to-step", step)
        assert rewound.data["step"] == step
        back = f"2 steps are set aside. To go back to step 2: aftermath-solana rewind --run-id {run_id} --to-step 2"
        assert (back in rewound.err) is (step == 0)
        assert owner("json-dump-run", *run_option).data["run"]["step"] == step + 1
    assert owner(*checkpoint).data["step"] == 2  # the owner may name another place of the same step
    idle = owner("reopen", *run_option, "--total-steps", 80).error
    assert "is 0 from step 48 on" in idle["error"]
    assert f"reopen --run-id {run_id} --total-steps 80" in idle["fix"]
    prolonged = config.with_name("prolonged.toml")
    prolonged.write_text(config.read_text().replace("total_steps = 2\n", "total_steps = 30\n", 1))
    # of a finished run
    assert calls(owner("update-config", *run_option, "--config-path", prolonged, "--dry-run"))
    outcome = invoke("can-join", "--rpc", owner.rpc, *run_option, "--address", owner.wallet)
    assert outcome.out.startswith("no: the run is finished\nfix: ")
    assert "reads" not in outcome.out
    signed = ("--rpc", owner.rpc, "-w", owner.wallet, *run_option)
    renamed = invoke("update-config", *signed, "--name", "Longer")
    assert "next:" not in renamed.err
    reopening = calls(owner("reopen", *run_option, "--total-steps", 30, "--dry-run"))
    assert reopening == ["coordinator.update", "coordinator.set_paused"]
    assert owner("json-dump-run", *run_option).data["run"]["state"] == "finished"
    too_few = invoke(
        "reopen",
        "--rpc",
        owner.rpc,
        "-w",
        owner.wallet,
        *run_option,
        "--total-steps",
        30,
        "--dry-run",
    )
    assert (
        "warning: the learning-rate schedule lasts until step 48, but the run has only 30 steps"
        in too_few.err
    )
    opened = owner("reopen", *run_option, "--total-steps", 30).data
    assert "make the schedule as long as total_steps" in opened["warnings"][0]
    assert (opened["state"], opened["total_steps"]) == ("waiting_for_members", 30)


@pytest.mark.slow
def test_finished_run_without_checkpoint_warns(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that was stopped may have saved the model without a record on chain."""
    config = quick_config(
        run_dir,
        tmp_path,
        {"total_steps = 48": "total_steps = 2", "cooldown_time = 15": "cooldown_time = 1"},
    )
    run_option = ("--run-id", run_id)
    assert owner("create-run", *run_option).code == 0
    assert owner("update-config", *run_option, "--config-path", config).code == 0
    assert owner("set-paused", *run_option, "resume").code == 0
    asyncio.run(
        one_epoch(
            owner.rpc, owner.wallet, run_id, {level: bytes([level + 1]) * 32 for level in range(3)}
        )
    )
    signed = ("--rpc", owner.rpc, "-w", owner.wallet, *run_option)
    monkeypatch.setattr(status, "_OVERDUE", 0)
    away = "is away, 2 steps of training are lost"
    key = str(load_wallet(owner.wallet).pubkey)
    for command in (("set-paused", "pause"), ("kick", "--wallet", key)):
        # The cooldown lasts a second, and a dry run a few milliseconds.
        tries = (invoke(*command, *signed, "--dry-run").err for _ in range(2000))
        assert any(away in text for text in tries), "no warning after the deadline"
    # until the cooldown and all deadlines have ended
    ticked = invoke("tick", *signed, "--ms-interval", 100)
    assert (ticked.code, "which is now finished" in ticked.out) == (0, True)
    assert away in ticked.err
    unknown = (
        "no recorded checkpoint has the last 2 steps, but a member's --checkpoint-dir may have one"
    )
    refused = invoke("reopen", *signed, "--total-steps", 30)
    assert refused.code == 2
    assert f"may start from an older model ({unknown})" in refused.err
    for command in (("reopen", "--total-steps", 30), ("close-run",)):
        outcome = invoke_typing("no\n", *command, *signed)
        assert outcome.code == 1
        assert unknown in outcome.err
        assert "that training is lost" in outcome.err
    rehearsed = invoke("close-run", *signed, "--dry-run")
    assert f"warning: {unknown}" in rehearsed.err


@pytest.mark.parametrize("is_pending", [True, False])
def test_rewind_says_how_to_reach_the_pause(is_pending: bool) -> None:
    fix = _how_to_pause("a", builders.run(RunState.ROUND_TRAIN, pending_pause=is_pending))
    command = "tick --run-id a" if is_pending else "set-paused --run-id a pause"
    assert fix.endswith(f"aftermath-solana {command}")
