"""What `update` refuses: every rule of config, model, schema, metadata and progress, one error each."""

from typing import Any

import pytest
from solders.pubkey import Pubkey

from aftermath.chain import views
from programs.harness import AUTHORIZER, PROGRAM, World, idl
from programs.scenario import CONFIG, SCHEMA, Scenario, bits, model_params

CONFIG_FAULTS = [
    ("EpochLengthMissing", {"rounds_per_epoch": 0, "epoch_time": 0}),
    ("WarmupTooLong", {"epoch_time": 30, "warmup_time": 30}),
    ("CooldownTimeZero", {"cooldown_time": 0}),
    ("RoundTrainTimeZero", {"max_round_train_time": 0}),
    ("RoundTrainTimeTooLong", {"epoch_time": 60, "max_round_train_time": 60}),
    ("RoundWitnessTimeZero", {"round_witness_time": 0}),
    ("MinClientsZero", {"min_clients": 0}),
    ("InitMinClientsOutOfRange", {"min_clients": 4, "init_min_clients": 3}),
    ("InitMinClientsOutOfRange", {"init_min_clients": 257}),
    ("WitnessNodesTooMany", {"witness_nodes": 33, "min_clients": 33, "init_min_clients": 33}),
    ("WitnessNodesAboveMinClients", {"witness_nodes": 3, "min_clients": 2}),
    ("BatchSizeZero", {"global_batch_size_start": 0}),
    ("BatchSizeShrinks", {"global_batch_size_start": 49}),
    ("BatchWarmupTooLong", {"global_batch_size_warmup_tokens": 2**47 + 1}),
    ("TotalStepsZero", {"total_steps": 0}),
    ("VerificationPercentTooLarge", {"verification_percent": 101}),
    ("ExtraTimeZero", {"waiting_for_members_extra_time": 0}),
    ("OverlapInvalid", {"overlap": 2}),
    ("OverlapInvalid", {"overlap": 255}),
]


@pytest.fixture(scope="module")
def created() -> Scenario:
    """A created run for tests that change nothing."""
    scenario = Scenario(World())
    scenario.create().ok()
    return scenario


@pytest.mark.parametrize(("name", "change"), CONFIG_FAULTS)
def test_configs_that_break_a_rule_are_refused(created: Scenario, name: str, change: dict[str, int]) -> None:
    created.update(config={**CONFIG, **change}).refused(name)


def _model(part: str, **change: Any) -> dict[str, Any]:
    return model_params(**{part: model_params()[part] | change})


def _sparseloco(**change: Any) -> dict[str, Any]:
    valid = {"kind": 3, "quantize_1bit": 0, "outer_lr_bits": bits(1.0), "inner_steps": 4, "value_bits": 2}
    return _model("optimizer", **valid | change)


MODEL_FAULTS = [
    ("UnknownArchitecture", model_params(architecture=4)),
    ("UnknownDataType", model_params(data_type=2)),
    ("MaxSeqLenOutOfRange", model_params(max_seq_len=0)),
    ("MaxSeqLenOutOfRange", model_params(max_seq_len=2**24 + 1)),
    ("UnknownCheckpoint", _model("checkpoint", kind=0)),
    ("UnknownCheckpoint", _model("checkpoint", kind=4)),
    ("RepoMissing", _model("checkpoint", repo="")),
    ("RepoTooLong", _model("checkpoint", repo="r" * 193)),
    ("RevisionTooLong", _model("checkpoint", revision="r" * 65)),
    ("UnknownDataLocation", _model("data_location", kind=8)),
    ("TokenBytesInvalid", _model("data_location", token_bytes=3)),
    ("UnknownShuffle", _model("data_location", shuffle=2)),
    ("LocationLength", _model("data_location", primary="")),
    ("LocationLength", _model("data_location", primary="p" * 193)),
    ("LocationFolderTooLong", _model("data_location", secondary="s" * 193)),
    ("NumFilesZero", _model("data_location", kind=4)),
    ("UnknownSchedule", _model("lr_schedule", kind=4)),
    ("LearningRateInvalid", _model("lr_schedule", base_lr_bits=0)),
    ("LearningRateInvalid", _model("lr_schedule", final_lr_bits=bits(-1.0))),
    ("LearningRateInvalid", _model("lr_schedule", final_lr_bits=bits(float("nan")))),
    ("LearningRateInvalid", _model("lr_schedule", warmup_init_lr_bits=bits(float("inf")))),
    ("ScheduleTooShort", _model("lr_schedule", total_steps=10)),
    ("UnknownOptimizer", _model("optimizer", kind=0)),
    ("OptimizerNumberInvalid", _model("optimizer", compression_decay_bits=bits(1.0))),
    ("OptimizerNumberInvalid", _model("optimizer", clip_grad_norm_bits=bits(float("nan")))),
    ("ChunkOutOfRange", _model("optimizer", compression_chunk=0)),
    ("ChunkOutOfRange", _model("optimizer", compression_chunk=4097)),
    ("TopkOutOfRange", _model("optimizer", compression_topk=0)),
    ("TopkOutOfRange", _model("optimizer", compression_chunk=2, compression_topk=5)),
    ("TopkOutOfRange", _model("optimizer", compression_topk_embeddings=4097)),
    ("QuantizeInvalid", _model("optimizer", quantize_1bit=2)),
    ("UnknownOptimizer", _model("optimizer", kind=4)),
    ("UnknownOptimizer", _model("optimizer", kind=256 + 2)),
    ("ChunkOutOfRange", _sparseloco(compression_chunk=0)),
    ("TopkOutOfRange", _sparseloco(compression_topk=0)),
    ("TopkOutOfRange", _sparseloco(compression_topk_embeddings=4097)),
    ("OptimizerNumberInvalid", _sparseloco(compression_decay_bits=bits(1.0))),
    ("InnerStepsOutOfRange", _sparseloco(inner_steps=0)),
    ("InnerStepsOutOfRange", _sparseloco(inner_steps=1025)),
    ("OuterRateOutOfRange", _sparseloco(outer_lr_bits=0)),
    ("OuterRateOutOfRange", _sparseloco(orthogonal_lr_bits=bits(64.0) + 1)),
    ("OuterRateOutOfRange", _sparseloco(orthogonal_lr_bits=bits(-0.0))),
    ("OuterRateOutOfRange", _sparseloco(outer_lr_bits=bits(64.0) + 1)),
    ("OuterRateOutOfRange", _sparseloco(outer_lr_bits=bits(-0.0))),
    ("OuterRateOutOfRange", _sparseloco(outer_lr_bits=bits(float("inf")))),
    ("ValueBitsInvalid", _sparseloco(value_bits=0)),
    ("ValueBitsInvalid", _sparseloco(value_bits=3)),
    ("UnknownInnerOptimizer", _sparseloco(inner_optimizer=2)),
    ("UnknownDivisor", _sparseloco(divisor=3)),
]


