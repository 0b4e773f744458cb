"""Tests that `init` writes a valid, commented config and replaces no other file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from aftermath.cli.main import SOLANA, load
from aftermath.cli.new_config import RECIPE, apply_options, begin, scale_schedule
from aftermath.config.chain_values import schedule_of
from aftermath.config.document import RunConfig, load_config, parse_as
from aftermath.config.keys import find
from aftermath.config.recipe_file import recipe_of
from aftermath.data.bytelevel import byte_tokenizer
from aftermath.model.presets import PRESETS
from aftermath.owner.warnings import warning_about_schedule
from aftermath.rules.optimizers import WITH_RECIPE, optimizers
from aftermath.rules.schedules import last_change
from aftermath.testnet.files import COMMANDS, SHIPPED, configs, flags
from cli.cli_runs import Shell, invoke, invoke_typing
from config.config_cases import SEED, without

NAMES = sorted(str(path.relative_to(SHIPPED)) for path in configs())


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def written(*options: str | Path | int) -> RunConfig:
    """Return the config that `init` writes with these options, after `config validate` accepted
    it.
    """
    init_data = invoke("init", "--out", "run.toml", *options, "--json").data
    assert init_data["file"] == "run.toml"
    validation = invoke("config", "validate", "run.toml", "--json").data
    assert (validation["ok"], validation["mistakes"]) == (True, [])
    assert [one for one in init_data["warnings"] if one not in validation["warnings"]] == []
    return load_config(Path("run.toml"))


def commented(path: Path) -> None:
    """Check that each key has its class's description above it."""
    table: tuple[str, ...] = ()
    lines = path.read_text().splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("["):
            table = tuple(line.strip("[]").split("."))
        elif line and not line.startswith("#"):
            (key,) = find(".".join((*table, line.partition(" =")[0])))
            assert before.startswith("# ")
            assert key.text.startswith(before[2:].removesuffix(f" ({key.unit})")), line


@pytest.mark.parametrize("recipe", NAMES)
def test_init_recipe_is_copied_with_comments(recipe: str) -> None:
    config = written("--recipe", recipe)
    shipped = load_config(SHIPPED / recipe)
    commented(Path("run.toml"))
    assert config.config == shipped.config
    assert config.llm.optimizer == shipped.llm.optimizer
    assert config.llm.lr_schedule == shipped.llm.lr_schedule
    assert recipe_of(Path("run.toml")).keys() == recipe_of(SHIPPED / recipe).keys()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("optimizer", WITH_RECIPE)
def test_init_every_preset_with_every_optimizer_is_valid(preset: str, optimizer: str) -> None:
    config = written("--preset", preset, "--optimizer", optimizer, "--tiers", 2, "--members", 5)
    commented(Path("run.toml"))
    taken = load_config(SHIPPED / optimizers()[optimizer].RECIPE)
    assert config.llm.optimizer == taken.llm.optimizer
    assert config.config.overlap == taken.config.overlap
    assert config.llm.matformer.tiers == 2
    assert (config.config.init_min_clients, config.config.min_clients) == (5, 4)
    recipe = recipe_of(Path("run.toml"))
    assert recipe["model"] == {"preset": preset, "tiers": 2}
    for name, options in recipe.items():
        words, option = COMMANDS[name]
        load(words).make_context(words, [option, "somewhere", *flags(options)])


@pytest.mark.parametrize("recipe", NAMES)
@pytest.mark.parametrize("steps", [200, 1000, 54321])
def test_init_schedule_length_equals_run_length(recipe: str, steps: int) -> None:
    config = written("--recipe", recipe, "--steps", steps)
    assert config.config.total_steps == steps
    shipped = load_config(SHIPPED / recipe)
    beyond = last_change(schedule_of(shipped.llm.lr_schedule)) - shipped.config.total_steps
    assert last_change(schedule_of(config.llm.lr_schedule)) == steps + beyond


def test_init_short_run_schedule_has_no_warning() -> None:
    config = written("--preset", "llama-1m", "--steps", 6)
    assert warning_about_schedule(schedule_of(config.llm.lr_schedule), 6) == ""


