"""Tests of an owner's commands on a real local network: create, configure, start, change, pause,
close.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from aftermath import __version__
from aftermath.chain.wallet import create_wallet, load_wallet
from aftermath.events.progress import state_phrase, state_text
from aftermath.owner.change import Change
from aftermath.rules.state import RunState
from cli.cli_runs import CONSOLE, Shell, invoke, invoke_typing
from cli.conftest import new_run_id, new_user


@pytest.fixture
def created(owner: Shell, run_id: str) -> Shell:
    assert (
        owner("create-run", "--run-id", run_id, "--name", "Test", "--description", "A test").code
        == 0
    )
    return owner


@pytest.fixture
def configured(created: Shell, run_id: str, run_dir: Path) -> Shell:
    outcome = created("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml")
    assert outcome.code == 0, outcome.err
    return created


@pytest.fixture(scope="module")
def unchanged(
    rpc: str, run_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Shell, str]:
    """Return the owner and the id of a configured run that no test changes."""
    owner = new_user(rpc, tmp_path_factory.mktemp("unchanged"))
    run_id = new_run_id()
    assert owner("create-run", "--run-id", run_id, "--name", "Test").code == 0
    assert (
        owner("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml").code
        == 0
    )
    return owner, run_id


def state_of(shell: Shell, run_id: str) -> str:
    return str(shell("json-dump-run", "--run-id", run_id).data["run"]["state"])


def test_seed_command_lines_work(owner: Shell, run_id: str, run_dir: Path) -> None:
    """Run the three command lines of Psyche's book with our command's name, including `resume` as a
    bare word.
    """
    where = ("--rpc", owner.rpc, "--ws-rpc", websocket(owner.rpc), "--run-id", run_id)
    signer = ("-w", owner.wallet)
    lines = (
        ("create-run", *where, "--name", "A name", "--description", "A description", *signer),
        ("update-config", *where, "--config-path", run_dir / "config.toml", *signer),
        ("set-paused", *where, "resume", *signer),
    )
    for line in lines:
        outcome = invoke(*line)
        assert outcome.code == 0, outcome.err
        if line[0] == "create-run":
            assert re.search(r"^paid +0\.\d+ SOL *$", outcome.out, re.MULTILINE)
    assert state_of(owner, run_id) == "waiting_for_members"


def websocket(rpc: str) -> str:
    host, _, port = rpc.removeprefix("http://").partition(":")
    return f"ws://{host}:{int(port) + 1}"


def test_create_run_makes_full_accounts_in_few_transactions(
    created: Shell, owner: Shell, run_id: str
) -> None:
    dump = created("json-dump-run", "--run-id", run_id).data
    assert dump["model"]["metadata"]["name"] == "Test"
    assert dump["members"]["seats"] == []
    again = created("create-run", "--run-id", f"{run_id}b").data
    assert len(again["signatures"]) <= 2
    assert again["permissionless"] is True
    assert again["lamports"] > 0


def test_interrupted_creation_is_finished_by_same_command(owner: Shell, run_id: str) -> None:
    import asyncio

    from aftermath.cli.connection import sign_in
    from aftermath.cli.options import SigningOptions

    async def first_step_only() -> None:
        async with sign_in(
            SigningOptions(rpc=owner.rpc, wallet_private_key_path=owner.wallet)
        ) as chain:
            await chain.sender.send(chain.coordinator.creation(run_id)[:1])

    asyncio.run(first_step_only())
    assert owner("create-run", "--run-id", run_id, "--name", "Late").code == 0
    assert owner("json-dump-run", "--run-id", run_id).data["model"]["metadata"]["name"] == "Late"
    again = owner("create-run", "--run-id", run_id).error
    assert "exists already" in again["error"]
    assert again["code"] == "run-exists"


def test_run_id_that_needs_quotes_is_a_warning(owner: Shell, run_id: str) -> None:
    spaced = f"{run_id} a/b"
    assert f"every shell command needs quotes around this run id: '{spaced}'" in (
        owner("create-run", "--run-id", spaced).err
    )
    assert "needs quotes" not in owner("create-run", "--run-id", run_id).err


def test_foreign_client_version_is_a_warning(created: Shell, run_id: str) -> None:
    line = ("update-config", "--run-id", run_id, "--client-version")
    (warning,) = created(*line, "0.0.0-other").data["warnings"]
    assert f"this one is {__version__}" in warning
    assert created(*line, __version__).data["warnings"] == []
    assert created(*line, "").data["warnings"] == []


def test_pause_advice_is_for_the_owner_only(configured: Shell, run_id: str, tmp_path: Path) -> None:
    configured("set-paused", "--run-id", run_id, "resume")
    invoke("show-identity", "--create", "-w", tmp_path / "other.json")
    changed = ("update-config", "--run-id", run_id, "--name", "Mine")
    assert "Pause it, and try again" in configured(*changed).error["fix"]
    refused = Shell(configured.rpc, tmp_path / "other.json")(*changed).error
    assert refused["error"] == f"run {run_id} belongs to another wallet"


def test_update_config_sets_schema_and_figures(unchanged: tuple[Shell, str], run_dir: Path) -> None:
    configured, run_id = unchanged
    dump = configured("json-dump-run", "--run-id", run_id).data
    assert dump["model"]["tier_widths"] == [256, 128, 64]
    assert dump["model"]["schema_hash"] != "00" * 32
    assert dump["model"]["metadata"]["name"] == "Test"
    assert dump["model"]["metadata"]["num_parameters"] > 0
    assert dump["model"]["checkpoint"]["repo"] == str(run_dir / "model")
    assert dump["run"]["config"]["rounds_per_epoch"] == 16


def test_data_unreadable_here_is_a_warning(
    created: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    """The owner need not have the data, so this is only a warning."""
    config = tmp_path / "config.toml"
    text = (run_dir / "config.toml").read_text()
    for place, says in (
        ('Local = "nowhere"', f"no token data at {Path.cwd() / 'nowhere'}"),
        ('Server = "x:1"', "cannot reach the data server x:1"),
    ):
        config.write_text(text.replace(f'Local = "{run_dir / "tokens"}"', place))
        outcome = created("update-config", "--run-id", run_id, "--config-path", config)
        (warning,) = outcome.data["warnings"]
        assert says in warning
        assert f"warning: {warning.splitlines()[0]}" in outcome.err
    outcome = created("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml")
    assert outcome.data["warnings"] == []


def test_update_config_reports_bytes_per_round_and_large_ones(
    created: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    change = ("update-config", "--run-id", run_id, "--config-path")
    data = created(*change, run_dir / "config.toml").data
    # Level 2 has 29 blocks with 10 * 85 + 10 * 88 + 4 * 80 + 5 * 40 bits of index codes. Levels 1
    # and 0 have 6 and 12 blocks of 88 bits. Each block has 8 signs. The codes and the signs of a
    # level end with whole bytes.
    assert data["bytes_per_round"] == [282 + 29 + 66 + 6 + 132 + 12, 282 + 29 + 66 + 6, 282 + 29]
    assert data["warnings"] == []
    config = tmp_path / "config.toml"
    topk = "compression_topk = 8\n"
    config.write_text(
        (run_dir / "config.toml")
        .read_text()
        .replace(topk, topk + "compression_topk_embeddings = 64\n")
    )
    more = created(*change, config)
    # 10 of the blocks keep 64, in 488 bits and as many signs
    assert more.data["bytes_per_round"] == [785 + 99 + 216, 785 + 99 + 72, 785 + 99]
    assert more.data["schema_hash"] != data["schema_hash"]
    dump = created("json-dump-run", "--run-id", run_id).data["model"]
    assert (dump["optimizer"]["compression_topk_embeddings"], dump["schema_hash"]) == (
        64,
        more.data["schema_hash"],
    )


@pytest.mark.parametrize(
    ("ends", "idle"), [(24, "from step 24 on, so the steps up to 48"), (47, ""), (48, "")]
)
def test_learning_rate_zero_before_end_is_a_warning(
    created: Shell, run_id: str, run_dir: Path, tmp_path: Path, ends: int, idle: str
) -> None:
    config = tmp_path / "config.toml"
    text = (run_dir / "config.toml").read_text()
    schedule = "total_steps = 48\nfinal_lr = 1.0e-3"
    assert schedule in text
    config.write_text(text.replace(schedule, f"total_steps = {ends}\nfinal_lr = 0.0"))
    warnings = created("update-config", "--run-id", run_id, "--config-path", config).data[
        "warnings"
    ]
    assert [idle in warning for warning in warnings] == [True] * bool(idle)


def test_optimizer_without_results_is_refused(
    created: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    head = (run_dir / "config.toml").read_text().partition("[model.LLM.optimizer")[0]
    config.write_text(
        head + "[model.LLM.optimizer.AdamW]\nbetas = [0.9, 0.95]\nweight_decay = 0.1\neps = 1e-8\n"
    )
    refused = created("update-config", "--run-id", run_id, "--config-path", config).error
    assert "AdamW is not supported" in refused["error"]
    assert (
        "use [model.LLM.optimizer.Distro], or [model.LLM.optimizer.SparseLoCo] with AdamW as"
        in refused["error"]
    )


def test_run_with_inner_steps_is_configured_and_shown(
    created: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    head = (run_dir / "config.toml").read_text().partition("[model.LLM.optimizer")[0]
    config.write_text(head + "[model.LLM.optimizer.SparseLoCo]\n")
    (warning,) = created("update-config", "--run-id", run_id, "--config-path", config).data[
        "warnings"
    ]
    assert "overlap = 1: SparseLoCo learns less with overlap" in warning
    head = head.replace("[config]\n", "[config]\noverlap = 0\n")
    config.write_text(
        head
        + '[model.LLM.optimizer.SparseLoCo]\ninner_steps = 3\ndivisor = "root"\nvalue_bits = 1\n'
    )
    outcome = created("update-config", "--run-id", run_id, "--config-path", config)
    # 29, 6 and 12 blocks on levels 2, 1 and 0, of 6 bits for the exponent and 32 for signs. Index
    # codes take 6984 bits on level 2 (64 for a block of 64) and 288 for every other block.
    assert outcome.data["bytes_per_round"] == [
        873 + 216 + 432 + 138 + 29 + 57,
        873 + 216 + 138 + 29,
        873 + 138,
    ]
    dump = created("json-dump-run", "--run-id", run_id).data["model"]
    assert dump["schema_hash"] == outcome.data["schema_hash"]
    assert dump["optimizer"] == {
        "kind": "sparseloco",
        "clip_grad_norm": 1.0,
        "weight_decay": 0.0,
        "compression_decay": 0.95,
        "compression_chunk": 64,
        "compression_topk": 32,
        "compression_topk_embeddings": 32,
        "value_bits": 1,
        "inner_steps": 3,
        "inner_optimizer": "adamw",
        "divisor": "root",
        "outer_lr": 1.0,
        "outer_momentum": 0.0,
        "orthogonal_lr": 0.0,
    }
    assert outcome.data["warnings"] == []
    config.write_text(head + "[model.LLM.optimizer.SparseLoCo]\ninner_steps = 5\n")
    (warning,) = created("update-config", "--run-id", run_id, "--config-path", config).data[
        "warnings"
    ]
    assert "with 3 members and global_batch_size_start = 12 a share has only 4" in warning
    config.write_text(head + "[model.LLM.optimizer.SparseLoCo]\nvalue_bits = 3\n")
    refused = created("update-config", "--run-id", run_id, "--config-path", config).error["error"]
    assert refused.endswith("value_bits = 3: SparseLoCo needs value_bits 1 or 2.")
    config.write_text(head + "[model.LLM.optimizer.SparseLoCo]\nweight_decay = 251.0\n")
    refused = created("update-config", "--run-id", run_id, "--config-path", config).error["error"]
    assert "weight_decay = 251.0: it would flip" in refused


def test_name_and_description_change_alone(configured: Shell, run_id: str) -> None:
    before = configured("json-dump-run", "--run-id", run_id).data["model"]
    configured("update-config", "--run-id", run_id, "--name", "Other", "--client-version", "0.1.0")
    after = configured("json-dump-run", "--run-id", run_id).data["model"]
    assert after["metadata"] == before["metadata"] | {"name": "Other"}
    assert after["client_version"] == "0.1.0"
    assert after["schema_hash"] == before["schema_hash"]


def test_restart_from_step_skips_earlier_data(configured: Shell, run_id: str) -> None:
    configured("set-paused", "--run-id", run_id, "--resume")
    configured("set-paused", "--run-id", run_id, "pause")
    assert configured("update-config", "--run-id", run_id, "--restart-from-step", 11).code == 0
    run = configured("json-dump-run", "--run-id", run_id).data["run"]
    assert (run["step"], run["data_index"]) == (11, 10 * 12)
    assert step_shown(configured, run_id) == 10  # step 11 comes next


def test_list_runs_shows_step_0_before_training(configured: Shell, run_id: str) -> None:
    assert step_shown(configured, run_id) == 0
    configured("set-paused", "--run-id", run_id, "--resume")
    assert step_shown(configured, run_id) == 0


def step_shown(shell: Shell, run_id: str) -> int:
    """Return the step that `list-runs` shows."""
    [step] = [row["step"] for row in shell("list-runs").data if row["run_id"] == run_id]
    return int(step)


def test_switch_to_hub_uses_model_of_checkpoint(configured: Shell, run_id: str) -> None:
    assert configured("update-config", "--run-id", run_id, "--switch-to-hub").code == 0
    assert (
        configured("json-dump-run", "--run-id", run_id).data["run"]["model_source"] == "checkpoint"
    )


def test_restart_counts_batch_warm_up() -> None:
    from dataclasses import replace

    from aftermath.rules.assignment import batch_size
    from aftermath.rules.run import Config

    rules = Config(30, 30, 1, 30, 1, 0, 4096, 0, 20, 100, 64, 1, 1, 1, 1, 4, 12, 0, 10)
    data_index = sum_of_batches = 0
    for _ in range(20):
        sum_of_batches += batch_size(rules, data_index)
        data_index = sum_of_batches
    run = _Run(replace(rules))
    progress = Change({}, None, None, 21, False, None).progress(run)  # type: ignore[arg-type]
    assert progress == {"epoch": 0, "step": 21, "data_index": data_index}
    # Go back to steps with smaller batches: no data is skipped.
    back = Change({}, None, None, 18, False, None)
    assert back.progress(_Run(rules, step=21, data_index=9))["data_index"] == 9  # type: ignore[arg-type]


class _Run:
    epoch = 0

    def __init__(self, config: object, step: int = 1, data_index: int = 0) -> None:
        self.config = config
        self.step = step
        self.data_index = data_index


def test_set_paused_pauses_and_resumes_run(configured: Shell, run_id: str) -> None:
    resumed = configured("set-paused", "--run-id", run_id, "resume").data
    assert resumed["state"] == "waiting_for_members"
    ticked = invoke(
        "tick", "--rpc", configured.rpc, "-w", configured.wallet, "--run-id", run_id, "--count", 1
    ).out
    assert f"run {run_id}, which is now waiting for members" in ticked
    refused = configured("update-config", "--run-id", run_id, "--name", "No").error
    assert "set-paused" in refused["fix"]
    assert (
        refused["code"]
        == configured("close-run", "--run-id", run_id, "--yes").error["code"]
        == "not-halted"
    )
    unsaid = configured("set-paused", "--run-id", run_id).mistake
    assert unsaid["error"] == "set-paused needs the word pause or resume"
    assert f"set-paused --run-id {run_id} pause" in unsaid["fix"]
    assert configured("set-paused", "--run-id", run_id, "pause").data["state"] == "paused"
    again = configured("set-paused", "--run-id", run_id, "pause").error
    assert "cannot be paused" in again["error"]
    assert again["fix"].endswith(
        f"aftermath-solana show-run --run-id {run_id} --rpc {configured.rpc}"
    )


def test_program_refusals_name_fixing_command(
    created: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    assert "update-config" in created("set-paused", "--run-id", run_id, "resume").error["fix"]
    stranger = tmp_path / "stranger.json"
    create_wallet(stranger)
    fix = Shell(created.rpc, stranger)("update-config", "--run-id", run_id, "--name", "Mine").error[
        "fix"
    ]
    assert fix == "Sign with the owner's key: -w FILE"
    assert (
        created("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml").code
        == 0
    )
    assert created("set-paused", "--run-id", run_id, "resume").code == 0
    running = created("close-run", "--run-id", run_id, "--yes").error
    assert running["error"] == f"run {run_id} is not paused"
    for command in (f"set-paused --run-id {run_id} pause", f"tick --run-id {run_id}"):
        assert command in running["fix"]


def test_future_epoch_rates_are_recorded(configured: Shell, run_id: str) -> None:
    rates = ("--earning-rate-total-shared", 1000, "--slashing-rate-per-client", 10)
    assert (
        configured("set-future-epoch-rates", "--run-id", run_id, *rates).data["future_earning_rate"]
        == 1000
    )


@pytest.mark.parametrize("limit", [(), ("--count", 3)])
def test_tick_without_running_deadline_ends_and_says_why(
    configured: Shell, run_id: str, limit: tuple[object, ...]
) -> None:
    options = (
        "--rpc",
        configured.rpc,
        "-w",
        configured.wallet,
        "--run-id",
        run_id,
        "--ms-interval",
        10,
        *limit,
    )
    new = invoke("tick", *options)
    assert new.code == 0
    assert new.err.count(f"no tick can change run {run_id} now: new (epoch 0)") == 1
    assert "; waits for set-paused resume by its owner\n" in new.err
    assert new.out.startswith(f"no tick changed run {run_id}, which is now new")
    stopped = "; stopped after 1 of 3 ticks" in new.out
    assert stopped is bool(limit)
    assert configured("set-paused", "--run-id", run_id, "resume").code == 0
    waits = invoke("tick", *options)
    assert (
        waits.err.count(f"no tick can change run {run_id} now: waiting for members (epoch 0)") == 1
    )
    assert "members: 0 of 3\n" in waits.err
    assert waits.out.startswith(f"no tick changed run {run_id}, which is now waiting")


def test_list_runs_shows_run(unchanged: tuple[Shell, str]) -> None:
    configured, run_id = unchanged
    (row,) = [row for row in configured("list-runs").data if row["run_id"] == run_id]
    assert row["tiers"] == 3
    assert row["state"] == "uninitialized"  # the JSON for scripts; people see words
    listed = invoke("list-runs", "--rpc", configured.rpc).out
    assert [line.split()[2:4] for line in listed.splitlines() if run_id in line] == [["new", "0"]]
    output = invoke(
        "can-join", "--rpc", configured.rpc, "--run-id", run_id, "--address", configured.wallet
    ).out
    assert "not yet: the run is new, and waits for set-paused resume by its owner" in output


def test_run_description_equals_member_view(configured: Shell, run_id: str) -> None:
    outcome = configured("create-run", "--run-id", f"{run_id}b", "--name", "Two words")
    assert outcome.data["state"] == "uninitialized"
    result = invoke(
        "create-run", "--rpc", configured.rpc, "-w", configured.wallet, "--run-id", f"{run_id}c"
    ).out
    assert "uninitialized" not in result
    configured("set-paused", "--run-id", run_id, "resume")
    [line] = [
        line
        for line in invoke("list-runs", "--rpc", configured.rpc).out.splitlines()
        if f"{run_id} " in line
    ]
    assert "waiting for members" in line


@pytest.mark.parametrize("state", RunState, ids=lambda state: state.name)
def test_run_states_are_shown_in_plain_english(state: RunState) -> None:
    words = state_phrase(state)
    assert words.removeprefix("in ") == state_text(state.name)
    assert "_" not in words
    assert words.islower()
    assert not {"uninitialized", "round", "warmup"} & set(words.split())


def test_kick_by_owner_or_join_authority_removes_and_bars(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    grantor = tmp_path / "grantor.json"
    stranger = tmp_path / "stranger.json"
    create_wallet(grantor)
    create_wallet(stranger)
    kick = ("kick", "--run-id", run_id, "--wallet", stranger)
    assert owner("create-run", "--run-id", run_id, "--join-authority", grantor).code == 0
    assert (
        owner("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml").code
        == 0
    )
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    refused = owner(*kick).error
    key = str(load_wallet(stranger).pubkey)
    assert refused["code"] == "not-a-member"
    assert refused["error"] == f"wallet {key} ({stranger}) is not a member of run {run_id}"
    assert f"kick --run-id {run_id} --wallet {stranger} --bar" in refused["fix"]
    assert "show-run" in refused["fix"]
    assert "train" not in refused["fix"]
    assert "only the owner of run" in Shell(owner.rpc, stranger)(*kick, "--bar").error["error"]
    data = Shell(owner.rpc, grantor)(*kick, "--bar").data
    assert (data["seat"], data["barred"]) == (None, True)
    assert owner("set-paused", "--run-id", run_id, "pause").code == 0
    outcome = invoke("can-join", "--rpc", owner.rpc, "--run-id", run_id, "--address", stranger)
    assert "this wallet is barred from run" in outcome.out
    assert "You can start train now" not in outcome.out
    lift = f"(kick without --bar): aftermath-solana kick --run-id {run_id} --wallet {key} --rpc"
    assert lift in outcome.out
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    assert owner(*kick).data["barred"] is False
    outcome = invoke("can-join", "--rpc", owner.rpc, "--run-id", run_id, "--address", stranger)
    assert "barred" not in outcome.out


def test_close_run_returns_rent(configured: Shell, run_id: str) -> None:
    closed = configured("close-run", "--run-id", run_id, "--yes").data
    assert closed["lamports_returned"] > 500_000_000
    for command in (("json-dump-run",), ("close-run", "--yes"), ("set-paused", "pause")):
        assert run_id in configured(*command, "--run-id", run_id).error["error"]


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_close_run_without_a_terminal_needs_yes(
    unchanged: tuple[Shell, str], form: tuple[str, ...]
) -> None:
    configured, run_id = unchanged
    line = ("close-run", "--rpc", configured.rpc, "-w", configured.wallet, "--run-id", run_id)
    refused = invoke(*line, *form)
    assert refused.code == 2
    assert f"close-run ends run {run_id} for good" in refused.err
    assert "Add --yes" in refused.err
    assert configured("show-run", "--run-id", run_id).code == 0


def close_line(shell: Shell, run_id: str) -> tuple[str | Path, ...]:
    return ("close-run", "--rpc", shell.rpc, "-w", shell.wallet, "--run-id", run_id)


@pytest.mark.slow
def test_close_run_interrupted_at_question_exits_130(unchanged: tuple[Shell, str]) -> None:
    configured, run_id = unchanged
    mine, theirs = pty.openpty()
    line = [CONSOLE, *close_line(configured, run_id)]
    with subprocess.Popen(
        line, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        output = b""
        while b"[y/N]" not in output:
            output += os.read(mine, 1000)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while more := os.read(mine, 1000):
                output += more
        os.close(mine)
        assert process.wait(60) == 130, output
    assert configured("show-run", "--run-id", run_id).code == 0


def test_close_run_on_terminal_asks(configured: Shell, run_id: str) -> None:
    """An empty line, a no and the end of the input do not close the run. A yes does."""
    line = close_line(configured, run_id)
    for typed in ("\n", "no\n", ""):
        outcome = invoke_typing(typed, *line)
        assert outcome.code == 1
        assert (
            f"close run {run_id} for good, with its 0 steps and the points of 0 members"
            in outcome.err
        )
        assert "0.629852" in outcome.err  # SOL of rent
        assert f"in {load_wallet(configured.wallet).pubkey}? [y/N] " in outcome.err
        assert f"run {run_id} is unchanged" in outcome.out
    assert configured("show-run", "--run-id", run_id).code == 0
    closed = invoke_typing("y\n", *line)
    assert closed.code == 0, closed.err
    assert f"run {run_id} is closed" in closed.out
    error = configured("show-run", "--run-id", run_id).error
    assert "there is no run" in error["error"]
    assert error["code"] == "no-such-run"
    assert "list-runs" in error["fix"]


def test_closed_run_is_unknown_to_every_command(
    configured: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    assert configured("close-run", "--run-id", run_id, "--yes").code == 0
    wallet = str(load_wallet(configured.wallet).pubkey)
    for command, *arguments in (
        ("show-run",),
        ("json-dump-run",),
        ("json-dump-user", "--address", wallet),
        ("can-join", "--address", wallet),
        ("predownload",),
        ("tick", "--count", "1"),
        ("set-paused", "pause"),
        ("update-config", "--config-path", run_dir / "config.toml"),
        ("checkpoint", "--path", tmp_path),
        ("rewind",),
        ("reopen", "--total-steps", "9"),
        ("kick", "--wallet", wallet),
        ("set-future-epoch-rates", "--earning-rate-total-shared", "1"),
        ("close-run", "--yes"),
    ):
        error = configured(command, "--run-id", run_id, *arguments).error
        assert error["code"] == "no-such-run", (command, error)
        assert "list-runs" in error["fix"], command


def test_close_run_refused_without_question(configured: Shell, run_id: str) -> None:
    configured("set-paused", "--run-id", run_id, "resume")
    refused = invoke_typing("y\n", *close_line(configured, run_id))
    assert refused.code == 1
    assert "is not paused" in refused.err
    assert "[y/N]" not in refused.err


def test_predownload_loads_model_and_data(unchanged: tuple[Shell, str], run_dir: Path) -> None:
    configured, run_id = unchanged
    data = configured("predownload", "--run-id", run_id, "--matformer-tier", 2).data
    assert data["model"] == str(run_dir / "model")
    assert data["sequences"] > 100


def test_checkpoint_needs_an_attested_model(unchanged: tuple[Shell, str], run_dir: Path) -> None:
    configured, run_id = unchanged
    refused = configured("checkpoint", "--run-id", run_id, "--path", run_dir / "model").error
    assert "not attested a model yet" in refused["error"]


def test_json_dump_user_of_nonmember_is_refused(unchanged: tuple[Shell, str]) -> None:
    configured, run_id = unchanged
    user = ("json-dump-user", "--run-id", run_id, "--address", configured.wallet)
    refused = configured(*user).error
    assert "is not a member" in refused["error"]
    assert invoke(*user, "--rpc", configured.rpc).error == refused
