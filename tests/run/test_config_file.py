"""The seed's config file works verbatim, every variant reaches the program, and mistakes are named with their line."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from aftermath.run.config import RunConfig, load_config, parse_config
from aftermath.run.config_rules import program_errors
from aftermath.run.errors import ConfigError

SEED = Path(__file__).with_name("seed-config.toml").read_text()
REPOSITORY = Path(__file__).parents[2]


def real(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def changed(*replacements: tuple[str, str]) -> str:
    """The seed's file with each (pattern, replacement) applied; a pattern must occur exactly once."""
    text = SEED
    for pattern, replacement in replacements:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert count == 1, pattern
    return text


def without(table: str, instead: str) -> str:
    """The seed's file with one [table] (up to the next header) replaced."""
    return changed((rf"^\[{re.escape(table)}\][^\[]*(?=\[|\Z)", instead + "\n"))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "config.toml")
    return str(caught.value)


def test_the_seeds_file_is_read_verbatim() -> None:
    config = parse_config(SEED, "config.toml")
    assert config.config.rounds_per_epoch == 20
    assert config.config.total_steps == 25000
    assert config.llm.matformer.tiers == 1
    chain = config.to_chain()
    assert chain["config"] | {"waiting_for_members_extra_time": 0} == {
        "warmup_time": 30,
        "cooldown_time": 30,
        "max_round_train_time": 30,
        "round_witness_time": 1,
        "epoch_time": 0,
        "global_batch_size_warmup_tokens": 0,
        "rounds_per_epoch": 20,
        "total_steps": 25000,
        "max_seq_len": 2048,
        "init_min_clients": 1,
        "min_clients": 1,
        "witness_nodes": 1,
        "global_batch_size_start": 8,
        "global_batch_size_end": 8,
        "verification_percent": 0,
        "waiting_for_members_extra_time": 0,
    }
    model = chain["model"]
    assert model["checkpoint"] == {"kind": 1, "repo": "emozilla/llama2-20m-init", "revision": ""}
    location = model["data_location"]
    assert (location["kind"], location["token_bytes"], location["shuffle"]) == (5, 2, 0)
    assert (location["primary"], location["secondary"]) == (
        "nous-pretraining-public-us",
        "fineweb-edu-tokenized-llama2",
    )
    schedule = model["lr_schedule"]
    assert (schedule["kind"], schedule["warmup_steps"], schedule["total_steps"]) == (2, 250, 25000)
    assert (real(schedule["base_lr_bits"]), real(schedule["final_lr_bits"])) == (4.0e-4, 4.0e-5)
    optimizer = model["optimizer"]
    assert (optimizer["kind"], optimizer["compression_topk"], optimizer["compression_chunk"]) == (2, 8, 64)
    assert (real(optimizer["clip_grad_norm_bits"]), real(optimizer["compression_decay_bits"])) == (1.0, 0.999)
    assert optimizer["quantize_1bit"] == 1


def test_every_config_in_the_repository_is_valid() -> None:
    paths = sorted((REPOSITORY / "config").glob("**/*.toml"))
    assert paths
    for path in paths:
        assert isinstance(load_config(path), RunConfig)


CHECKPOINT = "model.LLM.checkpoint.Hub"


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('[model.LLM.checkpoint.Hub]\nrepo_id = "a/b"\nrevision = "v1"', (1, "a/b", "v1")),
        ('[model.LLM.checkpoint.Local]\npath = "/models/a"', (2, "/models/a", "")),
        ('[model.LLM.checkpoint]\nLocal = "/models/a"', (2, "/models/a", "")),
        ("[model.LLM.checkpoint.Dummy]", (3, "", "")),
        ('[model.LLM.checkpoint.Dummy]\nrepo_id = "a/b"', (3, "a/b", "")),
    ],
)
def test_checkpoints(table: str, expected: tuple[int, str, str]) -> None:
    chain = parse_config(without(CHECKPOINT, table), "config.toml").to_chain()["model"]["checkpoint"]
    assert (chain["kind"], chain["repo"], chain["revision"]) == expected


