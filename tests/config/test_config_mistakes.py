"""Errors of a config file name the line and the allowed values, with the program's sentence if
there is one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aftermath.base.errors import ConfigError
from aftermath.config.document import MAX_CONFIG_BYTES, RunConfig, load_config, parse_as
from aftermath.config.rules import rule_sentences
from config.config_cases import CHECKPOINT, DISTRO, RULES, SEED, SPARSELOCO, changed, without


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_as(text, "config.toml", RunConfig)
    return caught.value.message


MISTAKES = [
    (
        r"^witness_nodes",
        "witness_node",
        34,
        r"\[config\] witness_node is not a known key \(did you mean witness_nodes\?",
    ),
    (
        r"^min_clients = 1",
        'min_clients = "1"',
        24,
        r"\[config\] min_clients is '1'; it must be a whole number",
    ),
    (
        r"^warmup_time = 30",
        "warmup_time = 30.5",
        3,
        r"\[config\] warmup_time is 30.5; it must be a whole number",
    ),
    (r'"HfLlama"', '"HfLama"', 50, r"'HfLama' \(did you mean HfLlama\?\); allowed: HfLlama"),
    (
        r"^witness_nodes = 1",
        "witness_nodes = 70000",
        34,
        r"witness_nodes is 70000; it must be at most 65535",
    ),
    (r"^base_lr.*", "base_lr = 1e38", 66, r"base_lr is 1e\+38; it must be at most 1000"),
    (
        r"^cooldown_time = 30",
        "cooldown_time = -1",
        6,
        r"cooldown_time is -1; it must be at least 1",
    ),
    (r"^warmup_time = 30", "warmup_time = -1", 3, r"warmup_time is -1; it must be at least 0"),
    (r"^min_clients = 1", "min_clients = -5", 24, r"min_clients is -5; it must be at least 1"),
    (
        r"^warmup_time = 30",
        'warmup_time = "30s"',
        3,
        r"warmup_time is '30s'; it must be a whole number of seconds$",
    ),
    (
        r"^min_clients = 1",
        'min_clients = "9"',
        24,
        r"min_clients is '9'; it must be a whole number of members$",
    ),
    (
        r"^max_seq_len",
        'data_hash = "xyz"\nmax_seq_len',
        52,
        r"data_hash is 'xyz'; it must be 64 lowercase hex digits, or empty$",
    ),
    (r"^base_lr.*", 'base_lr = "high"', 66, r"base_lr is 'high'; it must be a number$"),
    (r"^min_clients = 1", "min_clients = 1\nwarmup_time = 5", 25, "warmup_time is set twice$"),
    (r"^\[config\]", "[config]\n[config]", 2, r"\[config\] is set twice$"),
    (
        r'"HfLlama"',
        "HfLlama",
        50,
        'architecture is HfLlama: text needs quotes: architecture = "HfLlama"',
    ),
    (
        r"^quantize_1bit = true",
        "quantize_1bit = True # yes",
        78,
        r"quantize_1bit is True: write true",
    ),
    (r"^min_clients = 1", "min_clients = 5 6", 24, r"this is not valid TOML: "),
    (r"^total_steps = 25000\n\n# Model", "# Model", 1, r"\[config\] total_steps is missing"),
    (
        r"checkpoint\.Hub\]",
        "checkpoint.Hubb]",
        54,
        r"Hubb is not a known key \(did you mean Hub\?\); known here: Hub, L",
    ),
    (r"^repo_id.*", "", 54, r"\[model.LLM.checkpoint.Hub\] repo_id is missing"),
    (
        r'^shuffle = "DontShuffle"',
        "shuffle = { Seeded = [1, 2] }",
        59,
        r"seed has 2 entries; it must have 32",
    ),
    (
        r"^quantize_1bit = true",
        "quantize_1bit = 1",
        78,
        r"quantize_1bit is 1; it must be true or false",
    ),
    (
        r"^(\[model\.LLM\.optimizer\.Distro\])",
        r"[model.LLM.optimizer.AdamW]\n\1",
        73,
        "one of AdamW, Distro, SparseLoCo",
    ),
    (
        DISTRO,
        SPARSELOCO + 'inner_optimizer = "sgd"',
        74,
        "inner_optimizer is 'sgd'; allowed: adamw, muon",
    ),
    (
        DISTRO,
        SPARSELOCO + 'divisor = "rot"',
        74,
        r"'rot' \(did you mean root\?\); allowed: keepers, all, root",
    ),
    (
        DISTRO,
        SPARSELOCO + "outer_rate = 1.0",
        74,
        r"outer_rate is not a known key \(did you mean outer_lr\?",
    ),
    (r"^compression_topk", "compression_topq", 77, r"did you mean compression_topk\?"),
    (
        r"^\[model\.LLM\]",
        "[model.LM]",
        49,
        r"\[model\] LM is not a known key \(did you mean LLM\?\)",
    ),
]


@pytest.mark.parametrize(("pattern", "replacement", "line", "sentence"), MISTAKES)
def test_config_mistake_is_named_with_line_and_allowed_values(
    pattern: str, replacement: str, line: int, sentence: str
) -> None:
    message = refusal(changed((pattern, replacement)))
    assert re.search(rf"^config\.toml:{line}: .*{sentence}", message, re.MULTILINE), message


@pytest.mark.parametrize(("name", "pattern", "replacement", "line"), RULES)
def test_config_error_has_program_sentence_and_line(
    name: str, pattern: str, replacement: str, line: int
) -> None:
    message = refusal(changed((pattern, replacement)))
    assert rule_sentences()[name] in message
    assert any(
        sentence.startswith(f"config.toml:{line}: ") and rule_sentences()[name] in sentence
        for sentence in message.split("\n")
    )


GCS = 'bucket = "models"\n'


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "Gcs",
            r"Google Cloud Storage are not supported; copy it to the Hub and write Hub with .*write Local with",
        ),
        ("P2PGcs", r"the run itself decides .* Write Hub, Local or Dummy"),
        ("P2P", r"the run itself decides .* Write Hub, Local or Dummy"),
    ],
)
@pytest.mark.parametrize(
    "written",
    ["[model.LLM.checkpoint.{}]\n" + GCS, 'checkpoint = "{}"\n', "checkpoint = {{ {} = 1 }}"],
)
def test_unsupported_upstream_checkpoint_is_refused_by_name(
    name: str, reason: str, written: str
) -> None:
    message = refusal(without(CHECKPOINT, written.format(name)))
    assert re.fullmatch(
        rf"config\.toml:54: \[model\.LLM\] checkpoint cannot be {name}: .*{reason}.*", message
    ), message


def test_config_mistakes_are_reported_together() -> None:
    message = refusal(changed((r"^witness_nodes", "witness_node"), (r'"HfLlama"', '"HfBert"')))
    assert len(message.split("\n")) == 2


def test_long_checkpoint_directory_is_called_path() -> None:
    message = refusal(without(CHECKPOINT, f'checkpoint = {{ Local = {{ path = "{"p" * 193}" }} }}'))
    assert "The checkpoint's path must have at most 192 bytes." in message


def test_inline_table_mistake_is_reported_at_its_line() -> None:
    message = refusal(without(CHECKPOINT, 'checkpoint = { Hub = { repo = "a/b" } }'))
    assert re.search(r"config\.toml:5\d: .*did you mean repo_id\?", message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[config\n", r"not valid TOML: .*line 1"),
        (b"a = 1\na = 2\n", r"config.toml:2: a is set twice"),
        (b"\xff\xfe", "not valid UTF-8"),
        (b"#" * (2**20 + 1), "too large for a run config"),
        (b"a = " + b"[" * 100_000, "not valid TOML"),
        (b"", r"\[config\] is missing"),
    ],
    ids=["table", "twice", "bytes", "size", "nesting", "empty"],
)
def test_invalid_config_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_file_with_byte_order_mark_keeps_its_line_numbers(tmp_path: Path, ends: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SEED.replace("\n", ends).encode())
    assert load_config(path).to_chain() == parse_as(SEED, "config.toml", RunConfig).to_chain()
    path.write_bytes(
        b"\xef\xbb\xbf"
        + changed((r"^min_clients = 1", "min_clients = 0")).replace("\n", ends).encode()
    )
    with pytest.raises(ConfigError, match=rf"{path}:24: min_clients"):
        load_config(path)


@pytest.mark.parametrize(
    "content",
    [None, b"\xff\xfe", b"[config\n", b"[config]\n", b" " * (MAX_CONFIG_BYTES + 1)],
    ids=["no file", "bytes", "table", "empty table", "size"],
)
def test_config_mistakes_all_have_fix(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "config.toml")
    word = caught.value.fix.split("; ")[1].split()[0]
    # the named file exists
    assert load_config(Path(__file__).parents[2] / word).config.total_steps


def test_missing_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot read the config file .*nowhere\.toml: No such file"
    ):
        load_config(tmp_path / "nowhere.toml")


def test_audits_without_clipping_are_refused() -> None:
    audits = (r"^verification_percent.*", "verification_percent = 6")
    for unclipped in ("clip_grad_norm = 0.0", ""):
        message = refusal(changed(audits, (r"^clip_grad_norm.*", unclipped)))
        assert rule_sentences()["AuditsWithoutClipping"] in message
    parse_as(changed(audits), "config.toml", RunConfig)
