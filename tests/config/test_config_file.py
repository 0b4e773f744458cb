"""The seed config works verbatim, and every variant converts to the program's form."""

from __future__ import annotations

import math
import re
import struct
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from aftermath.base.errors import ConfigError
from aftermath.config.document import Llm, RunConfig, load_config, parse_as
from aftermath.config.spec import ARCHITECTURES
from aftermath.rules.distro import Distro
from aftermath.rules.model import LrSchedule
from aftermath.rules.optimizers import AdamWAlone
from aftermath.rules.schedules import learning_rate
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.rules.state import ScheduleKind
from config.config_cases import CHECKPOINT, DISTRO, SEED, SPARSELOCO, changed, without

REPOSITORY = Path(__file__).parents[2]
CONFIGS = sorted((REPOSITORY / "config").glob("*/*config.toml"))
"""Config files, without the recipe files next to them."""


def real(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def test_seed_config_is_read_verbatim() -> None:
    config = parse_as(SEED, "config.toml", RunConfig)
    assert config.config.rounds_per_epoch == 20
    assert config.config.total_steps == 25000
    assert config.llm.matformer.tiers == 1
    chain = config.to_chain()
    spec = config.llm.spec.values()
    assert chain["config"] | {"waiting_for_members_extra_time": 0} == {
        "warmup_time": 30,
        "cooldown_time": 30,
        "min_round_time": 1,
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
        "overlap": 1,
        "global_batch_size_start": 8,
        "global_batch_size_end": 8,
        "verification_percent": 0,
        "join_bond": 0,
        "waiting_for_members_extra_time": 0,
    }
    model = chain["model"]
    assert model["checkpoint"] == {"kind": 1, "repo": "emozilla/llama2-20m-init", "revision": ""}
    location = spec["data_location"]
    assert (location["kind"], location["token_bytes"], location["shuffle"]) == (5, 2, 0)
    assert (location["primary"], location["secondary"]) == (
        "nous-pretraining-public-us",
        "fineweb-edu-tokenized-llama2",
    )
    schedule = spec["lr_schedule"]
    assert (schedule["kind"], schedule["warmup_steps"], schedule["total_steps"]) == (2, 250, 25000)
    assert (real(schedule["base_lr_bits"]), real(schedule["final_lr_bits"])) == (4.0e-4, 4.0e-5)
    optimizer = spec["optimizer"]
    assert (optimizer["kind"], optimizer["compression_topk"], optimizer["compression_chunk"]) == (
        "distro",
        8,
        64,
    )
    assert (optimizer["clip_grad_norm"], optimizer["compression_decay"]) == (
        1.0,
        0.999,
    )
    assert optimizer["quantize_1bit"] is True
    # the seed config's keys apply to every tensor
    assert optimizer["compression_topk_embeddings"] is None


@pytest.mark.parametrize("least", [0, 30])
def test_min_round_time_accepts_zero_and_the_maximum(least: int) -> None:
    text = changed(
        (r"^max_round_train_time = 30", f"max_round_train_time = 30\nmin_round_time = {least}")
    )
    assert parse_as(text, "config.toml", RunConfig).to_chain()["config"]["min_round_time"] == least


def test_every_config_in_the_repository_is_valid() -> None:
    assert CONFIGS
    for path in CONFIGS:
        assert isinstance(load_config(path), RunConfig)


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
    chain = parse_as(without(CHECKPOINT, table), "config.toml", RunConfig).to_chain()["model"][
        "checkpoint"
    ]
    assert (chain["kind"], chain["repo"], chain["revision"]) == expected


def located(table: str) -> dict[str, Any]:
    text = changed(
        (r"^\[model\.LLM\.data_location\.Http\][\s\S]*?(?=\[model\.LLM\.lr_schedule)", table + "\n")
    )
    location: dict[str, Any] = parse_as(text, "config.toml", RunConfig).llm.spec.values()[
        "data_location"
    ]
    return location


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("[model.LLM.data_location.Dummy]", {"kind": 0, "primary": ""}),
        ('[model.LLM.data_location]\nServer = "host:1"', {"kind": 1, "primary": "host:1"}),
        (
            '[model.LLM.data_location]\nLocal = "/data"',
            {"kind": 2, "primary": "/data", "token_bytes": 2},
        ),
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
        (
            '[model.LLM.data_location]\nWeightedHttp = "https://x"',
            {"kind": 6, "primary": "https://x"},
        ),
        ('[model.LLM.data_location]\nPreprocessed = "a/b"', {"kind": 7, "primary": "a/b"}),
    ],
)
def test_data_locations(table: str, expected: dict[str, Any]) -> None:
    location = located(table)
    assert {key: location[key] for key in expected} == expected
    assert len(location) == 9


