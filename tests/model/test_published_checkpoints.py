"""Checkpoints as DeepSeek publishes them: fp8 weights with block scales, and layers outside the
model.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.checkpoint import load
from aftermath.model.config import ModelConfigError
from aftermath.model.export import export_tiers
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import CheckpointError
from aftermath.model.save_checkpoint import write_checkpoint

V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 48,
    "hidden_size": 36,
    "intermediate_size": 64,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "initializer_range": 0.5,
}
BLOCK = (16, 8)
ROWS, COLUMNS = BLOCK
QUANTIZED = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [16, 8],
}
CONFIG = config_of(V3)
GATE = "model.layers.1.mlp.experts.3.gate_proj.weight"


def in_fp8(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return fp8 weights and scales. The largest number of each block is the largest fp8 value."""
    rows, columns = tensor.shape
    weights = torch.empty(tensor.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // ROWS), -(-columns // COLUMNS))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            own = slice(i * ROWS, (i + 1) * ROWS), slice(j * COLUMNS, (j + 1) * COLUMNS)
            scales[i, j] = tensor[own].abs().max() / 448
            weights[own] = (tensor[own] / scales[i, j]).to(torch.float8_e4m3fn)
    return weights, scales


def meant(weights: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers that fp8 weights and scales stand for, computed one by one."""
    out = weights.float()
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] *= scales[i // ROWS, j // COLUMNS]
    return out


@pytest.fixture(scope="module")
def quantized() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a published file's tensors and the numbers that they stand for. Tables and gates are
    plain.
    """
    params = init_weights(CONFIG, 1)
    filed = dict(params)
    expected = dict(params)
    for name, tensor in params.items():
        if tensor.dim() == 2 and "_proj" in name:
            filed[name], filed[name + "_scale_inv"] = in_fp8(tensor)
            expected[name] = meant(filed[name], filed[name + "_scale_inv"])
            torch.testing.assert_close(expected[name], tensor, rtol=0.07, atol=0.01)
    return filed, expected


@pytest.fixture
def published(
    tmp_path: Path, quantized: tuple[dict[str, Tensor], dict[str, Tensor]]
) -> tuple[Path, dict[str, Tensor], dict[str, Tensor]]:
    """Return a directory with that file, its tensors, and the numbers that they stand for."""
    filed, expected = quantized
    place = tmp_path / "m"
    place.mkdir()
    (place / "config.json").write_text(
        json.dumps(CONFIG.to_hf() | {"quantization_config": QUANTIZED})
    )
    save_file(filed, place / "model.safetensors")
    return place, dict(filed), dict(expected)


def same(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return tensors.keys() == expected.keys() and all(
        tensors[name].dtype == torch.float32 and torch.equal(tensors[name], tensor)
        for name, tensor in expected.items()
    )


def test_fp8_weights_equal_numbers_times_block_scale(
    published: tuple[Path, dict[str, Tensor], dict[str, Tensor]],
) -> None:
    place, _, expected = published
    assert config_of(json.loads((place / "config.json").read_text())) == CONFIG
    assert same(load(place, 0), expected)
    for tier in (1, 2, 3):
        cut = {
            name: expected[name][tuple(map(slice, shape))]
            for name, shape in CONFIG.parameter_shapes(tier).items()
        }
        assert same(load(place, tier), cut)
    export_tiers(place, [1])
    tier = place.with_name("m-tier1")
    assert "quantization_config" not in json.loads((tier / "config.json").read_text())
    assert same(load(tier, 1), load(place, 1, "universal"))


def test_fp8_scales_may_be_in_another_file(
    published: tuple[Path, dict[str, Tensor], dict[str, Tensor]],
) -> None:
    place, filed, expected = published
    (place / "model.safetensors").unlink()
    parts = {"a.safetensors": {}, "b.safetensors": {}}
    for name, tensor in filed.items():
        parts["a.safetensors" if name.endswith("_scale_inv") else "b.safetensors"][name] = tensor
    for name, tensors in parts.items():
        save_file(tensors, place / name)
    index = {"weight_map": {key: name for name, tensors in parts.items() for key in tensors}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    assert same(load(place, 0), expected)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {GATE + "_scale_inv": None},
            f"{GATE} is of type F8_E4M3, which is not supported without {GATE}_scale_inv",
        ),
        (
            {GATE + "_scale_inv": torch.ones(2, 4)},
            r"_scale_inv is F32 \(2, 4\), but config.json requires F32 \(2, 5\)",
        ),
        ({GATE + "_scale_inv": torch.ones(2, 5, dtype=torch.int32)}, r"_scale_inv is I32 \(2, 5\)"),
        ({GATE + "_scale_inv": torch.full((2, 5), -1.0)}, f"{GATE}_scale_inv has a negative scale"),
        (
            {GATE + "_scale_inv": torch.full((2, 5), torch.nan)},
            f"{GATE} has a value that is not finite",
        ),
        ({GATE: torch.zeros(24, 36)}, f"{GATE} is F32, but has fp8 scales"),
        (
            {GATE: torch.zeros(24, 35).to(torch.float8_e4m3fn)},
            r"is F8_E4M3 \(24, 35\), but config.json says \(24, 36\)",
        ),
        (
            {GATE: torch.zeros(24, 36).to(torch.float8_e5m2)},
            f"{GATE} is of type F8_E5M2, which is not supported",
        ),
        (
            {"model.norm.weight_scale_inv": torch.tensor(1.0)},
            "model.norm.weight_scale_inv is F32 .*allows no scale",
        ),
        (
            {"model.norm.weight_scale_inv": torch.ones(3)},
            "model.norm.weight_scale_inv is F32 .*allows no scale",
        ),
        ({"model.more.weight_scale_inv": torch.ones(3)}, "holds 'model.more.weight_scale_inv'"),
    ],
)
def test_fp8_scales_that_do_not_fit_are_refused(
    published: tuple[Path, dict[str, Tensor], dict[str, Tensor]],
    change: dict[str, Tensor | None],
    says: str,
) -> None:
    place, filed, _ = published
    tensors = {name: tensor for name, tensor in (filed | change).items() if tensor is not None}
    save_file(tensors, place / "model.safetensors")
    with pytest.raises(CheckpointError, match=says):
        load(place, 0)


def test_fp8_weights_without_config_entry_are_refused(
    published: tuple[Path, dict[str, Tensor], dict[str, Tensor]],
) -> None:
    place = published[0]
    (place / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    with pytest.raises(CheckpointError, match=r"is of type F8_E4M3|not part of this model"):
        load(place, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"quant_method": "gptq"},
        {"fmt": "e5m2"},
        {"weight_block_size": None},
        {"weight_block_size": [128]},
        {"weight_block_size": [128, 0]},
        {"weight_block_size": [128, 1 << 40]},
        {"weight_block_size": [True, 128]},
        {"weight_block_size": 128},
    ],
    ids=str,
)
def test_other_quantisation_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError, match=r"quantization_config .* is not supported"):
        config_of(V3 | {"quantization_config": QUANTIZED | change})


