"""The Llama: Hugging Face names and shapes, causality, nested tiers, and learning."""

import math
from typing import Any

import pytest
import torch

from aftermath.model.arch import llama
from aftermath.model.arch.llama import Llama
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.arch.transformer import rotary, rotate
from aftermath.model.initial_weights import init_weights
from aftermath.model.network import attention

torch.set_num_threads(1)

HF = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
}
CONFIG = LlamaConfig.from_hf(HF)
GOLDEN = ["0x1.bf722a0000000p-8", "-0x1.119ffa0000000p-8", "-0x1.0374880000000p-5"]


def model(tier: int = 0, config: LlamaConfig = CONFIG, seed: int = 7) -> Llama:
    return Llama.of(config, tier, init_weights(config, seed, tier))


def tokens(batch: int = 3, length: int = 12, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 48, (batch, length), generator=torch.Generator().manual_seed(seed))


# The keys of `LlamaForCausalLM(...).state_dict()` in transformers for this config, written by hand.
def hf_shapes(width: int, tied: bool) -> dict[str, tuple[int, ...]]:
    shapes = {"model.embed_tokens.weight": (48, 32), "model.norm.weight": (32,)}
    for layer in ("0", "1"):
        shapes |= {
            f"model.layers.{layer}.self_attn.q_proj.weight": (32, 32),
            f"model.layers.{layer}.self_attn.k_proj.weight": (16, 32),
            f"model.layers.{layer}.self_attn.v_proj.weight": (16, 32),
            f"model.layers.{layer}.self_attn.o_proj.weight": (32, 32),
            f"model.layers.{layer}.mlp.gate_proj.weight": (width, 32),
            f"model.layers.{layer}.mlp.up_proj.weight": (width, 32),
            f"model.layers.{layer}.mlp.down_proj.weight": (32, width),
            f"model.layers.{layer}.input_layernorm.weight": (32,),
            f"model.layers.{layer}.post_attention_layernorm.weight": (32,),
        }
    return shapes if tied else shapes | {"lm_head.weight": (48, 32)}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("tier", "width"), [(0, 64), (1, 32), (2, 16)])
def test_llama_parameter_names_and_shapes_equal_hugging_face(
    tier: int, width: int, tied: bool
) -> None:
    config = LlamaConfig.from_hf(HF | {"tie_word_embeddings": tied})
    built = {name: tuple(tensor.shape) for name, tensor in model(tier, config).named_parameters()}
    assert built == hf_shapes(width, tied) == config.parameter_shapes(tier)


def test_tier_weights_are_prefixes_of_full_ones() -> None:
    full = init_weights(CONFIG, 7)
    for tier in (1, 2):
        for name, tensor in init_weights(CONFIG, 7, tier).items():
            prefix = full[name][tuple(slice(0, size) for size in tensor.shape)]
            assert torch.equal(tensor, prefix), name


def test_initial_weights_follow_seed_and_deviation() -> None:
    first = init_weights(CONFIG, 7)
    second = init_weights(CONFIG, 8)
    assert not torch.equal(first["lm_head.weight"], second["lm_head.weight"])
    assert not torch.equal(first["lm_head.weight"], first["model.embed_tokens.weight"])
    assert first["lm_head.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert first["model.layers.0.mlp.down_proj.weight"].std().item() == pytest.approx(
        0.02 / math.sqrt(4), rel=0.05
    )


def test_initial_weights_equal_golden_bits() -> None:
    values = init_weights(CONFIG, 0)["model.embed_tokens.weight"].flatten()[:3]
    assert [value.hex() for value in values.tolist()] == GOLDEN


@pytest.mark.parametrize("tier", [1, 2])
def test_llama_tier_equals_full_model_with_other_units_zeroed(tier: int) -> None:
    params = init_weights(CONFIG, 7)
    for name, tensor in params.items():
        if name.endswith("down_proj.weight"):
            tensor[:, CONFIG.width(tier) :] = 0
    silenced = Llama.of(CONFIG, 0, params)
    ids = tokens()
    torch.testing.assert_close(model(tier)(ids), silenced(ids), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model(0)(ids), silenced(ids), rtol=1e-5, atol=1e-6)


def test_llama_position_ignores_later_tokens() -> None:
    net = model()
    ids = tokens()
    changed = ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 48
    before = net(ids)
    after = net(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_attention_sees_earlier_tokens_and_their_order() -> None:
    net = model()
    ids = tokens()
    swapped = ids.clone()
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    assert not torch.allclose(net(ids)[:, -1], net(swapped)[:, -1], atol=1e-7)


def test_rotary_scores_depend_on_distance_only() -> None:
    rotation = rotary(CONFIG.head_dim, CONFIG.rope_theta, 20, torch.device("cpu"))
    one = torch.randn(1, 1, 1, CONFIG.head_dim, generator=torch.Generator().manual_seed(0)).expand(
        1, 1, 20, -1
    )
    turned = rotate(one, rotation)[0, 0]
    scores = turned @ turned.T
    torch.testing.assert_close(scores[0, 3], scores[10, 13], rtol=1e-4, atol=1e-4)
    assert abs((scores[0, 3] - scores[0, 9]).item()) > 1e-3


@pytest.mark.parametrize(("tier", "tied"), [(0, True), (2, False)])
def test_loss_starts_at_chance_and_falls_when_overfitting(tier: int, tied: bool) -> None:
    net = model(tier, LlamaConfig.from_hf(HF | {"tie_word_embeddings": tied}))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    ids = tokens()
    first = net.loss(ids).item()
    assert first == pytest.approx(math.log(48), abs=0.1)
    for _ in range(25):
        optimizer.zero_grad()
        loss = net.loss(ids)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * first


def test_loss_equals_mean_of_next_token_losses() -> None:
    net = model()
    ids = tokens()
    log_probabilities = torch.log_softmax(net(ids)[:, :-1], -1)
    expected = -log_probabilities.gather(-1, ids[:, 1:, None]).mean()
    torch.testing.assert_close(net.loss(ids), expected)


def test_model_of_given_tensors_does_not_copy() -> None:
    params = init_weights(CONFIG, 7)
    net = Llama.of(CONFIG, 0, params)
    for name, parameter in net.named_parameters():
        assert parameter.data_ptr() == params[name].data_ptr()
        assert parameter.requires_grad


def test_shared_heads_on_cpu_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's shared heads sum gradients in another order, which would change the bits of members
    on a CPU.
    """
    mixed: list[tuple[int, int]] = []

    def noted(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        mixed.append((query.shape[1], key.shape[1]))
        return attention(query, key, value, **options)

    monkeypatch.setattr(llama, "attention", noted)
    model()(tokens())
    assert set(mixed) == {(4, 4)}
