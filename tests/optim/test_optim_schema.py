"""The schema: blocks, exact sizes of results, canonical JSON, and refusal of all other bytes."""

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.base.errors import SchemaError
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.config import ModelConfigError
from aftermath.optim.schema import SCHEMA_VERSION, Schema, build_schema
from aftermath.rules.distro import Distro
from aftermath.rules.sparseloco import SparseLoCo

HF: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
DISTRO: dict[str, Any] = {
    "topk": 8,
    "chunk": 64,
    "quantize_1bit": True,
    "decay": 0.999,
    "weight_decay": 0.1,
    "clip": 1.0,
}


def schema(hf: dict[str, Any] | None = None, tiers: int = 3, **changes: Any) -> Schema:
    chosen = DISTRO | changes
    return build_schema(
        HF | (hf or {}), tiers, Distro(**{"topk_embeddings": chosen["topk"]} | chosen)
    )


@given(
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 255),
    st.integers(1, 70000),
    st.integers(1, 4),
)
def test_segments_have_fewest_blocks_and_least_padding(
    prefix: int, hidden: int, chunk: int, topk: int, tiers: int
) -> None:
    hf = {"intermediate_size": prefix << (tiers - 1), "hidden_size": 4 * hidden, "head_dim": 2}
    built = schema(hf, chunk=chunk, topk=min(topk, 65535), tiers=tiers)
    assert [blocks.segment for blocks in built.results.blocks] == list(built.state.segments)
    for blocks in built.results.blocks:
        for size, edge, count in zip(blocks.segment.shape, blocks.edges, blocks.grid, strict=True):
            assert edge <= chunk
            assert count == math.ceil(size / chunk)
            assert (edge - 1) * count < size <= edge * count
        assert 1 <= blocks.topk <= blocks.size <= 65535


def test_blocks_of_odd_sizes_are_padded() -> None:
    # strips of 1376 = 32 * 43, and doubles
    wide = schema({"intermediate_size": 11008, "vocab_size": 257}, tiers=4)
    cut = {
        (b.segment.level, b.segment.shape): (b.edges, b.grid)
        for b in wide.results.blocks
        if b.segment.name.endswith(("gate_proj.weight", "head.weight"))
    }
    assert cut == {
        (3, (257, 128)): ((52, 64), (5, 2)),
        (3, (1376, 128)): ((63, 64), (22, 2)),
        (2, (1376, 128)): ((63, 64), (22, 2)),
        (1, (2752, 128)): ((64, 64), (43, 2)),
        (0, (5504, 128)): ((64, 64), (86, 2)),
    }