def located(table: str) -> dict[str, Any]:
    text = changed((r"^\[model\.LLM\.data_location\.Http\][\s\S]*?(?=\[model\.LLM\.lr_schedule)", table + "\n"))
    location: dict[str, Any] = parse_config(text, "config.toml").to_chain()["model"]["data_location"]
    return location


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("[model.LLM.data_location.Dummy]", {"kind": 0, "primary": ""}),
        ('[model.LLM.data_location]\nServer = "host:1"', {"kind": 1, "primary": "host:1"}),
        ('[model.LLM.data_location]\nLocal = "/data"', {"kind": 2, "primary": "/data", "token_bytes": 2}),
        (
            '[model.LLM.data_location.Local]\npath = "/data"\ntoken_size_in_bytes = "FourBytes"',
            {"kind": 2, "primary": "/data", "token_bytes": 4},
        ),
        (
            '[model.LLM.data_location.Http]\ntoken_size_in_bytes = "FourBytes"\nlocation = { SingleUrl = "https://x" }',
            {"kind": 3, "primary": "https://x", "token_bytes": 4, "shuffle": 0},
        ),
        (
            "[model.LLM.data_location.Http]\nshuffle = { Seeded = ["
            + "7," * 32
            + "] }\n[model.LLM.data_location.Http.location.NumberedFiles]\n"
            'url_template = "https://x/{}"\nstart_index = 3\nn_left_pad_zeros = 4\nnum_files = 9',
            {
                "kind": 4,
                "primary": "https://x/{}",
                "start_index": 3,
                "pad_zeros": 4,
                "num_files": 9,
                "shuffle": 1,
                "shuffle_seed": b"\x07" * 32,
            },
        ),
        ('[model.LLM.data_location]\nWeightedHttp = "https://x"', {"kind": 6, "primary": "https://x"}),
        ('[model.LLM.data_location]\nPreprocessed = "a/b"', {"kind": 7, "primary": "a/b"}),
    ],
)
def test_data_locations(table: str, expected: dict[str, Any]) -> None:
    location = located(table)
    assert {key: location[key] for key in expected} == expected
    assert len(location) == 9


def test_a_bare_word_chooses_a_variant_without_settings() -> None:
    text = changed(
        (r"^\[model\.LLM\.data_location\.Http\][\s\S]*?(?=\[model\.LLM\.lr_schedule)", ""),
        (r"^max_seq_len = 2048", 'max_seq_len = 2048\ndata_location = "Dummy"'),
    )
    assert parse_config(text, "config.toml").to_chain()["model"]["data_location"]["kind"] == 0


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("[model.LLM.lr_schedule.Constant]\nbase_lr = 1", {"kind": 0, "base_lr_bits": 1.0}),
        (
            "[model.LLM.lr_schedule.Linear]\nbase_lr = 0.5\nfinal_lr = 0.25\ntotal_steps = 7",
            {"kind": 1, "base_lr_bits": 0.5, "final_lr_bits": 0.25, "total_steps": 7},
        ),
        (
            "[model.LLM.lr_schedule.WarmupStableDecay]\nbase_lr = 0.5\ncosine_decay_final_lr = 0.25\n"
            "linear_decay_final_lr = 0.125\nstable_steps = 1\ncosine_decay_steps = 2\nlinear_decay_steps = 3",
            {"kind": 3, "cosine_decay_final_lr_bits": 0.25, "final_lr_bits": 0.125, "linear_decay_steps": 3},
        ),
    ],
)
def test_schedules(table: str, expected: dict[str, Any]) -> None:
    chain = parse_config(without("model.LLM.lr_schedule.Cosine", table), "config.toml").to_chain()
    schedule = chain["model"]["lr_schedule"]
    shown = {key: real(value) if key.endswith("_bits") else value for key, value in schedule.items()}
    assert {key: shown[key] for key in expected} == expected


def test_adamw_is_understood() -> None:
    table = "[model.LLM.optimizer.AdamW]\nbetas = [0.9, 0.95]\nweight_decay = 0.1\neps = 1e-8"
    optimizer = parse_config(without("model.LLM.optimizer.Distro", table), "c").to_chain()["model"]["optimizer"]
    assert (optimizer["kind"], real(optimizer["beta1_bits"]), real(optimizer["beta2_bits"])) == (1, 0.9, 0.95)