def test_bare_word_chooses_variant_without_settings() -> None:
    text = changed(
        (r"^\[model\.LLM\.data_location\.Http\][\s\S]*?(?=\[model\.LLM\.lr_schedule)", ""),
        (r"^max_seq_len = 2048", 'max_seq_len = 2048\ndata_location = "Dummy"'),
    )
    assert parse_as(text, "config.toml", RunConfig).llm.spec.values()["data_location"]["kind"] == 0


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
            {
                "kind": 3,
                "cosine_decay_final_lr_bits": 0.25,
                "final_lr_bits": 0.125,
                "linear_decay_steps": 3,
            },
        ),
    ],
)
def test_schedules(table: str, expected: dict[str, Any]) -> None:
    config = parse_as(without("model.LLM.lr_schedule.Cosine", table), "config.toml", RunConfig)
    schedule = config.llm.spec.values()["lr_schedule"]
    fields = {
        key: real(value) if key.endswith("_bits") else value for key, value in schedule.items()
    }
    assert {key: fields[key] for key in expected} == expected


def test_embedding_and_head_may_keep_more() -> None:
    more = parse_as(
        changed((r"^(compression_topk.*)", r"\1\ncompression_topk_embeddings = 64")), "c", RunConfig
    ).llm.spec.values()
    optimizer = more["optimizer"]
    assert (optimizer["compression_topk"], optimizer["compression_topk_embeddings"]) == (8, 64)
    with pytest.raises(ConfigError, match="compression_topk_embeddings"):
        parse_as(
            changed((r"^(compression_topk.*)", r"\1\ncompression_topk_embeddings = 0")),
            "c",
            RunConfig,
        )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_presets_rate_decays_to_zero_over_last_fifth(path: Path) -> None:
    """The decay is worth about 0.1 nats (`docs/experiments.md`). No step, not even the last one,
    trains at rate 0.
    """
    config = load_config(path)
    chain = config.llm.lr_schedule.to_chain()
    numbers = {
        key.removesuffix("_bits"): real(value) if key.endswith("_bits") else value
        for key, value in chain.items()
    }
    rates = LrSchedule(**numbers | {"kind": ScheduleKind(chain["kind"])})
    steps = config.config.total_steps
    base = rates.base_lr
    assert all(learning_rate(rates, step) > 0 for step in range(max(1, steps - 50), steps + 1))
    assert learning_rate(rates, steps * 4 // 5) == pytest.approx(base, rel=0.02)
    assert learning_rate(rates, round(steps * 0.9)) == pytest.approx(base / 2, rel=0.1)
    assert learning_rate(rates, steps + 1) == 0


def test_adamw_table_is_read() -> None:
    table = "[model.LLM.optimizer.AdamW]\nbetas = [0.9, 0.95]\nweight_decay = 0.1\neps = 1e-8"
    optimizer = parse_as(
        without("model.LLM.optimizer.Distro", table), "c", RunConfig
    ).llm.optimizer.settings
    assert optimizer == AdamWAlone(betas=(0.9, 0.95), weight_decay=0.1, eps=1e-8, clip=None)


def test_sparseloco_table_is_read_and_missing_keys_have_defaults() -> None:
    choices = 'inner_steps = 7\ninner_optimizer = "muon"\nouter_lr = 0.5\ndivisor = "root"\nvalue_bits = 1\n'
    numbers = "compression_topk = 9\ncompression_topk_embeddings = 10\ncompression_chunk = 32\nclip_grad_norm = 0.25\n"
    config = parse_as(changed((DISTRO, SPARSELOCO + choices + numbers)), "c", RunConfig)
    assert config.llm.optimizer.settings == SparseLoCo(
        inner_steps=7,
        inner_optimizer="muon",
        outer_lr=0.5,
        divisor="root",
        bits=1,
        topk=9,
        topk_embeddings=10,
        chunk=32,
        clip=0.25,
    )


def test_light_preset_optimizer_tables_are_complete_and_valid() -> None:
    text = (REPOSITORY / "config/solana-test/light-config.toml").read_text()
    before, _, tables = text.partition(SPARSELOCO)
    own, _, other = tables.partition("# [model.LLM.optimizer.Distro]\n")
    written = set(re.findall(r"^(\w+) = ", own, re.MULTILINE))
    assert written == SparseLoCo.defaults().keys() - {"outer_momentum"}  # off without its key
    keys = re.findall(r"^# (\w+ = \S+)", other, re.MULTILINE)
    taken = parse_as(
        before + "[model.LLM.optimizer.Distro]\n" + "\n".join(keys), "c", RunConfig
    ).llm.optimizer.settings
    assert taken == Distro(topk_embeddings=64)


def test_light_preset_equals_best_measured_arm() -> None:
    """It equals the best arm of benchmarks/arms.toml, with that arm's rate at the largest size and
    without overlap.
    """
    arms = tomllib.loads((REPOSITORY / "benchmarks/arms.toml").read_text())
    winner: dict[str, Any] = {}
    largest: list[float] = []
    for arm in arms["arm"]:
        if arm["name"] == arms["winner"]["8"]:
            winner |= arm
            largest += arm["lr"] if "10M" in arm["sizes"] else []
    config = load_config(REPOSITORY / "config/solana-test/light-config.toml")
    has = config.llm.optimizer.settings
    assert isinstance(has, SparseLoCo)
    keys = ("inner_steps", "inner_optimizer", "outer_lr", "orthogonal_lr")
    assert {name: getattr(has, name) for name in keys} == {name: winner[name] for name in keys}
    assert (has.divisor, has.topk, has.bits) == (
        winner["mean"],
        winner["topk"],
        2,
    )
    assert config.config.overlap == 0
    assert config.llm.lr_schedule.WarmupStableDecay is not None
    assert config.llm.lr_schedule.WarmupStableDecay.base_lr in largest


def test_tiers_are_chosen_in_matformer_table() -> None:
    assert (
        parse_as(SEED + "\n[model.LLM.matformer]\ntiers = 3\n", "c", RunConfig).llm.matformer.tiers
        == 3
    )


def test_limit_values_are_accepted() -> None:
    text = changed(
        (r"^max_seq_len = 2048", "max_seq_len = 16777216\ncold_start_warmup_steps = 20"),
        (r"^compression_topk.*", "compression_topk = 4096\ncompression_topk_embeddings = 4096"),
        (r"^init_min_clients = 1", "init_min_clients = 256"),
        (r"^verification_percent = 0", "verification_percent = 100"),
        (r"^repo_id.*", f'repo_id = "{"r" * 192}"'),
        (r"^compression_decay.*", f"compression_decay = {math.nextafter(1.0, 0.0)!r}"),
    )
    assert parse_as(text, "config.toml", RunConfig).config.init_min_clients == 256
    for limits in (
        "inner_steps = 1\nouter_lr = 5e-324\nvalue_bits = 1",
        "inner_steps = 1024\nouter_lr = 64.0",
    ):
        assert parse_as(
            changed((DISTRO, SPARSELOCO + limits)), "config.toml", RunConfig
        ).llm.optimizer.settings


def test_config_architectures_equal_known_ones() -> None:
    assert get_args(Llm.model_fields["architecture"].annotation) == ARCHITECTURES


@pytest.mark.parametrize("name", [str(one.relative_to(REPOSITORY)) for one in CONFIGS])
def test_recipes_do_not_rely_on_single_witness(name: str) -> None:
    rules = load_config(REPOSITORY / name).to_chain()["config"]
    assert rules["witness_nodes"] == 0


def test_broken_rule_error_has_values_of_other_keys() -> None:
    wrong = changed((r"^min_clients = 1", "min_clients = 4"))
    with pytest.raises(ConfigError) as caught:
        parse_as(wrong, "config.toml", RunConfig)
    assert (
        "init_min_clients = 1: init_min_clients must be between min_clients and 256. Here min_clients is 4."
        in caught.value.message
    )