@pytest.mark.parametrize("kind", ["Constant", "Linear", "Cosine"])
def test_init_lengthens_schedules_of_every_kind(kind: str) -> None:
    total = "" if kind == "Constant" else "\ntotal_steps = 100"
    table = f"[model.LLM.lr_schedule.{kind}]\nbase_lr = 1e-3\nwarmup_steps = 10{total}"
    rates = parse_as(without("model.LLM.lr_schedule.Cosine", table), "c", RunConfig).llm.lr_schedule
    longer = scale_schedule(rates, 100, 300).chosen.model_dump()
    assert longer["warmup_steps"] == 30
    assert longer.get("total_steps", 300) == 300
    assert scale_schedule(rates, 100, 100) == rates


def test_init_batch_has_sequence_per_member_and_inner_step() -> None:
    config = written("--members", 100)
    assert config.config.global_batch_size_start == config.config.global_batch_size_end == 400
    assert invoke("init", "--out", "x.toml", "--members", 256, "--recipe", "demo").code == 0


def test_init_with_own_data_does_not_create_data(run_dir: Path) -> None:
    config = written("--preset", "llama-1m", "--data-path", run_dir / "tokens")
    assert config.llm.data_location.Local is not None
    assert config.llm.data_location.Local.path == str(run_dir / "tokens")
    assert recipe_of(Path("run.toml")).keys() == {"model"}