@pytest.mark.parametrize("vocabulary", [31_991, 32_001, 32_003, 32_009])
def test_prime_vocabulary_does_not_enlarge_results(vocabulary: int) -> None:
    """With 12 layers of 768, a result takes 0.39 MB for 32,000 words and for 32,003, which is
    prime.
    """
    hf = {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    sizes = [
        built.results.result_bytes()
        for words in (32_000, vocabulary)
        if (built := schema(hf | {"vocab_size": words, "num_key_value_heads": 12}))
    ]
    assert sizes[0] == pytest.approx(0.395e6, rel=0.01)
    assert sizes[0] <= sizes[1] <= sizes[0] * 1.002


def test_embedding_and_head_have_their_own_topk() -> None:
    plain = schema()
    more = schema(topk_embeddings=64)
    names = ("model.embed_tokens.weight", "lm_head.weight")
    embedding_topk, rest = (
        {blocks.topk for blocks in more.results.blocks if (blocks.segment.name in names) == one}
        for one in (True, False)
    )
    assert (embedding_topk, rest) == ({64}, {8})
    # two tensors of 320 x 128
    assert more.results.entries(2) - plain.results.entries(2) == 2 * 5 * 2 * (64 - 8)
    assert [more.results.payload_bytes(level) for level in (0, 1)] == [
        plain.results.payload_bytes(level) for level in (0, 1)
    ]
    assert schema(topk_embeddings=8).hash() == plain.hash()
    assert Schema.from_json(more.to_json()) == more


def test_payload_sizes_are_exact() -> None:
    built = schema().results
    # Level 0 of a layer: gate and up strips of 256 x 128 (8 blocks each), down 128 x 256 (8
    # blocks); 2 layers, 8 kept.
    assert built.entries(0) == 2 * 3 * 8 * 8
    # 48 blocks take 88 bits each for their indices (Elias-Fano). C(4096, 8) and fewer are 2^80.7
    # sets.
    assert built.index_bytes(0) == 48 * 88 // 8
    assert (built.value_bytes(0), built.payload_bytes(0)) == (48, 576)
    assert schema(quantize_1bit=False).results.value_bytes(0) == 4 * 384
    odd = schema({"num_hidden_layers": 1}, topk=3).results
    # 36 sign bits round up once for the level
    assert (odd.entries(1), odd.value_bytes(1)) == (36, 5)


def test_schema_json_is_canonical_and_round_trips() -> None:
    built = schema()
    data = built.to_json()
    assert Schema.from_json(data) == built
    assert built.hash() == hashlib.sha256(data).digest()
    document = json.loads(data)
    assert document.keys() == {"version", "state", "optimizer"}
    assert document["optimizer"]["kind"] == "distro"
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    assert "0.999" not in [v for v in _leaves(json.loads(data)) if isinstance(v, float)]
    assert not any(isinstance(leaf, float) for leaf in _leaves(json.loads(data)))


def _leaves(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return [leaf for child in node.values() for leaf in _leaves(child)]
    return [leaf for child in node for leaf in _leaves(child)] if isinstance(node, list) else [node]


def test_hash_is_equal_from_every_tier_and_redundant_keys() -> None:
    base = schema().hash()
    for tier in range(3):
        assert (
            build_schema(LlamaConfig.from_hf(HF).to_hf(tier), 3, schema().optimizer).hash() == base
        )
    assert (
        schema({"rope_theta": 10000, "torch_dtype": "bfloat16", "eos_token_id": 3}).hash() == base
    )


@pytest.mark.parametrize(
    "change",
    [
        {"topk": 9},
        {"topk_embeddings": 9},
        {"chunk": 32},
        {"tiers": 2},
        {"quantize_1bit": False},
        {"decay": 0.99},
        {"weight_decay": 0.0},
        {"clip": None},
        {"hf": {"rope_theta": 5e5}},
        {"hf": {"rms_norm_eps": 1e-5}},
        {"hf": {"num_attention_heads": 2}},
    ],
)
def test_hash_changes_with_every_arithmetic_setting(change: dict[str, Any]) -> None:
    assert schema(**change).hash() != schema().hash()


@pytest.mark.parametrize(
    "forge",
    [
        lambda d: d.replace(b'"topk":8', b'"topk":9', 1),
        lambda d: d.replace(b'"topk":8', b'"topk":7'),
        lambda d: d.replace(b'"edges":[64,64]', b'"edges":[32,64]', 1),
        lambda d: d.replace(b'"values":"sign"', b'"values":"float32"'),
        lambda d: d.replace(b'"kind":"distro"', b'"kind":"sgd"'),
        lambda d: d.replace(b'"version":%d' % SCHEMA_VERSION, b'"version":8'),
        lambda d: d.replace(b'"0.999"', b'"0.9990"'),
        lambda d: d.replace(b'"0.999"', b'"NaN"'),
        lambda d: d.replace(b'"0.999"', b'"0.99x"'),
        lambda d: d.replace(b'"stop":320', b'"stop":321', 1),
        lambda d: d.replace(b'"hidden_size":128', b'"hidden_size":1000000000'),
        lambda d: d.replace(b'"num_hidden_layers":2', b'"num_hidden_layers":100000000'),
        lambda d: d.replace(b'"vocab_size":320', b'"vocab_size":"320"'),
        lambda d: d.replace(b'"widths":[512,256,128]', b'"widths":[512,256,128,64,32,16,8,4,2]'),
        lambda d: d.replace(b'"tie_word_embeddings":false,', b""),
        lambda d: d + b" ",
        lambda d: d[:-1],
        lambda d: b'{"a":' * 100_000,
        lambda d: b"[" * 100_000,
        lambda d: b"\xff" + d,
        lambda d: b"",
    ],
)
def test_noncanonical_schema_is_refused(forge: Any) -> None:
    data = schema().to_json()
    forged = forge(data)
    assert forged != data
    with pytest.raises((SchemaError, ModelConfigError)):
        Schema.from_json(forged)


def test_oversized_schema_is_refused_before_parsing() -> None:
    with pytest.raises(SchemaError, match="exceeds the limit"):
        Schema.from_json(schema().to_json(), max_bytes=100)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"decay": -0.5},
            "compression_decay must be a finite[^\n]*\nSet it in .model.LLM.optimizer.Distro.",
        ),
        ({"topk": 0}, "compression_topk must be from 1"),
        ({"topk_embeddings": 0}, "compression_topk_embeddings must be from 1"),
        ({"chunk": 70000}, "compression_chunk must be from 1"),
        ({"chunk": 256, "hf": {"hidden_size": 256, "intermediate_size": 1024}}, "at most 255"),
        ({"decay": float("nan")}, "decay must be a finite"),
        ({"decay": 1.5}, "below 1, not 1.5"),
        ({"clip": -1.0}, "clip_grad_norm must be"),
    ],
)
def test_distro_settings_out_of_range_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        schema(**change)