def further() -> dict[str, Tensor]:
    """Return the tensors of one published layer that predicts a second token."""
    names = (
        "eh_proj.weight",
        "enorm.weight",
        "embed_tokens.weight",
        "shared_head.head.weight",
        "mlp.gate.weight",
    )
    tensors = {f"model.layers.2.{name}": torch.ones(2, 2) for name in names}
    return tensors | {"model.layers.2.self_attn.o_proj.weight_scale_inv": torch.ones(1, 1)}


@pytest.mark.parametrize("tier", [0, 1])
def test_multi_token_layers_are_skipped_with_one_warning(
    tier: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(tmp_path / "m", init_weights(CONFIG, 1), CONFIG, tier=0, companions={})
    file = tmp_path / "m" / "model.safetensors"
    save_file(load_file(file) | further(), file)
    with pytest.raises(
        CheckpointError, match=r"holds 'model\.layers\.2\.\S+', which is not part of this model"
    ):
        load(tmp_path / "m", tier)
    fields = CONFIG.to_hf() | {"num_nextn_predict_layers": 1}
    (tmp_path / "m" / "config.json").write_text(json.dumps(fields))
    assert config_of(fields) == CONFIG
    with caplog.at_level(logging.WARNING):
        assert same(load(tmp_path / "m", tier), init_weights(CONFIG, 1, tier))
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'm'}: skipped 6 tensors of multi-token prediction layers"
    ]
    save_file(load_file(file) | {"model.layers.3.enorm.weight": torch.ones(2)}, file)
    with pytest.raises(CheckpointError, match=r"holds 'model\.layers\.3\.enorm"):
        load(tmp_path / "m", tier)


def test_shard_with_only_multi_token_layers_may_be_absent(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "m", init_weights(CONFIG, 1), CONFIG, tier=0, companions={})
    file = tmp_path / "m" / "model.safetensors"
    own = dict.fromkeys(load_file(file), "own.safetensors")
    file.rename(tmp_path / "m" / "own.safetensors")
    index = {"weight_map": own | dict.fromkeys(further(), "further.safetensors")}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks further\.safetensors"):
        load(tmp_path / "m", 0)
    (tmp_path / "m" / "config.json").write_text(
        json.dumps(CONFIG.to_hf() | {"num_nextn_predict_layers": 1})
    )
    assert same(load(tmp_path / "m", 0), init_weights(CONFIG, 1))


@pytest.mark.parametrize("count", [-1, 17, 1 << 40, "1", True, 1.0])
def test_invalid_number_of_prediction_layers_is_refused(count: object) -> None:
    with pytest.raises(
        ModelConfigError, match="num_nextn_predict_layers must be an integer from 0 to 16"
    ):
        config_of(V3 | {"num_nextn_predict_layers": count})