def test_tiers_are_chosen_in_the_matformer_table() -> None:
    assert parse_config(SEED + "\n[model.LLM.matformer]\ntiers = 3\n", "c").llm.matformer.tiers == 3


MISTAKES = [
    (
        r"^witness_nodes",
        "witness_node",
        34,
        r"\[config\] witness_node is not a known key \(did you mean witness_nodes\?",
    ),
    (r"^min_clients = 1", 'min_clients = "1"', 24, r"\[config\] min_clients is '1'; it must be a whole number"),
    (r"^warmup_time = 30", "warmup_time = 30.5", 3, r"\[config\] warmup_time is 30.5; it must be a whole number"),
    (r'"HfLlama"', '"HfLama"', 50, r"'HfLama' \(did you mean HfLlama\?\); allowed: HfLlama"),
    (r"^witness_nodes = 1", "witness_nodes = 70000", 34, r"witness_nodes is 70000; it must be at most 65535"),
    (r"^cooldown_time = 30", "cooldown_time = -1", 6, r"cooldown_time is -1; it must be at least 0"),
    (r"^total_steps = 25000\n\n# Model", "# Model", 1, r"\[config\] total_steps is missing"),
    (
        r"checkpoint\.Hub\]",
        "checkpoint.Hubb]",
        54,
        r"Hubb is not a known key \(did you mean Hub\?\); known here: Hub, L",
    ),
    (r"^repo_id.*", "", 54, r"\[model.LLM.checkpoint.Hub\] repo_id is missing"),
    (r'^shuffle = "DontShuffle"', "shuffle = { Seeded = [1, 2] }", 59, r"seed has 2 entries; it must have 32"),
    (r"^quantize_1bit = true", "quantize_1bit = 1", 78, r"quantize_1bit is 1; it must be true or false"),
    (r"^(\[model\.LLM\.optimizer\.Distro\])", r"[model.LLM.optimizer.AdamW]\n\1", 73, "exactly one of AdamW, Distro"),
    (r"^compression_topk", "compression_topq", 77, r"did you mean compression_topk\?"),
    (r"^\[model\.LLM\]", "[model.LM]", 49, r"\[model\] LM is not a known key \(did you mean LLM\?\)"),
]


@pytest.mark.parametrize(("pattern", "replacement", "line", "said"), MISTAKES)
def test_a_mistake_is_named_with_its_line_and_what_is_allowed(
    pattern: str, replacement: str, line: int, said: str
) -> None:
    message = refusal(changed((pattern, replacement)))
    assert re.search(rf"^config\.toml:{line}: .*{said}", message, re.MULTILINE), message