@pytest.mark.parametrize("preset", ["llama-1m", "llama-20m"])
def test_init_with_data_path_uses_tokenizer_of_data(preset: str, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([f"<{number}>" for number in range(60)])
    tokenizer.save(str(tmp_path / "t.json"))
    (tmp_path / "a.txt").write_text("some text of one's own " * 200)
    tokenize = (
        "data",
        "tokenize",
        "--input",
        "a.txt",
        "--tokenizer",
        "t.json",
        "--output",
        "tokens",
    )
    assert invoke(*tokenize).code == 0
    written("--preset", preset, "--data-path", "tokens")
    assert recipe_of(Path("run.toml"))["model"]["tokenizer"] == str(
        Path("tokens", "tokenizer.json")
    )
    if preset == "llama-1m":  # the model's vocabulary of 257 grows
        assert (
            invoke(
                "model", "init", *flags(recipe_of(Path("run.toml"))["model"]), "--out", "model"
            ).code
            == 0
        )
        assert (
            Path("model/tokenizer.json").read_bytes() == Path("tokens/tokenizer.json").read_bytes()
        )
        document = json.loads(Path("model/config.json").read_text())
        assert (document["vocab_size"], document["eos_token_id"]) == (317, 256)


@pytest.mark.usefixtures("in_process_builds")
def test_update_config_accepts_init_output(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    config = written(
        "--preset", "llama-1m", "--data-path", run_dir / "tokens", "--members", 2, "--steps", 30
    )
    outcome = invoke("run-files", "run.toml", "--json")
    assert config.llm.checkpoint.Local is not None
    assert outcome.data == {"made": [config.llm.checkpoint.Local.path]}
    again = invoke("run-files", "run.toml")
    assert (again.code, again.out) == (0, "nothing to make: the model and the tokens exist\n")
    assert (tmp_path / config.llm.checkpoint.Local.path / "config.json").is_file()
    assert invoke("config", "validate", "run.toml", "--json").data["not_looked_at"] == []
    assert owner("create-run", "--run-id", run_id).code == 0
    data = owner("update-config", "--run-id", run_id, "--config-path", "run.toml").data
    assert (data["total_steps"], data["tiers"], data["warnings"]) == (30, [512, 256, 128], [])


def test_run_files_without_config_names_existing_ones() -> None:
    wrong = invoke("run-files", "none.toml")
    assert wrong.code == 2
    assert "there is no config at none.toml" in wrong.err
    assert "demo/config.toml" in wrong.err


def test_run_files_without_recipe_prints_fix() -> None:
    written("--preset", "llama-1m")
    Path("run.files.toml").unlink()
    wrong = invoke("run-files", "run.toml")
    assert wrong.code == 2
    assert "fix: Make it: aftermath-solana model init --out runs/run/" in wrong.err


@pytest.mark.usefixtures("in_process_builds")
def test_init_next_steps_lead_to_training_run(
    rpc: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run each printed line as it is, except the first one, which starts the network."""
    monkeypatch.setenv("RPC", rpc)
    options = ("--preset", "llama-1m", "--data-path", run_dir / "tokens", "--steps", 20)
    output = invoke("init", "--out", "my first.toml", *options).out
    steps = output.partition("next steps, the first in a terminal of its own:\n")[2].splitlines()
    lines = [
        line.strip() for line in steps[: steps.index("or everything at once on this machine:")]
    ]
    assert lines[0] == "aftermath-solana localnet"
    assert [line.split()[1] for line in lines[2:]] == [
        "show-identity",
        "create-run",
        "update-config",
        "set-paused",
        "train",
    ]
    assert shlex.split(lines[1]) == ["aftermath-solana", "run-files", "my first.toml"]
    assert invoke("run-files", "my first.toml").code == 0
    for line in lines[2:-1]:
        program, *words = shlex.split(line)
        assert program == "aftermath-solana"
        outcome = invoke(*words)
        assert outcome.code == 0, (line, outcome.err)
    data = invoke("show-run", "--run-id", "my first", "--json").data
    assert data["state"] == "waiting_for_members"
    words = shlex.split(lines[-1])[1:]
    assert SOLANA.load("train").make_context("train", words[1:]).params["run_id"] == "my first"


def test_init_with_existing_wallet_does_not_create_one(tmp_path: Path) -> None:
    Path("owner.json").write_text("mine")
    outcome = invoke("init", "--out", "run.toml", "--members", 3)
    assert "show-identity" not in outcome.out
    assert "run by 3 members, each with a wallet of its own" in outcome.out
    for name in ("x" * 40, "a\tb"):  # not run ids
        assert "--run-id RUN" in invoke("init", "--out", f"{name}.toml").out


def test_quiet_init_prints_no_next_steps() -> None:
    assert invoke("init", "--out", "run.toml", "-q").out.startswith("wrote run.toml")
    assert "next steps" not in invoke("init", "--out", "other.toml", "-q").out


def test_init_names_server_command() -> None:
    output = invoke("init", "--out", "mine.toml").out
    server = "  aftermath-centralized server run --run-id mine --state mine.toml"
    assert f"{server} -s 20000 --save-state-dir runs/server\n" in output


def test_init_warns_only_about_chosen_values() -> None:
    """A recipe that sends all numbers in each step does so on purpose, so `init` does not warn
    about it. `config validate` does.
    """
    Path("recipe.toml").write_text(
        re.sub("inner_steps = 4", "inner_steps = 1", (SHIPPED / RECIPE).read_text())
    )
    # describes how to make its model
    shutil.copy((SHIPPED / RECIPE).with_suffix(".files.toml"), "recipe.files.toml")
    outcome = invoke("init", "--out", "run.toml", "--recipe", "recipe.toml")
    assert "warning" not in outcome.err
    warned = invoke("config", "validate", "run.toml", "--json").data["warnings"]
    assert [one["code"] for one in warned] == ["large-results"]
    other = invoke("init", "--out", "y.toml", "--recipe", "recipe.toml", "--preset", "llama-20m")
    assert "warning: a tier-0 member" in other.err
    invoke("init", "--out", "light.toml")
    assert invoke("config", "validate", "light.toml", "--json").data["warnings"] == []


def test_init_with_existing_output_is_refused() -> None:
    for name in ("run.toml", "run.files.toml"):
        Path(name).write_text("mine")
        result = invoke("init", "--out", "run.toml", "--json").error
        assert result["error"] == f"{name} exists already"
        assert Path(name).read_text() == "mine"
        assert invoke("init", "--out", "run.toml", "--force", "--json").code == 0
        assert "mine" not in Path(name).read_text()
        Path("run.toml").unlink()
        Path("run.files.toml").unlink()


def test_init_to_standard_output_uses_default_file_paths() -> None:
    outcome = invoke("init", "--out", "-")
    assert outcome.code == 0
    assert "runs/run/" in outcome.out
    assert "-.files.toml" not in outcome.out
    assert "runs/-" not in outcome.out
    assert "init --out FILE also writes the recipe file" in outcome.out
    refused = invoke("init", "--out", "-", "--json")
    assert (refused.code, refused.out) == (2, "")
    assert not list(Path().iterdir())


def test_init_replaces_files_toml_of_another_config(run_dir: Path) -> None:
    written()
    assert Path("run.files.toml").is_file()
    written("--recipe", "consilience-match-llama2-20m-fineweb-pretrain-dev", "--force")
    assert not Path("run.files.toml").exists()


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--preset", "bogus"], 2, "there is no preset bogus"),
        (["--recipe", "nowhere"], 2, "there is no config at nowhere"),
        (["--tiers", "9"], 2, "--tiers must be a whole number from 1 to 8"),
        (["--members", "0"], 2, "--members must be"),
        (["--optimizer", "adamw"], 2, "--optimizer must be one of distro, sparseloco"),
        (["--preset", "llama-20m", "--tiers", "8"], 1, "not divisible"),
        (["--data-path", "x" * 193], 1, "192"),
        (["--data-path", ""], 2, "the path for --data-path is empty"),
        (["--recipe", "mine.toml"], 1, "nowhere"),
    ],
)
def test_init_with_invalid_recipe_writes_nothing(options: list[str], code: int, says: str) -> None:
    Path("mine.toml").write_text(
        without("model.LLM.checkpoint.Hub", '[model.LLM.checkpoint]\nLocal = "nowhere"')
    )
    refused = invoke("init", "--out", "run.toml", *options, "--json")
    assert refused.code == code
    assert says in refused.error_json["error"]
    assert not Path("run.toml").exists()
    assert not Path("run.files.toml").exists()


def test_init_into_invalid_directory_is_refused() -> None:
    Path("file").write_text("")
    assert invoke("init", "--out", "file/run.toml", "--json").error["code"] == "file"
    assert invoke("init", "--out", "new/run.toml", "--json").code == 0


def test_init_recipe_may_be_own_config() -> None:
    Path("mine.toml").write_text(SEED)
    config = written("--recipe", "mine.toml", "--steps", 5000)
    assert config.llm.checkpoint == parse_as(SEED, "c", RunConfig).llm.checkpoint
    assert config.config.total_steps == 5000


def test_init_asks_for_missing_options() -> None:
    answers = ["?", "demo", "huge", "?", "llama-1m", "12", "2", "distro", "", "400", ""]
    outcome = invoke_typing("\n".join(answers) + "\n", "init", "--out", "run.toml")
    err = outcome.err
    assert outcome.code == 0, err
    assert "wrote run.toml" in outcome.out
    assert "'huge' is not a valid choice" in err
    assert "'12' is not a whole number from 1 to 8" in err
    assert "one of consilience-match" in err
    assert err.count("one of llama-1m, ") == 2  # once for the invalid answer, once for ?
    questions = re.findall(r"([A-Z][a-z ]+) \[", err)
    assert set(questions) == {
        "Recipe",
        "Model",
        "Tiers",
        "Optimizer",
        "Members at the start",
        "Steps",
        "Token files",
    }
    config = load_config(Path("run.toml"))
    assert (config.llm.matformer.tiers, config.config.total_steps) == (2, 400)
    assert config.llm.optimizer.settings.TABLE == "Distro"
    assert (
        config.config.init_min_clients
        == load_config(SHIPPED / "demo/config.toml").config.init_min_clients
    )
    assert tomllib.loads(Path("run.files.toml").read_text())["model"]["preset"] == "llama-1m"


def test_init_with_all_options_or_script_does_not_ask() -> None:
    options = [
        "--recipe",
        "demo",
        "--preset",
        "llama-1m",
        "--tiers",
        "2",
        "--optimizer",
        "distro",
        "--members",
        "3",
    ]
    outcome = invoke_typing(
        "", "init", "--out", "run.toml", *options, "--steps", 100, "--data-path", "tokens"
    )
    assert outcome.code == 0, outcome.err
    assert "[" not in outcome.err  # the default answer
    assert "[" not in invoke("init", "--out", "x.toml").err


def test_init_with_end_of_input_writes_nothing() -> None:
    outcome = invoke_typing("demo\n", "init", "--out", "run.toml")
    assert (outcome.code, "wrote" in outcome.out) == (130, False)
    assert list(Path().iterdir()) == []


def test_init_default_recipe_is_shipped() -> None:
    assert RECIPE in NAMES
    assert {optimizers()[name].RECIPE for name in WITH_RECIPE} <= set(NAMES)
    config, files = begin(RECIPE)
    assert json.dumps(files)
    from aftermath.cli.new_config import NewRunOptions

    assert (
        apply_options(config, files, NewRunOptions(), "runs/light")[0].to_chain()
        == config.to_chain()
    )