@pytest.mark.parametrize(("name", "model"), MODEL_FAULTS, ids=lambda value: value if isinstance(value, str) else "")
def test_models_that_break_a_rule_are_refused(created: Scenario, name: str, model: dict[str, Any]) -> None:
    created.update(model=model).refused(name)


@pytest.mark.parametrize(
    "model",
    [
        _sparseloco(),
        _sparseloco(inner_steps=1, outer_lr_bits=1, value_bits=1, inner_optimizer=1, divisor=2),
        _sparseloco(inner_steps=1024, outer_lr_bits=bits(64.0), orthogonal_lr_bits=bits(64.0), divisor=1),
        _model("optimizer", inner_steps=0, outer_lr_bits=0, value_bits=0),  # of no meaning to DisTrO
    ],
)
def test_every_number_that_sparseloco_can_have_is_stored(world: World, model: dict[str, Any]) -> None:
    scenario = Scenario(world)
    scenario.create().ok()
    scenario.update(model=model).ok()
    stored = views.model_account().read(world.data(scenario.accounts["model"]))["optimizer"][0]
    assert {name: int(stored[name]) for name in model["optimizer"]} == model["optimizer"]


def _about(**change: Any) -> dict[str, Any]:
    return {"name": "", "description": "", "num_parameters": 0, "vocab_size": 0} | change


def _cold(**config: int) -> dict[str, Any]:
    return {"config": {**CONFIG, **config}, "model": model_params(cold_start_warmup_steps=5)}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("TiersOutOfRange", {"schema": {"hash": SCHEMA, "tier_widths": []}}),
        ("TiersOutOfRange", {"schema": {"hash": SCHEMA, "tier_widths": list(range(9, 0, -1))}}),
        ("TierWidthsInvalid", {"schema": {"hash": SCHEMA, "tier_widths": [8, 8]}}),
        ("TierWidthsInvalid", {"schema": {"hash": SCHEMA, "tier_widths": [8, 0]}}),
        ("SchemaHashZero", {"schema": {"hash": bytes(32), "tier_widths": [8]}}),
        ("StepZero", {"progress": {"epoch": 0, "step": 0, "data_index": 0}}),
        ("Overflow", {"progress": {"epoch": 2**31 + 1, "step": 1, "data_index": 0}}),
        ("Overflow", {"progress": {"epoch": 0, "step": 2**31 + 1, "data_index": 0}}),
        ("Overflow", {"progress": {"epoch": 0, "step": 1, "data_index": 2**62 + 1}}),
        ("NameTooLong", {"metadata": {"name": "n" * 65, "description": "", "num_parameters": 0, "vocab_size": 0}}),
        (
            "DescriptionTooLong",
            {"metadata": {"name": "", "description": "d" * 281, "num_parameters": 0, "vocab_size": 0}},
        ),
        (
            "ColdStartTooLong",
            {"config": {**CONFIG, "rounds_per_epoch": 4}, "model": model_params(cold_start_warmup_steps=5)},
        ),
        (
            "ColdStartTooLong",
            {
                "config": {**CONFIG, "rounds_per_epoch": 0, "epoch_time": 129},
                "model": model_params(cold_start_warmup_steps=5),
            },
        ),
    ],
)
def test_other_parts_that_break_a_rule_are_refused(created: Scenario, name: str, parts: dict[str, Any]) -> None:
    created.update(**parts).refused(name)


@pytest.mark.parametrize("program", [PROGRAM, AUTHORIZER])
def test_every_error_says_what_to_do(program: Pubkey) -> None:
    errors = idl(program)["errors"]
    assert errors
    for error in errors:
        assert error["msg"].endswith("."), error
        assert len(error["msg"].split()) >= 5, error
