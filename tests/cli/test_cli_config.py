"""Tests that `config validate`, `explain`, `schema` and the config page agree about a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from aftermath.base.errors import code_of
from aftermath.cli import config_page
from aftermath.config import errors
from aftermath.config.document import load_config
from aftermath.config.errors import Mistaken
from aftermath.config.keys import json_schema, keys
from aftermath.config.rules import rule_sentences
from aftermath.owner import schema
from aftermath.owner import warnings as owner_warnings
from aftermath.owner.agreed_data import with_agreed_data
from cli.cli_runs import Outcome, invoke
from cli.conftest import ROOT
from config.config_cases import RULES, SEED, changed

RULE_CODES = {code_of(name) for name in rule_sentences()}
ELSEWHERE = {"checkpoint", "model-config", "schema", "data"}


def validate(path: Path) -> Outcome:
    return invoke("config", "validate", path, "--json")


def refused(path: Path, text: str) -> list[dict[str, str | int]]:
    """Return the mistakes in this file. Validation exits with 1."""
    path.write_text(text)
    outcome = validate(path)
    assert outcome.code == 1
    data = json.loads(outcome.out)
    assert data["ok"] is False
    mistakes: list[dict[str, str | int]] = data["mistakes"]
    assert mistakes
    known = RULE_CODES | set(errors.CODES) | set(schema.CODES) | ELSEWHERE
    assert {one["code"] for one in mistakes} <= known
    return mistakes


@pytest.fixture
def run_toml(run_dir: Path, tmp_path: Path) -> Path:
    """Return a config whose model and tokens exist."""
    path = tmp_path / "run.toml"
    path.write_text((run_dir / "config.toml").read_text())
    return path


def test_config_page_is_current() -> None:
    page = (ROOT / "docs/config.md").read_text()
    assert page == config_page.page(), "run: python -m aftermath.cli.config_page docs/config.md"
    assert [
        key.name for key in keys() if key.table is None and f"| `{key.path[-1]}` |" not in page
    ] == []


def test_validate_valid_config_is_ok(run_toml: Path) -> None:
    data = validate(run_toml).data
    assert data == {
        "file": str(run_toml),
        "ok": True,
        "mistakes": [],
        "warnings": [],
        "not_looked_at": [],
    }
    assert invoke("config", "validate", run_toml).out == f"{run_toml} is a valid config\n"


@pytest.mark.parametrize(("name", "pattern", "replacement", "line"), RULES)
def test_validate_program_rule_violation_names_error_code(
    tmp_path: Path, name: str, pattern: str, replacement: str, line: int
) -> None:
    mistakes = refused(tmp_path / "run.toml", changed((pattern, replacement)))
    assert (code_of(name), line) in [(one["code"], one["line"]) for one in mistakes]


WRONG = [
    ("witness_nodes = 0", "witness_node = 0", "unknown-key"),
    ("total_steps = 48\nwaiting", "waiting", "missing-key"),
    ("min_clients = 2\ninit", 'min_clients = "2"\ninit', "wrong-type"),
    ('"HfLlama"', '"HfLama"', "wrong-word"),
    ("tiers = 3", "tiers = 9", "out-of-range"),
    ("max_seq_len = 64", 'max_seq_len = 64\ndata_hash = "x"', "wrong-form"),
    (
        "[model.LLM.optimizer.Distro]",
        "[model.LLM.optimizer.AdamW]\n[model.LLM.optimizer.Distro]",
        "wrong-choice",
    ),
    ("[config]", "[config", "not-toml"),
    ('architecture = "HfLlama"', 'architecture = "HfNanoGPT"', "architecture-differs"),
    ("max_seq_len = 64", "max_seq_len = 2049", "sequence-too-long"),
    ("max_seq_len = 64", "max_seq_len = 1", "sequence-too-short"),
    ('data_type = "Pretraining"', 'data_type = "Finetuning"', "labels-not-there"),
    ("quantize_1bit = true", "quantize_1bit = true\nweight_decay = 251.0", "weight-decay-too-high"),
]


@pytest.mark.parametrize(("right", "wrong", "code"), WRONG, ids=[one[2] for one in WRONG])
def test_validate_mistake_equals_update_config_error(
    run_toml: Path, right: str, wrong: str, code: str
) -> None:
    text = run_toml.read_text()
    assert text.count(right) == 1
    mistakes = refused(run_toml, text.replace(right, wrong))
    assert mistakes[0]["code"] == code
    result = invoke(
        "update-config", "--run-id", "nowhere", "--config-path", run_toml, "--json"
    ).error["error"]
    assert result.split("\n") == [f"{run_toml}:{one['line']}: {one['message']}" for one in mistakes]
    outcome = invoke("config", "validate", run_toml)
    assert outcome.code == 1
    assert f"{run_toml}:{mistakes[0]['line']}: {mistakes[0]['message']}" in outcome.out


def test_validate_reports_all_mistakes(run_toml: Path) -> None:
    text = (
        run_toml.read_text()
        .replace("max_seq_len = 64", "max_seq_len = 4096")
        .replace('"Pretraining"', '"Finetuning"')
    )
    assert len(refused(run_toml, text)) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_seq_len = 64": "max_seq_len = 1", '"Pretraining"': '"Finetuning"'},
        {"max_seq_len = 64": "max_seq_len = 0", "cooldown_time = ": "cooldown_time = 0 # "},
        {"max_seq_len = 64": "max_seq_length = 64", "cooldown_time = ": "cooldown_time = true # "},
    ],
    ids=["members", "program", "file"],
)
def test_mistakes_are_listed_in_line_order(run_toml: Path, wrong: dict[str, str]) -> None:
    text = run_toml.read_text()
    for right, instead in wrong.items():
        assert text.count(right) == 1
        text = text.replace(right, instead)
    mistakes = refused(run_toml, text)
    lines = [one["line"] for one in mistakes]
    assert len(set(lines)) > 1
    assert lines == sorted(lines)
    result = invoke(
        "update-config", "--run-id", "nowhere", "--config-path", run_toml, "--json"
    ).error["error"]
    assert result.split("\n") == [f"{run_toml}:{one['line']}: {one['message']}" for one in mistakes]


PLACES = {
    'Server = "a:b:c"': "not a valid address of a data server",
    'Http = { location = { SingleUrl = "ftp://example.org/x" } }': "not a valid HTTP address",
    'Http = { location = { SingleUrl = "tokens.bin" } }': "not a valid HTTP address",
    'Http = { location = { NumberedFiles = { url_template = "https://x/", num_files = 4000000000 } } }': "exactly once",
    'Http = { location = { Gcp = { bucket_name = "A B" } } }': "not a valid bucket name",
    'WeightedHttp = "https://"': "not a valid HTTP address",
}


@pytest.mark.parametrize("place", PLACES)
def test_validate_data_location_refused_by_train_is_a_mistake(run_toml: Path, place: str) -> None:
    text = re.sub(r'^Local = ".*tokens"$', place, run_toml.read_text(), flags=re.MULTILINE)
    (mistake,) = refused(run_toml, text)
    assert mistake["code"] == "data"
    assert mistake["key"] == "model.LLM.data_location"
    assert PLACES[place] in str(mistake["message"])


@pytest.mark.parametrize(
    "place",
    [
        'Server = "a:1"',
        'Http = { location = { SingleUrl = "https://127.0.0.1:9/x" } }',
        'WeightedHttp = "http://[::1]:9/"',
    ],
)
def test_validate_does_not_request_data(run_toml: Path, place: str) -> None:
    text = re.sub(r'^Local = ".*tokens"$', place, run_toml.read_text(), flags=re.MULTILINE)
    run_toml.write_text(text)
    assert validate(run_toml).data["not_looked_at"] == ["the data, because it is remote"]


def test_validate_does_not_request_hub_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    path = tmp_path / "run.toml"
    path.write_text(SEED)
    data = validate(path).data
    assert data["ok"]
    assert [what.partition(",")[0] for what in data["not_looked_at"]] == ["the model"]
    path.write_text(changed((r"^repo_id.*", 'repo_id = "not a repo"')))
    assert [one["code"] for one in json.loads(validate(path).out)["mistakes"]] == [
        "repository-name"
    ]


def test_missing_model_is_an_error_and_missing_data_a_warning(
    run_toml: Path,
) -> None:
    text = run_toml.read_text()
    mistakes = refused(
        run_toml, re.sub(r'^Local = ".*model"$', 'Local = "nowhere"', text, flags=re.MULTILINE)
    )
    assert [one["code"] for one in mistakes] == ["checkpoint"]
    run_toml.write_text(
        re.sub(r'^Local = ".*tokens"$', 'Local = "nowhere"', text, flags=re.MULTILINE)
    )
    data = validate(run_toml).data
    assert [one["code"] for one in data["warnings"]] == ["data-here"]
    run_toml.write_text(
        text.replace("max_seq_len = 64", f'max_seq_len = 64\ndata_hash = "{"0" * 64}"')
    )
    (warning,) = validate(run_toml).data["warnings"]
    assert "but data_hash is " in warning["message"]


def test_config_check_names_missing_model_and_missing_data(run_toml: Path) -> None:
    text = re.sub(
        r'^Local = ".*(model|tokens)"$',
        r'Local = "no-\1"',
        run_toml.read_text(),
        flags=re.MULTILINE,
    )
    (mistake,) = refused(run_toml, text)
    (warning,) = json.loads(validate(run_toml).out)["warnings"]
    for message, name, fix in (
        (str(mistake["message"]), "no-model", "aftermath-solana model init"),
        (warning["message"], "no-tokens", "aftermath-solana data tokenize"),
    ):
        assert name in message
        assert fix in message


def test_validate_checks_model_options_of_files_toml(run_toml: Path) -> None:
    text = re.sub(
        r'^Local = ".*model"$', 'Local = "nowhere"', run_toml.read_text(), flags=re.MULTILINE
    )
    run_toml.write_text(text)
    files_toml = run_toml.with_suffix(".files.toml")
    for options, codes in (
        ('preset = "llama-1m"', []),
        ('preset = "nanogpt-0.9m"', ["architecture-differs"]),
        ('preset = "bogus"', ["usage"]),
        ("heads = 0", ["usage"]),
        ("intermediate = 102", ["model-config"]),
    ):
        files_toml.write_text(f"[model]\n{options}\n")
        data = json.loads(validate(run_toml).out)
        assert [one["code"] for one in data["mistakes"]] == codes, options
    files_toml.write_text("[model")
    assert "files.toml is not valid TOML" in validate(run_toml).error["error"]


def test_validate_probably_unintended_value_is_a_warning(run_toml: Path) -> None:
    text = run_toml.read_text().replace("total_steps = 48\nwaiting", "total_steps = 20\nwaiting")
    run_toml.write_text(text)
    data = validate(run_toml).data
    assert [one["code"] for one in data["warnings"]] == ["rate-schedule"]
    assert {one["code"] for one in data["warnings"]} <= set(owner_warnings.WARNINGS)


def test_validate_missing_file_is_a_file_error(tmp_path: Path) -> None:
    outcome = validate(tmp_path / "nowhere.toml")
    assert outcome.error["code"] == "config"
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("name", "fix"),
    [("mine.files.toml", "Name the config: mine.toml"), ("owner.json", "Name the config, as")],
)
def test_validate_of_another_kind_of_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("[1, 2]")
    error = validate(Path(name)).error
    assert error["code"] == "config"
    assert error["fix"].startswith(fix)


def test_validate_escapes_terminal_codes_of_file(run_toml: Path) -> None:
    run_toml.write_text(run_toml.read_text().replace('"HfLlama"', '"[bold]\\u001b[2J"'))
    outcome = invoke("config", "validate", run_toml)
    assert "\x1b" not in outcome.out
    assert "[bold]" in outcome.out


def test_explain_key_prints_its_properties() -> None:
    (entry,) = invoke("config", "explain", "config.global_batch_size_end", "--json").data
    assert {
        name: entry[name]
        for name in ("key", "type", "unit", "limits", "required", "default", "example")
    } == {
        "key": "config.global_batch_size_end",
        "type": "whole number",
        "unit": "sequences",
        "limits": "1 to 65,535",
        "required": True,
        "default": "",
        "example": "global_batch_size_end = 32",
    }
    assert entry["what"].startswith("Sequences per round")
    page = invoke("config", "explain", "config.global_batch_size_end").out
    assert all(
        str(part) in page
        for part in ("whole number", "sequences", "1 to 65,535", "required", entry["example"])
    )


def test_explain_table_lists_keys_and_suffix_matches() -> None:
    (entry,) = invoke("config", "explain", "[model.LLM.checkpoint]", "--json").data
    assert entry["keys"] == ["Hub", "Local", "Dummy"]
    keys = [one["key"] for one in invoke("config", "explain", "total_steps", "--json").data]
    assert keys[0] == "config.total_steps"
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("name", "explained"),
    [
        ("run.config.max_seq_len", "model.LLM.max_seq_len"),
        ("run.config.total_steps", "config.total_steps"),
        ("run.name", "run.name"),
    ],
)
def test_explain_accepts_names_of_update_config(name: str, explained: str) -> None:
    (entry,) = invoke("config", "explain", name, "--json").data
    assert entry["key"] == explained


def test_explain_unknown_key_suggests_nearest() -> None:
    result = invoke("config", "explain", "config.global_batch_sise_end", "--json").mistake
    assert result["fix"].startswith("Did you mean config.global_batch_size_end")
    assert "compression_topk" in invoke("config", "explain", "topk", "--json").mistake["fix"]
    assert (
        invoke("config", "explain", "zzz", "--json").mistake["fix"]
        == "docs/config.md lists all keys"
    )


def test_explain_accepts_names_of_update_config_output() -> None:
    for name, key in (
        ("run.config.total_steps", "config.total_steps"),
        ("model.optimizer.orthogonal_lr", "model.LLM.optimizer.SparseLoCo.orthogonal_lr"),
        ("model.tiers", "model.LLM.matformer.tiers"),
        ("model.max_seq_len", "model.LLM.max_seq_len"),
    ):
        assert [one["key"] for one in invoke("config", "explain", name, "--json").data] == [key]
    assert invoke("config", "explain", "optimizer.total_steps", "--json").code == 2


def test_schema_is_equal_with_and_without_json() -> None:
    assert invoke("config", "schema").out == invoke("config", "schema", "--json").out
    assert json.loads(invoke("config", "schema").out) == json_schema()


def test_validate_tokens_of_wrong_width_is_a_mistake(run_toml: Path) -> None:
    text = run_toml.read_text()
    table = re.search(r'^Local = ".*tokens"$', text, flags=re.MULTILINE)
    assert table is not None
    wrong = text.replace(
        table[0],
        table[0].replace("Local = ", "Local = { path = ") + ', token_size_in_bytes = "FourBytes" }',
    )
    (mistake,) = refused(run_toml, wrong)
    assert (mistake["code"], mistake["key"]) == ("data", "model.LLM.data_location")
    with pytest.raises(Mistaken, match="token_size_in_bytes") as update:
        with_agreed_data(load_config(run_toml), 257)
    assert f"{run_toml}:{mistake['line']}: " in update.value.message
    run_toml.write_text(
        wrong.replace("max_seq_len = 64", f'max_seq_len = 64\ndata_hash = "{"0" * 64}"')
    )
    # members may have others
    assert [one["code"] for one in validate(run_toml).data["warnings"]] == ["data-here"]