# --- SparseLoCo -----------------------------------------------------------------------------------


def inner(**changes: Any) -> Schema:
    return build_schema(HF, 3, SparseLoCo(**changes))


CHANGES: list[dict[str, Any]] = [
    {"inner_steps": 5},
    {"inner_optimizer": "muon"},
    {"topk": 33},
    {"topk_embeddings": 33},
    {"chunk": 32},
    {"bits": 1},
    {"decay": 0.9},
    {"outer_lr": 0.5},
    {"divisor": "all"},
    {"weight_decay": 0.1},
    {"clip": None},
]


@pytest.mark.parametrize("change", [{}, *CHANGES], ids=str)
def test_sparseloco_settings_round_trip_and_change_the_hash(change: dict[str, Any]) -> None:
    built = inner(**change)
    data = built.to_json()
    assert Schema.from_json(data) == built
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    assert not any(isinstance(leaf, float) for leaf in _leaves(json.loads(data)))
    assert json.loads(data)["optimizer"]["kind"] == "sparseloco"
    assert json.loads(data)["state"] == json.loads(schema().to_json())["state"]
    assert (built.hash() == inner().hash()) == (not change)
    assert inner(clip=0.0) == inner(clip=None)
    assert inner(clip=1, outer_lr=1, decay=1).to_json() == inner(decay=1.0).to_json()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"inner_steps":4', '"inner_steps":5.0'),
        ('"inner_optimizer":"adamw"', '"inner_optimizer":"sgd"'),
        ('"divisor":"keepers"', '"divisor":"none"'),
        ('"divisor":"keepers"', '"divisor":0'),
        ('"bits":2', '"bits":3'),
        ('"values":"2 bits"', '"values":"1 bit"'),
        ('"transform":"none"', '"transform":"dct"'),
        ('"kind":"sparseloco"', '"kind":"distro"'),
        ('"outer_lr":"1.0"', '"outer_lr":"1"'),
        ('"outer_lr":"1.0"', '"outer_lr":"inf"'),
        ('"outer_lr":"1.0"', '"outer_lr":1.0'),
        ('"orthogonal_lr":"0.0"', '"orthogonal_lr":"-1.0"'),
    ],
)
def test_noncanonical_sparseloco_schema_is_refused(old: str, new: str) -> None:
    data = inner().to_json()
    assert old.encode() in data
    with pytest.raises(SchemaError):
        Schema.from_json(data.replace(old.encode(), new.encode()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inner_steps": 0}, "inner_steps must be from 1 to 1024"),
        ({"inner_steps": 1025}, "inner_steps must be from 1 to 1024"),
        ({"inner_optimizer": "sgd"}, "inner_optimizer must be adamw or muon"),
        ({"topk": 0}, "topk must be from 1"),
        ({"chunk": 70000}, "chunk must be from 1"),
        ({"bits": 3}, "value_bits must be from 1 to 2"),
        ({"decay": 1.5}, "decay must be a finite number at least 0 and below 1"),
        ({"outer_lr": 0.0}, "outer_lr must be a finite number above 0"),
        ({"outer_lr": 65.0}, "outer_lr must be a finite number above 0 and at most 64"),
        ({"orthogonal_lr": -0.5}, "orthogonal_lr must be"),
        ({"orthogonal_lr": 65.0}, "orthogonal_lr must be from 0 to 64"),
        ({"outer_lr": float("nan")}, "outer_lr must be a finite"),
        ({"divisor": "none"}, "divisor must be keepers or all or root"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite"),
        ({"clip": float("inf")}, "clip_grad_norm must be a finite"),
    ],
)
def test_sparseloco_settings_out_of_range_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        SparseLoCo(**change)


def test_payload_sizes_on_the_lattice_are_exact() -> None:
    """Level 0 has 6 strips of 8 blocks: 288 bits of indices each, 6 bits per block, and the bits of
    all 32 entries.
    """
    assert inner().results.payload_bytes(0) == 48 * 288 // 8 + 36 + 2 * (48 * 32 // 8)
    assert inner(bits=1).results.payload_bytes(0) == 48 * 288 // 8 + 36 + 48 * 32 // 8


def test_payload_of_full_blocks_has_the_size_of_its_digits() -> None:
    """48 blocks of 4,096 numbers: three digits in 7 bits or five in 8, and an exponent of 6 bits
    per block.
    """
    whole = {"topk": 4096, "topk_embeddings": 4096}
    assert inner(**whole).results.payload_bytes(0) == 36 + 48 * 4096 // 3 * 7 // 8
    assert inner(**whole, bits=1).results.payload_bytes(0) == 36 + -(-48 * 4096 // 5)
    assert inner(**whole).results.index_bytes(0) == 0
