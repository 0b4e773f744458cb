"""Segments: views and bytes of a replica's parts, and level hashes that replicas of different tiers
share.
"""

import hashlib

import numpy as np
import pytest
import torch
from blake3 import blake3

from aftermath.model import segments
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.initial_weights import init_weights
from aftermath.model.schema import StateSchema, state_schema
from aftermath.model.segments import (
    SegmentError,
    level_hash,
    level_root,
    segment_bytes,
    view,
    write_segment,
)

torch.set_num_threads(1)

HF = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
CONFIG = LlamaConfig.from_hf(HF)


@pytest.fixture(scope="module")
def schema() -> StateSchema:
    return state_schema(HF, 3)


def test_segments_cover_every_parameter_exactly_once(schema: StateSchema) -> None:
    for tier in range(3):
        params = {name: torch.zeros(shape) for name, shape in CONFIG.parameter_shapes(tier).items()}
        for segment in schema.held_by(tier):
            view(params, segment).add_(1)
        assert all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in params.values())
        assert sum(tensor.numel() for tensor in params.values()) == schema.parameters(tier)


def test_replicas_of_other_tiers_share_level_hashes(schema: StateSchema) -> None:
    replicas = [init_weights(CONFIG, 3, tier) for tier in range(3)]
    for level in range(3):
        assert len({level_hash(replicas[tier], schema, level) for tier in range(level + 1)}) == 1
    assert len({level_hash(replicas[0], schema, level) for level in range(3)}) == 3


def test_level_hash_depends_on_each_bit_of_its_level_only(schema: StateSchema) -> None:
    params = init_weights(CONFIG, 3)
    before = [level_hash(params, schema, level) for level in range(3)]
    name = "model.layers.1.mlp.down_proj.weight"
    params[name][3, 47] = torch.nextafter(params[name][3, 47], torch.tensor(1.0))
    after = [level_hash(params, schema, level) for level in range(3)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, True]


def test_level_hash_is_root_of_little_endian_segment_digests(
    schema: StateSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = init_weights(CONFIG, 3)
    root = hashlib.sha256(b"aftermath level 1\0")
    digests = []
    for segment in schema.of_level(1):
        values = params[segment.name].numpy()
        cut = (slice(None),) * (segment.dim or 0) + (slice(12, 24),)
        digests.append(blake3(np.ascontiguousarray(values[cut]).astype("<f4").tobytes()).digest())
        root.update(segment.name.encode() + b"\0" + digests[-1])
    assert level_hash(params, schema, 1) == root.digest() == level_root(schema, 1, digests)
    monkeypatch.setattr(segments, "_COPY_BYTES", 100)  # many small copies give the same stream
    assert level_hash(params, schema, 1) == root.digest()
    with pytest.raises(ValueError):
        level_root(schema, 1, digests[1:])


def test_written_segments_rebuild_replica(schema: StateSchema) -> None:
    source = init_weights(CONFIG, 3)
    target = {name: torch.zeros(shape) for name, shape in CONFIG.parameter_shapes(1).items()}
    for segment in schema.held_by(1):
        write_segment(target, segment, segment_bytes(source, segment))
    assert all(
        torch.equal(target[name], tensor) for name, tensor in init_weights(CONFIG, 3, 1).items()
    )


def test_segments_are_writable_to_gradient_parameters(schema: StateSchema) -> None:
    segment = schema.of_level(0)[0]
    params = {
        segment.name: torch.nn.Parameter(torch.zeros(CONFIG.parameter_shapes()[segment.name]))
    }
    write_segment(params, segment, np.ones(segment.shape, "<f4").tobytes())
    assert params[segment.name].sum().item() == segment.numel


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nonfinite_segment_is_refused_and_changes_nothing(
    schema: StateSchema, poison: float
) -> None:
    params = init_weights(CONFIG, 3)
    segment = schema.of_level(1)[0]
    values = np.zeros(segment.shape, "<f4")
    values.flat[5] = poison
    with pytest.raises(SegmentError, match="not finite"):
        write_segment(params, segment, values.tobytes())
    assert torch.equal(view(params, segment), view(init_weights(CONFIG, 3), segment))


@pytest.mark.parametrize("change", [-4, -1, 1, 4])
def test_segment_of_wrong_size_is_refused(schema: StateSchema, change: int) -> None:
    params = init_weights(CONFIG, 3)
    segment = schema.of_level(1)[0]
    with pytest.raises(SegmentError, match="takes"):
        write_segment(params, segment, bytes(segment.numel * 4 + change))


def test_unheld_level_is_named(schema: StateSchema) -> None:
    with pytest.raises(SegmentError, match="does not hold level 0"):
        view(init_weights(CONFIG, 3, 1), schema.of_level(0)[0])
    with pytest.raises(SegmentError, match="no tensor"):
        level_hash({}, schema, 2)