RULES = [
    ("EpochLengthMissing", r"^rounds_per_epoch = 20", "", 1),
    ("WarmupTooLong", r"^rounds_per_epoch = 20", "epoch_time = 30", 3),
    ("CooldownTimeZero", r"^cooldown_time = 30", "cooldown_time = 0", 6),
    ("RoundTrainTimeZero", r"^max_round_train_time = 30", "max_round_train_time = 0", 15),
    ("RoundTrainTimeTooLong", r"^max_round_train_time = 30", "max_round_train_time = 31\nepoch_time = 31", 15),
    ("RoundWitnessTimeZero", r"^round_witness_time = 1", "round_witness_time = 0", 18),
    ("ExtraTimeZero", r"^total_steps = 25000\n\n# M", "waiting_for_members_extra_time = 0\ntotal_steps = 1\n\n# M", 44),
    ("MinClientsZero", r"^min_clients = 1", "min_clients = 0", 24),
    ("InitMinClientsOutOfRange", r"^init_min_clients = 1", "init_min_clients = 257", 28),
    ("WitnessNodesTooMany", r"^witness_nodes = 1", "witness_nodes = 33", 34),
    ("WitnessNodesAboveMinClients", r"^witness_nodes = 1", "witness_nodes = 2", 34),
    ("BatchSizeZero", r"^global_batch_size_start = 8", "global_batch_size_start = 0", 39),
    ("BatchSizeShrinks", r"^global_batch_size_end = 8", "global_batch_size_end = 7", 40),
    (
        "BatchWarmupTooLong",
        r"^global_batch_size_warmup_tokens = 0",
        f"global_batch_size_warmup_tokens = {2**47 + 1}",
        41,
    ),
    ("TotalStepsZero", r"^total_steps = 25000\n\n# M", "total_steps = 0\n\n# M", 44),
    ("VerificationPercentTooLarge", r"^verification_percent = 0", "verification_percent = 101", 31),
    ("MaxSeqLenOutOfRange", r"^max_seq_len = 2048", "max_seq_len = 0", 52),
    ("ColdStartTooLong", r"^max_seq_len = 2048", "max_seq_len = 2048\ncold_start_warmup_steps = 21", 53),
    ("RepoMissing", r"^repo_id.*", 'repo_id = ""', 55),
    ("RepoTooLong", r"^repo_id.*", f'repo_id = "{"é" * 97}"', 55),
    ("RevisionTooLong", r"^(repo_id.*)", rf'\1\nrevision = "{"r" * 65}"', 56),
    ("LocationLength", r"^bucket_name.*", 'bucket_name = ""', 57),
    ("LocationFolderTooLong", r"^filter_directory.*", f'filter_directory = "{"f" * 193}"', 63),
    ("LearningRateInvalid", r"^base_lr.*", "base_lr = nan", 66),
    ("LearningRateInvalid", r"^base_lr.*", "base_lr = 0.0", 66),
    ("LearningRateInvalid", r"^final_lr.*", "final_lr = -0.0", 70),
    ("ScheduleTooShort", r"^warmup_steps = 250", "warmup_steps = 25000", 69),
    ("OptimizerNumberInvalid", r"^compression_decay.*", "compression_decay = 1.0", 75),
    ("OptimizerNumberInvalid", r"^clip_grad_norm.*", "clip_grad_norm = inf", 74),
    ("ChunkOutOfRange", r"^compression_chunk.*", "compression_chunk = 4097", 76),
    ("TopkOutOfRange", r"^compression_topk.*", "compression_topk = 4097", 77),
]


@pytest.mark.parametrize(("name", "pattern", "replacement", "line"), RULES)
def test_the_programs_own_sentence_is_shown_before_anything_is_sent(
    name: str, pattern: str, replacement: str, line: int
) -> None:
    message = refusal(changed((pattern, replacement)))
    assert program_errors()[name] in message
    assert any(
        said.startswith(f"config.toml:{line}: ") and program_errors()[name] in said for said in message.split("\n")
    )


def test_limits_themselves_are_allowed() -> None:
    text = changed(
        (r"^max_seq_len = 2048", "max_seq_len = 16777216\ncold_start_warmup_steps = 20"),
        (r"^compression_topk.*", "compression_topk = 4096"),
        (r"^init_min_clients = 1", "init_min_clients = 256"),
        (r"^verification_percent = 0", "verification_percent = 100"),
        (r"^repo_id.*", f'repo_id = "{"r" * 192}"'),
        (r"^compression_decay.*", f"compression_decay = {math.nextafter(1.0, 0.0)!r}"),
    )
    assert parse_config(text, "config.toml").config.init_min_clients == 256


def test_every_mistake_is_reported_at_once() -> None:
    message = refusal(changed((r"^witness_nodes", "witness_node"), (r'"HfLlama"', '"HfAuto"')))
    assert len(message.split("\n")) == 2


def test_a_key_of_an_inline_table_is_reported_at_its_line() -> None:
    message = refusal(without(CHECKPOINT, 'checkpoint = { Hub = { repo = "a/b" } }'))
    assert re.search(r"config\.toml:5\d: .*did you mean repo_id\?", message)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[config\n", r"not valid TOML: .*line 1"),
        (b"a = 1\na = 2\n", r"not valid TOML: .*line 2"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (2**20 + 1), "larger than"),
        (b"a = " + b"[" * 100_000, "not valid TOML"),
        (b"", r"\[config\] is missing"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the config file .*nowhere\.toml: No such file"):
        load_config(tmp_path / "nowhere.toml")
