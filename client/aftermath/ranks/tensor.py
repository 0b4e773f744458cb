"""How a network's layers are cut over ranks that compute one micro-batch together (tensor parallelism, DTensor).

Source: Shoeybi et al., "Megatron-LM" (arXiv 1909.08053): columns of what comes into a block, rows of what leaves it, so
that a layer has one sum over the ranks after attention and one after the feed-forward.

Decided
- Which matrices these are is the architecture's to say (`ModelConfig.tensor_plan`).
- A tier is a narrower model, so it is cut as the full one is: its own hidden units, in equal parts.
- Heads stay whole. Tables, norms and the output head are on every rank.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from aftermath.base.errors import Unsuitable
from aftermath.model.config import ModelConfig
from aftermath.model.network import LanguageModel
from aftermath.model.tensor_plan import TensorPlan


def check_tensor_parallelism(config: ModelConfig, tier: int, ranks: int) -> None:
    """Raises Unsuitable if a tier of this model cannot be cut over so many ranks."""
    if ranks == 1:
        return
    for what, counts in _plan(config, tier).divided.items():
        for count in counts:
            if count % ranks:
                raise Unsuitable(
                    f"--tensor-parallelism {ranks} does not divide the {count} {what} of a layer of tier {tier}",
                    "choose a number that does, and --data-parallelism for the rest",
                )


def cut(model: LanguageModel, mesh: DeviceMesh) -> TensorPlan:
    """Cut a network over the ranks of a mesh of one dimension, as it says; every rank keeps its part of what is there.

    Returns what it said. Raises Unsuitable if it cannot be cut.
    """
    plan = _plan(model.config, model.tier)
    for name, module in list(model.named_modules()):
        if _ends(name, plan.columns):
            parallelize_module(module, mesh, ColwiseParallel(), src_data_rank=None)
        elif _ends(name, plan.rows):
            parallelize_module(module, mesh, RowwiseParallel(), src_data_rank=None)
    model.take_part(mesh.get_local_rank(), mesh.size())
    return plan


def is_partial(plan: TensorPlan, name: str) -> bool:
    """Whether the ranks' gradients of a parameter are parts of it, to be added up."""
    return any(fnmatchcase(name, pattern) for pattern in plan.partial)


def _ends(name: str, endings: tuple[str, ...]) -> bool:
    return any(name.endswith("." + ending) for ending in endings)


def _plan(config: ModelConfig, tier: int) -> TensorPlan:
    plan = config.tensor_plan(tier)
    if isinstance(plan, str):
        raise Unsuitable(
            f"--tensor-parallelism: a model of type {config.MODEL_TYPE} cannot be cut: {plan}",
            "leave it out, and use --data-parallelism",
        )
    return plan
