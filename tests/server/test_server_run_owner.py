"""Tests of how a server creates its run from the state file, and of changed files later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aftermath.cli.main import app
from aftermath.config.spec import spec_hash
from aftermath.rules.model import Model
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from aftermath.server.option_files import ServerError
from aftermath.server.run_owner import ensure_run, owner_cluster, owner_wallet
from aftermath.server.screen import run_status
from aftermath.server.server import ServerConfig, open_server
from aftermath.server.state_file import StateFile, load_state_file
from config.config_cases import SEED

SIZES = [
    "--hidden",
    "16",
    "--layers",
    "1",
    "--heads",
    "2",
    "--kv-heads",
    "2",
    "--intermediate",
    "16",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a state file whose model exists."""
    model = tmp_path_factory.mktemp("files") / "model"
    result = CliRunner().invoke(app, ["model", "init", "--out", str(model), *SIZES])
    assert result.exit_code == 0, result.output
    return f"""
run_id = "demo"
[config]
warmup_time = 30
cooldown_time = 30
rounds_per_epoch = 4
max_round_train_time = 30
round_witness_time = 1
min_clients = 1
init_min_clients = 1
global_batch_size_start = 4
global_batch_size_end = 4
total_steps = 100
[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 32
checkpoint = {{ Local = {json.dumps(str(model))} }}
data_location = "Dummy"
[model.LLM.lr_schedule.Constant]
base_lr = 1.0e-3
[model.LLM.optimizer.Distro]
clip_grad_norm = 1.0
compression_decay = 0.999
compression_chunk = 16
compression_topk = 4
quantize_1bit = true
"""


def write_state(folder: Path, text: str) -> StateFile:
    path = folder / "state.toml"
    path.write_text(text)
    return load_state_file(path, None)[1]


def config_of(state: Path, run_id: str = "demo") -> ServerConfig:
    return ServerConfig(
        run_id=run_id,
        host="127.0.0.1",
        port=0,
        state=state,
        tls=None,
        allowed=None,
        withdraw=True,
    )


async def started(state: Path, file: StateFile) -> tuple[list[str], Run, Model]:
    """Start a server on a state directory. Return its warnings, the run and the model."""
    wallet = owner_wallet(state)
    async with (
        open_server(config_of(state)) as server,
        owner_cluster(server.node, wallet) as chain,
    ):
        warnings = await ensure_run(chain, "demo", file)
        run, model, _ = await chain.coordinator.snapshot("demo")
    return warnings, run, model


async def test_only_first_server_start_creates_run(tmp_path: Path, text: str) -> None:
    file = write_state(tmp_path, text)
    _, run, model = await started(tmp_path / "kept", file)
    assert run.state is RunState.WAITING_FOR_MEMBERS
    assert (run.config.total_steps, run.config.warmup_time) == (100, 30)
    assert any(model.schema_hash)
    assert (tmp_path / "kept" / "owner.json").stat().st_mode & 0o077 == 0
    warnings, again, _ = await started(tmp_path / "kept", file)
    assert warnings == []
    assert again == run


@pytest.mark.parametrize(
    ("old", "new", "key", "values"),
    [
        ("total_steps = 100", "total_steps = 200", "run.config.total_steps", ("100", "200")),
        (
            "compression_topk = 4",
            "compression_topk = 2",
            "model.optimizer.compression_topk",
            ("4", "2"),
        ),
        ("max_seq_len = 32", "max_seq_len = 64", "model.max_seq_len", ("32", "64")),
    ],
)
async def test_changed_key_of_started_run_is_named_with_both_values(
    tmp_path: Path, text: str, old: str, new: str, key: str, values: tuple[str, str]
) -> None:
    await started(tmp_path / "kept", write_state(tmp_path, text))
    warnings, again, _ = await started(
        tmp_path / "kept", write_state(tmp_path, text.replace(old, new))
    )
    path = tmp_path / "state.toml"
    sentence = f"{key}: the run keeps {values[0]}; {values[1]} in {path} applies to a new run only"
    assert sentence in warnings
    assert all(key.split(".")[-1] in other for other in warnings), "no other key"
    assert again.config.total_steps == 100


async def test_other_run_id_on_kept_state_is_refused(tmp_path: Path, text: str) -> None:
    await started(tmp_path / "kept", write_state(tmp_path, text))
    async with (
        open_server(config_of(tmp_path / "kept", "dmeo")) as server,
        owner_cluster(server.node, owner_wallet(tmp_path / "kept")) as chain,
    ):
        with pytest.raises(ServerError, match="has the run 'demo', not 'dmeo'") as refused:
            await ensure_run(chain, "dmeo", write_state(tmp_path, text.replace('"demo"', '"dmeo"')))
        assert "--run-id demo" in refused.value.fix
        assert [run.run_id for run, _, _ in await chain.coordinator.list_runs()] == ["demo"]


async def test_run_with_later_spec_is_shown_and_repaired_when_paused(
    tmp_path: Path, text: str
) -> None:
    file = write_state(tmp_path, text)
    await started(tmp_path / "kept", file)
    later = file.llm.spec.encode().replace(b"HfLlama", b"HfMamba")
    model = file.llm.to_chain() | {"spec": {"len": len(later), "hash": spec_hash(later)}}
    config = ServerConfig("demo", "127.0.0.1", 0, tmp_path / "kept", None, None, True)
    wallet = owner_wallet(tmp_path / "kept")
    async with open_server(config) as server, owner_cluster(server.node, wallet) as chain:
        owner = chain.coordinator
        await owner.set_paused("demo", True)
        await owner.sender.send_packed(
            [*owner.ix.write_spec("demo", later), owner.ix.update("demo", model=model)]
        )
        await owner.set_paused("demo", False)
        assert "HfMamba" in run_status(server).spec_error
        (warning,) = await ensure_run(chain, "demo", file)
        assert "HfMamba" in warning
        await owner.set_paused("demo", True)
        await ensure_run(chain, "demo", file)
        assert run_status(server).state is RunState.WAITING_FOR_MEMBERS
        assert not run_status(server).spec_error


async def test_server_restarts_without_initial_files_of_run(tmp_path: Path, text: str) -> None:
    await started(tmp_path / "kept", write_state(tmp_path, text))
    warnings, run, _ = await started(
        tmp_path / "kept", write_state(tmp_path, text.replace("/model", "/gone"))
    )
    assert [sentence.partition(":")[0] for sentence in warnings] == ["model.checkpoint.repo"]
    assert run.state is RunState.WAITING_FOR_MEMBERS


async def test_run_with_lost_owner_key_is_reported(tmp_path: Path, text: str) -> None:
    await started(tmp_path / "kept", write_state(tmp_path, text))
    key = (tmp_path / "kept" / "owner.json").rename(tmp_path / "copy.json")
    with pytest.raises(ServerError, match="has a run, but not its owner's key"):
        owner_wallet(tmp_path / "kept")
    assert not (tmp_path / "kept" / "owner.json").exists()
    key.rename(tmp_path / "kept" / "owner.json")
    assert (await started(tmp_path / "kept", write_state(tmp_path, text)))[0] == []


async def test_seed_config_is_valid_state_file(tmp_path: Path) -> None:
    assert write_state(tmp_path, 'run_id = "demo"\n' + SEED).config.rounds_per_epoch > 0
