"""Test what `update` refuses: each rule of config, model, schema, metadata and progress has its own
error.
"""

from hashlib import sha256
from typing import Any

import pytest
from solders.pubkey import Pubkey

from aftermath.chain import views
from programs.harness import AUTHORIZER, PROGRAM, World, idl
from programs.scenario import CONFIG, SCHEMA, SPEC, Scenario, model_params

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
    """Return a created run for tests that change nothing."""
    scenario = Scenario(World())
    scenario.create().ok()
    scenario.write_spec().ok()
    return scenario


@pytest.mark.parametrize(("name", "change"), CONFIG_FAULTS)
def test_invalid_configs_are_refused(created: Scenario, name: str, change: dict[str, int]) -> None:
    created.update(config={**CONFIG, **change}).refused(name)


def _checkpoint(**change: Any) -> dict[str, Any]:
    return model_params(checkpoint=model_params()["checkpoint"] | change)


MODEL_FAULTS = [
    ("MaxSeqLenOutOfRange", model_params(max_seq_len=0)),
    ("MaxSeqLenOutOfRange", model_params(max_seq_len=2**24 + 1)),
    ("UnknownCheckpoint", _checkpoint(kind=0)),
    ("UnknownCheckpoint", _checkpoint(kind=4)),
    ("RepoMissing", _checkpoint(repo="")),
    ("RepoTooLong", _checkpoint(repo="r" * 193)),
    ("RevisionTooLong", _checkpoint(revision="r" * 65)),
    ("SpecLength", model_params(spec={"len": 0, "hash": sha256(b"").digest()})),
    ("SpecLength", model_params(b"x" * 4097)),
    ("SpecMismatch", model_params(SPEC + b" ")),
    ("SpecMismatch", model_params(spec={"len": len(SPEC), "hash": bytes(32)})),
]


@pytest.mark.parametrize(
    ("name", "model"), MODEL_FAULTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_invalid_models_are_refused(created: Scenario, name: str, model: dict[str, Any]) -> None:
    created.update(model=model).refused(name)


def test_partial_spec_is_valid_only_when_complete(world: World) -> None:
    """A run whose spec is being written has no spec and cannot start. Its other parts stay."""
    scenario = Scenario(world)
    scenario.create().ok()
    scenario.configure().ok()
    longest = SPEC.replace(b'"path":"data"', b'"path":"' + b"d" * (4096 - len(SPEC) + 4) + b'"')
    assert len(longest) == 4096
    for start in range(0, 4096, 800):
        scenario.owner("write_spec", start, longest[start : start + 800]).ok()
        assert (scenario.model.spec_hash, scenario.model.configured) == (bytes(32), False)
        scenario.owner("set_paused", False).refused("SpecMissing")
        scenario.update(model=model_params()).refused("SpecMismatch")
    scenario.update(model=model_params(longest)).ok()
    stored = views.model_account().read(world.data(scenario.accounts["model"]))[0]
    assert (stored["spec_len"], stored["spec"].tobytes()) == (4096, longest)
    assert stored["spec_hash"].tobytes() == sha256(longest).digest()


@pytest.mark.parametrize("offset", [4096 - len(SPEC) + 1, 4097, 2**16 - 1])
def test_write_spec_beyond_its_place_is_refused(created: Scenario, offset: int) -> None:
    created.owner("write_spec", offset, SPEC).refused("SpecLength")


def test_write_spec_of_running_run_is_refused(world: World) -> None:
    Scenario(world).start().write_spec().refused("NotHalted")


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
        (
            "NameTooLong",
            {
                "metadata": {
                    "name": "n" * 65,
                    "description": "",
                    "num_parameters": 0,
                    "vocab_size": 0,
                }
            },
        ),
        (
            "DescriptionTooLong",
            {
                "metadata": {
                    "name": "",
                    "description": "d" * 281,
                    "num_parameters": 0,
                    "vocab_size": 0,
                }
            },
        ),
        (
            "ColdStartTooLong",
            {
                "config": {**CONFIG, "rounds_per_epoch": 4},
                "model": model_params(cold_start_warmup_steps=5),
            },
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
def test_invalid_other_parts_are_refused(
    created: Scenario, name: str, parts: dict[str, Any]
) -> None:
    created.update(**parts).refused(name)


@pytest.mark.parametrize("program", [PROGRAM, AUTHORIZER])
def test_every_error_message_is_a_sentence(program: Pubkey) -> None:
    errors = idl(program)["errors"]
    assert errors
    for error in errors:
        assert error["msg"].endswith("."), error
        assert len(error["msg"].split()) >= 5, error
