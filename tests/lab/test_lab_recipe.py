"""Test the recipe of a training: a run's config, overriding options, defaults, and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import constants

from aftermath.base.errors import AftermathError, Unsuitable, UsageError
from aftermath.config.chain_values import schedule_of
from aftermath.config.document import load_config
from aftermath.lab import rates
from aftermath.lab.recipe import Recipe, advice
from aftermath.lab.resolve_recipe import recipe_of
from aftermath.lab.settings import with_options
from aftermath.model import hub as hub_module
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import CheckpointError
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.optim.muon import MuonSettings
from aftermath.rules.distro import Distro
from aftermath.rules.optimizers import AdamWAlone
from aftermath.rules.schedules import learning_rate
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.setup import CONFIG, RULES
from model.hub_server import Hub, serving

TESTS = Path(__file__).parents[1]
DEMO = TESTS.parent / "config" / "demo" / "config.toml"
DISTRO_RUN = TESTS / "cli" / "run-config.toml"
DUMMY = 'checkpoint = { Dummy = { repo_id = "a/b" } }'
HUB = 'checkpoint = { Hub = { repo_id = "team/tiny" } }'


def recipe(**options: Any) -> Recipe:
    return recipe_of(with_options(**options))


STATES = (None, "keep", "reset")


def bare(**options: Any) -> Recipe:
    return recipe(**{"model": Path("model"), "data_path": Path("tokens")} | options)


def file(root: Path, *changes: tuple[str, str]) -> Path:
    text = RULES
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (root / "run.toml").write_text(text)
    return root / "run.toml"


def test_recipe_of_run_config_is_complete() -> None:
    result = recipe(config_path=DEMO, members=3, tiers="0,1,2")
    config = load_config(DEMO)
    assert result.model == str(Path("runs/demo/model").absolute())
    assert result.data == str(Path("runs/demo/tokens").absolute())
    assert result.shuffle_seed == bytes(range(1, 33)).hex()
    assert (result.seq_len, result.steps, result.batch.start, result.batch.end) == (128, 48, 48, 48)
    assert result.schedule == schedule_of(config.llm.lr_schedule)
    assert result.settings == config.llm.optimizer.settings
    assert (result.optimizer, result.levels, result.tiers, result.overlap) == (
        "sparseloco",
        3,
        (0, 1, 2),
        0,
    )


@pytest.fixture
def on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Return a Hub on this machine with the repository team/tiny."""
    hub = Hub()
    write_checkpoint(tmp_path / "tiny", init_weights(CONFIG, 0), CONFIG, tier=0, companions={})
    hub.repos["team/tiny"] = {
        path.name: path.read_bytes() for path in (tmp_path / "tiny").iterdir()
    }
    with serving(hub):
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(hub_module, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.chdir(tmp_path)
        yield


@pytest.mark.usefixtures("on_the_hub")
def test_model_named_on_hub_is_fetched(tmp_path: Path) -> None:
    path = Path(bare(model=Path("team/tiny")).model)
    assert (path / "config.json").read_bytes() == (tmp_path / "tiny" / "config.json").read_bytes()
    text = ('checkpoint = { Local = "MODEL" }', HUB)
    assert recipe(config_path=file(tmp_path, text), data_path=Path("tokens")).model == str(path)
    with pytest.raises(CheckpointError, match="there is no directory team/typo, and the Hub has"):
        bare(model=Path("team/typo"))
    (tmp_path / "team" / "tiny").mkdir(parents=True)
    assert bare(model=Path("team/tiny")).model == str(tmp_path / "team" / "tiny"), (
        "a directory of that name counts"
    )


def test_options_override_config() -> None:
    there = recipe(config_path=DEMO)
    result = recipe(
        config_path=DEMO,
        model=Path("/m"),
        data_path=Path("/d"),
        seq_len=64,
        steps=40,
        total_batch=7,
        seed=4,
    )
    assert (result.model, result.data, result.seq_len, result.steps) == ("/m", "/d", 64, 40)
    assert (result.batch.start, result.batch.end) == (7, 7)
    assert result.shuffle_seed not in (
        "",
        there.shuffle_seed,
        recipe(config_path=DEMO, seed=5).shuffle_seed,
    )
    twice = recipe(config_path=DEMO, lr=2 * there.schedule.base_lr)
    assert [twice.rate(step) for step in range(1, 49)] == pytest.approx(
        [2 * there.rate(s) for s in range(1, 49)]
    )
    assert recipe(config_path=DEMO, warmup_steps=10).schedule == replace(
        there.schedule, warmup_steps=10
    )
    assert recipe(config_path=DEMO, lr_schedule="constant").rate(48) == there.schedule.base_lr
    longer = recipe(config_path=DEMO, steps=400, lr_schedule="stable")
    assert all(longer.rate(step) for step in range(1, 401))
    adamw = recipe(config_path=DEMO, optimizer="adamw", lr=2e-3)
    assert adamw.settings == AdamWAlone()
    assert adamw.schedule == rates.scaled(there.schedule, 2e-3)


def test_recipe_without_config_uses_defaults() -> None:
    result = bare()
    assert (result.optimizer, result.settings) == ("distro", Distro())
    assert (result.batch.end, result.steps, result.seq_len, result.tiers) == (32, 1000, 512, (0,))
    assert result.schedule == rates.stable(1.5e-3, 50, 1000)
    assert bare(optimizer="adamw").settings == AdamWAlone()
    assert bare(optimizer="muon").schedule.base_lr == 0.02
    assert MuonSettings().weight_decay == 0.0
    assert bare().agreed == Distro()
    assert bare(optimizer="adamw").agreed is None


def test_shared_optimizer_settings_follow_options() -> None:
    inner = bare(optimizer="sparseloco", members=2)
    assert (inner.agreed, inner.overlap, inner.schedule.base_lr) == (SparseLoCo(), 0, 2e-3)
    assert bare(optimizer="sparseloco", overlap="1").overlap == 1
    options = {
        "inner_steps": 8,
        "inner_optimizer": "muon",
        "value_bits": "1",
        "outer_lr": 0.5,
        "orthogonal_lr": 3.0,
        "mean": "root",
    }
    result = bare(
        optimizer="sparseloco", topk=16, topk_embeddings=64, feedback_decay=0.9, **options
    )
    assert result.schedule.base_lr == 0.02
    assert result.agreed == SparseLoCo(
        inner_steps=8,
        inner_optimizer="muon",
        topk=16,
        topk_embeddings=64,
        bits=1,
        decay=0.9,
        outer_lr=0.5,
        orthogonal_lr=3.0,
        divisor="root",
    )
    assert json.loads(msgspec.json.encode(asdict(result)))["settings"]["divisor"] == "root"
    plain = bare(topk=16, feedback_decay=0.9)
    assert plain.agreed == Distro(topk=16, topk_embeddings=16, decay=0.9)
    config = recipe(config_path=DISTRO_RUN)
    assert isinstance(config.settings, Distro)
    assert recipe(config_path=DISTRO_RUN, topk=16).agreed == replace(
        config.settings, topk=16, topk_embeddings=16
    )
    assert recipe(config_path=DISTRO_RUN, optimizer="sparseloco", lr=2e-3).agreed == SparseLoCo(
        clip=1.0
    )


def test_options_override_config_with_sparseloco(tmp_path: Path) -> None:
    table = RULES[RULES.index("[model.LLM.optimizer.Distro]") :]
    keys = "inner_steps = 6\nvalue_bits = 1\ncompression_topk = 9\nweight_decay = 0.01\nclip_grad_norm = 2.0\n"
    config_path = file(tmp_path, (table, "[model.LLM.optimizer.SparseLoCo]\n" + keys))
    of_file = SparseLoCo(
        inner_steps=6, bits=1, topk=9, topk_embeddings=9, weight_decay=0.01, clip=2.0
    )
    result = recipe(config_path=config_path)
    assert (result.optimizer, result.agreed, result.overlap, result.schedule.base_lr) == (
        "sparseloco",
        of_file,
        1,
        0.004,
    )
    options = {
        "inner_steps": 2,
        "value_bits": "2",
        "topk": 5,
        "outer_lr": 0.5,
        "mean": "all",
        "feedback_decay": 0.5,
    }
    changed = replace(
        of_file, inner_steps=2, bits=2, topk=5, topk_embeddings=5, outer_lr=0.5, decay=0.5
    )
    assert recipe(config_path=config_path, **options).agreed == replace(changed, divisor="all")
    assert recipe(config_path=config_path, optimizer="distro", lr=1e-3).agreed == Distro(clip=2.0)
    with pytest.raises(
        UsageError, match=r"--inner-optimizer muon: the learning rate in .* is for adamw"
    ) as caught:
        recipe(config_path=config_path, inner_optimizer="muon")
    assert caught.value.fix == "Pass --lr as well, for example --lr 0.02"
    assert recipe(config_path=config_path, inner_optimizer="muon", lr=0.01).agreed == replace(
        of_file, inner_optimizer="muon"
    )
    assert recipe(config_path=config_path, inner_optimizer="adamw").agreed == of_file
    with pytest.raises(UsageError, match=r"rate of 100\.1 with .* of 0\.01 would flip"):
        recipe(config_path=config_path, lr=100.1)


def test_learning_rate_follows_schedule() -> None:
    for steps, warmup in ((100, 5), (7, 2), (10, 9), (1, 0)):
        stable = [
            learning_rate(rates.stable(1.0, warmup, steps), step) for step in range(1, steps + 2)
        ]
        assert max(stable) == 1.0
        assert stable[-1] == 0.0 < min(stable[:-1])
        assert stable[max(warmup, 1) - 1] == 1.0
    cosine = [learning_rate(rates.cosine(1.0, 5, 100, 0.1), step) for step in range(5, 101)]
    assert (cosine[0], cosine[-1]) == (1.0, 0.1)
    assert cosine == sorted(cosine, reverse=True)


def test_batch_and_cold_start_equal_those_of_run(tmp_path: Path) -> None:
    grows = (
        "global_batch_size_end = 9",
        "global_batch_size_end = 15\nglobal_batch_size_warmup_tokens = 1600",
    )
    cold = ("max_seq_len = 16", "max_seq_len = 16\ncold_start_warmup_steps = 4")
    result = recipe(config_path=file(tmp_path, grows, cold))
    assert [result.batch_size(taken) for taken in (0, 50, 100, 1000)] == [9, 12, 15, 15]
    assert [result.rate(step) for step in range(6)] == pytest.approx(
        [0, 0.001, 0.002, 0.003, 0.004, 0.004]
    )


def test_overlap_equals_run_unless_given(tmp_path: Path) -> None:
    at_once = file(tmp_path, ("[config]", "[config]\noverlap = 0"))
    assert [
        recipe(config_path=at_once, overlap=overlap).overlap for overlap in (None, "0", "1")
    ] == [
        0,
        0,
        1,
    ]


def test_recipe_round_trips_json_and_repeats_tiers() -> None:
    result = bare(members=5, tiers="0,2", total_batch=10, shares="1,2,2,2,3", reject=7, overlap="0")
    assert (result.tiers, result.shares, result.overlap, result.levels) == (
        (0, 2, 0, 2, 0),
        (1, 2, 2, 2, 3),
        0,
        3,
    )
    assert bare(tiers="0,1,2").tiers == (0, 1, 2)
    states = [bare(optimizer="sparseloco", inner_state=state).inner_state for state in STATES]
    assert states == [None, None, "reset"]
    assert json.dumps(result.settings.clip) == "1.0"


@pytest.mark.parametrize(
    ("options", "sentence", "fix"),
    [
        ({"model": None}, "--model is missing", "--config-path FILE"),
        ({"data_path": None}, "--data-path is missing", "--config-path FILE"),
        ({"tiers": "0,x"}, "--tiers '0,x' must be whole numbers from 0 to 7", "For example"),
        ({"tiers": ""}, "--tiers '' must be", "For example"),
        ({"tiers": "9"}, "--tiers '9' must be", "For example"),
        (
            {"tiers": "0,1,2", "members": 2},
            "names 3 tiers for 2 members",
            "one tier per member",
        ),
        (
            {"members": 3, "optimizer": "adamw"},
            "--members 3 does not work with adamw",
            "--total-batch",
        ),
        (
            {"tiers": "0,1", "optimizer": "muon"},
            "--members 2 does not work with muon",
            "--total-batch",
        ),
        ({"reject": 5, "optimizer": "adamw"}, "--reject does not work with adamw", "Omit"),
        ({"overlap": "0", "optimizer": "adamw"}, "--overlap does not work with adamw", "Omit"),
        ({"inner_state": "reset"}, "--inner-state does not work with distro", "Omit"),
        (
            {"topk": 9, "optimizer": "muon"},
            "--topk is an option of distro and sparseloco, not of muon",
            "Omit --topk",
        ),
        (
            {"inner_steps": 9, "optimizer": "adamw"},
            "--inner-steps is an option of sparseloco, not of adamw",
            "Omit --inner-steps",
        ),
        (
            {"inner_steps": 9},
            "--inner-steps is an option of sparseloco, not of distro",
            "Omit --inner-steps",
        ),
        ({"mean": "all"}, "--mean is an option of sparseloco", "Omit --mean"),
        (
            {"feedback_decay": 1.0},
            "--feedback-decay 1.0: The optimizer's numbers must be finite",
            "--feedback-decay 0.999",
        ),
        (
            {"feedback_decay": -0.5},
            "--feedback-decay -0.5: The optimizer's numbers must be finite",
            "--feedback-decay 0.999",
        ),
        (
            {"feedback_decay": float("nan")},
            "--feedback-decay nan: The optimizer's numbers must be finite",
            "--feedback-decay 0.999",
        ),
        (
            {"outer_lr": 0.0, "optimizer": "sparseloco"},
            "--outer-lr 0.0: SparseLoCo needs outer_lr above 0",
            "--outer-lr 1.0",
        ),
        (
            {"outer_lr": float("nan"), "optimizer": "sparseloco"},
            "--outer-lr nan: SparseLoCo needs outer_lr",
            "--outer-lr 1.0",
        ),
        (
            {"orthogonal_lr": 64.5, "optimizer": "sparseloco"},
            "--orthogonal-lr 64.5: SparseLoCo needs",
            "--orthogonal-lr 15.0",
        ),
        (
            {"orthogonal_lr": 1.0, "optimizer": "distro"},
            "--orthogonal-lr is an option of sparseloco",
            "Omit --orthogonal-lr",
        ),
        (
            {"config_path": DISTRO_RUN, "optimizer": "sparseloco"},
            "--optimizer sparseloco: the learning",
            "--lr 0.002",
        ),
        ({"members": 33}, "a batch of 32 sequences is too small for 33 members", "--total-batch"),
        ({"members": 2, "shares": "1,2,3"}, "3 shares for 2 members", "one share per member"),
        ({"members": 2, "shares": "1,2"}, "3 sequences, but a step has 32", "--total-batch 3"),
        (
            {"config_path": DEMO, "eval_every": 2},
            "--eval-every needs held-out text",
            "--held-out-path DIR",
        ),
        ({"topk": 4097}, "--topk 4097: Results need", "--topk 8"),
        (
            {"topk_embeddings": 4097},
            "--topk-embeddings 4097: Results need",
            "--topk-embeddings 64",
        ),
        (
            {"members": 2, "shares": "0,32"},
            "--shares '0,32' must be whole numbers from 1",
            "For example",
        ),
        ({"lr": 0.0}, "--lr 0.0 must be above 0", "--lr 1e-3"),
        ({"lr": float("nan")}, "--lr nan must be above 0", "--lr 1e-3"),
        ({"lr": float("inf")}, "--lr inf must be above 0", "--lr 1e-3"),
        ({"lr": 1e39}, "--lr 1e+39 must be above 0 and at most 1000", "--lr 1e-3"),
        (
            {"steps": 10, "warmup_steps": 10},
            "the warm-up of 10 steps must be shorter",
            "--warmup-steps",
        ),
        (
            {"held_out_path": Path("tokens")},
            "--held-out-path tokens overlaps with the training data",
            "--held-out DIR",
        ),
        (
            {"held_out_path": Path("tokens/a.bin")},
            "overlaps with the training data",
            "--held-out DIR",
        ),
        (
            {"config_path": DEMO, "optimizer": "adamw"},
            "--optimizer adamw: the learning rate",
            "--lr 0.002",
        ),
        ({"config_path": DEMO, "tiers": "3"}, "tiers 0 to 2", "matformer"),
        ({"config_path": DEMO, "steps": 74}, "to 0 before the last step (74)", "--lr-schedule"),
        (
            {"config_path": DEMO, "warmup_steps": 1},
            "to 0 before the last step (48)",
            "--lr-schedule",
        ),
        (
            {"config_path": DEMO, "steps": 3},
            "the warm-up of 3 steps must be shorter",
            "--warmup-steps",
        ),
    ],
    ids=str,
)
def test_invalid_recipe_options_are_refused(
    options: dict[str, Any], sentence: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        bare(**options)
    assert sentence in caught.value.message
    assert fix in caught.value.fix


def test_constant_batch_size_is_reported_as_one_number() -> None:
    with pytest.raises(UsageError) as caught:
        bare(members=2, shares="1,2")
    assert caught.value.message.endswith("a step has 32")


def test_block_may_be_sent_whole() -> None:
    agreed = bare(topk=4096, topk_embeddings=4096).agreed
    assert isinstance(agreed, Distro)
    assert (agreed.topk, agreed.topk_embeddings) == (4096, 4096)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('checkpoint = { Local = "MODEL" }', DUMMY, "does not name a checkpoint on this machine"),
        (
            'data_location = { Local = "DATA" }',
            'data_location = { Server = "a:1" }',
            "data location is Server",
        ),
    ],
)
def test_missing_recipe_files_are_named(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    with pytest.raises(Unsuitable, match=sentence) as caught:
        recipe(config_path=file(tmp_path, (old, new)))
    assert caught.value.fix
    recipe(config_path=file(tmp_path, (old, new)), model=Path("m"), data_path=Path("d"))


def test_rate_at_which_decay_flips_weights_is_refused(tmp_path: Path) -> None:
    config_path = file(tmp_path)  # its weight decay is 0.01
    assert recipe(config_path=config_path, lr=100.0).schedule.base_lr == 100
    with pytest.raises(UsageError, match=r"rate of 100\.1 with .* of 0\.01 would flip") as caught:
        recipe(config_path=config_path, lr=100.1)
    assert caught.value.fix == "Pass --lr 100 or less"


def test_invalid_config_error_has_its_line(tmp_path: Path) -> None:
    with pytest.raises(AftermathError, match=r"run\.toml:\d+: total_steps = 0"):
        recipe(config_path=file(tmp_path, ("total_steps = 12", "total_steps = 0")))


def test_sparseloco_defaults_are_warned() -> None:
    """A share makes at most as many inner steps as it has sequences, and delayed results are
    applied too late.
    """
    plenty = bare(optimizer="sparseloco", members=3, total_batch=12)
    assert advice(plenty) == []
    (few,) = advice(bare(optimizer="sparseloco", members=3, total_batch=11))
    assert few.startswith(
        "the smallest share has 3 of the 11 sequences of a step, so its member takes 3 inner "
        "steps instead of 4. "
    )
    (uneven,) = advice(bare(optimizer="sparseloco", members=2, total_batch=12, shares="10,2"))
    assert uneven.startswith("the smallest share has 2 of the 12 ")
    (late,) = advice(bare(optimizer="sparseloco", overlap="1"))
    assert late.startswith("--overlap is 1: ")
    assert advice(bare(optimizer="distro", members=3, total_batch=3)) == []
