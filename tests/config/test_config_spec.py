"""The training spec: canonical bytes, and everything that a client refuses when it reads one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aftermath.base.errors import Unsuitable
from aftermath.config.document import RunConfig, parse_as
from aftermath.config.spec import Spec, read_spec, spec_hash
from aftermath.rules.limits import SPEC_BYTES
from aftermath.rules.sparseloco import SparseLoCo
from config.config_cases import SEED
from programs.scenario import SPEC


def spec_with(change: tuple[str, ...], value: Any) -> bytes:
    """Return the canonical bytes of a valid spec in which the key at this path has this value."""
    document = json.loads(SPEC)
    table = document
    for name in change[:-1]:
        table = table[name]
    table[change[-1]] = value
    return json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def test_spec_of_config_encodes_and_decodes_to_itself() -> None:
    spec = parse_as(SEED, "config.toml", RunConfig).llm.spec
    encoded = spec.encode()
    assert json.loads(encoded)["optimizer"]["Distro"]["compression_topk"] == 8
    assert b" " not in encoded
    assert Spec.decode(encoded) == spec
    assert Spec.decode(encoded).encode() == encoded
    assert read_spec(encoded, spec_hash(encoded)).values() == spec.values()


def test_spec_of_config_has_value_for_every_default() -> None:
    """A key is absent only if its absence is the setting."""
    text = SEED[: SEED.index("[model.LLM.optimizer.Distro]")] + "[model.LLM.optimizer.SparseLoCo]\n"
    spec = parse_as(text, "config.toml", RunConfig).llm.spec
    written = json.loads(spec.encode())["optimizer"]["SparseLoCo"]
    absent = SparseLoCo.defaults().keys() - set(written)
    assert absent == {"compression_topk_embeddings", "outer_momentum"}


def test_spec_without_key_with_default_is_read() -> None:
    """A spec that an earlier version wrote lacks the keys that came later."""
    assert "warmup_init_lr" in json.loads(SPEC)["lr_schedule"]["Constant"]
    earlier = spec_with(("lr_schedule", "Constant"), {"base_lr": 0.5})
    assert Spec.decode(earlier).lr_schedule.Constant is not None


DISTRO = ("optimizer", "Distro")
LOCAL = ("data_location", "Local")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * SPEC_BYTES, "nests more than"),
        (b"[]", "does not support"),
        (SPEC + b" ", "not canonical"),
        (SPEC.replace(b'"data_hash":""', b'"data_hash":"","data_hash":""'), "not canonical"),
        (spec_with(("architecture",), "HfMamba"), 'architecture.*"?HfMamba'),
        (spec_with(("data_type",), "Ranking"), "data_type.*Ranking"),
        (spec_with(("optimizer",), {"Sophia": {}}), "Sophia is not a known key"),
        (spec_with(("data_location",), {"Torrent": {"magnet": "x"}}), "Torrent is not a known key"),
        (spec_with(("lr_schedule",), {"Cyclic": {}}), "Cyclic is not a known key"),
        (spec_with((*DISTRO, "nesterov"), True), "nesterov is not a known key"),
        (spec_with(("extra",), 1), r"extra\] is not a known key"),
        (spec_with((*DISTRO, "compression_chunk"), 4097), "compression_chunk between 1 and 4096"),
        (spec_with((*DISTRO, "compression_topk"), 4097), "compression_topk between"),
        (spec_with((*DISTRO, "compression_decay"), 1.0), "must be below 1"),
        (spec_with((*DISTRO, "compression_topk"), "8"), "must be a whole number"),
        (spec_with(("lr_schedule", "Constant", "base_lr"), 0.0), "base_lr above 0"),
        (spec_with((*LOCAL, "path"), "d" * 193), "1 to 192 bytes"),
        (spec_with((*LOCAL, "path"), ""), "1 to 192 bytes"),
    ],
)
def test_decode_of_invalid_spec_names_mistake(data: bytes, message: str) -> None:
    with pytest.raises(Unsuitable, match=message) as caught:
        Spec.decode(data)
    assert len(caught.value.message) < 600
    assert "update-config" in caught.value.fix


def test_spec_of_longest_locations_fits_account() -> None:
    """JSON writes a control character in six bytes."""
    text = SEED.replace("fineweb-edu-tokenized-llama2", "\\u0001" * 192)
    text = text.replace("nous-pretraining-public-us", "\\u0001" * 192)
    spec = parse_as(text, "config.toml", RunConfig).llm.spec
    assert len(spec.encode()) < SPEC_BYTES
    assert Spec.decode(spec.encode()) == spec


@pytest.mark.parametrize("data_hash", ["AB" * 32, "ab" * 31, "x" * 64])
def test_spec_with_malformed_data_hash_is_refused(data_hash: str) -> None:
    with pytest.raises(Unsuitable, match=r"data_hash\] is .* must be 64 lowercase hex"):
        Spec.decode(spec_with(("data_hash",), data_hash))
