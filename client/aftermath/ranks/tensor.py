"""How a network's layers are cut over ranks that compute one micro-batch together (tensor parallelism, DTensor).

Source: Shoeybi et al., "Megatron-LM" (arXiv 1909.08053): columns of what comes into a block, rows of what leaves it, so
that a layer has one sum over the ranks after attention and one after the feed-forward.

Decided
- A tier is a narrower model, so it is cut as the full one is: its own hidden units, in equal parts.
- Heads stay whole. Embeddings, norms and the output head are on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from aftermath.base.errors import Unsuitable
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.config import ModelConfig

_COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_ROWS = ("self_attn.o_proj", "mlp.down_proj")
PARTIAL = ("q_norm.weight", "k_norm.weight")
"""Parameters that are on every rank and see only that rank's heads: their gradients add up over the ranks."""


def check_tensor_parallelism(config: ModelConfig, tier: int, ranks: int) -> None:
    """Raises Unsuitable if a tier of this model cannot be cut over so many ranks."""
    if ranks == 1:
        return
    if not isinstance(config, LlamaConfig):
        raise Unsuitable(
            f"--tensor-parallelism {ranks}: only a Llama or one of its kin can be cut, not {config.MODEL_TYPE}",
            "leave it out, and use --data-parallelism",
        )
    held = config.shape(tier)  # query heads are a multiple of the key heads
    for what, counts in (("key/value heads", held.num_key_value_heads), ("hidden units", held.intermediate_size)):
        for count in counts:
            if count % ranks:
                raise Unsuitable(
                    f"--tensor-parallelism {ranks} does not divide the {count} {what} of a layer of tier {tier}",
                    "choose a number that does, and --data-parallelism for the rest",
                )


def cut(layers: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Cut a Llama's layers over the ranks of a mesh of one dimension; every rank keeps its part of what is there."""
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in _COLUMNS} | {
        name: RowwiseParallel() for name in _ROWS
    }
    for layer in layers:
        parallelize_module(layer, mesh, plan, src_data_rank=None)
