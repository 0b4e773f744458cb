"""Cut a network's layers over ranks that compute one micro-batch together.

Source: Shoeybi et al., "Megatron-LM" (arXiv 1909.08053): columns of a block's first matrices, rows
of its last, so a block needs one sum. The architecture names these matrices
(`ModelConfig.tensor_plan`). A tier's own hidden units are cut in equal parts. Heads stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from aftermath.base.errors import Unsuitable
from aftermath.model.config import ModelConfig, TensorPlan
from aftermath.model.network import LanguageModel


def check_tensor_parallelism(config: ModelConfig, tier: int, ranks: int) -> None:
    """Raise Unsuitable if a tier of this model cannot be cut over `ranks` ranks."""
    if ranks == 1:
        return
    for name, counts in _plan(config, tier).divided.items():
        for count in counts:
            if count % ranks:
                raise Unsuitable(
                    f"--tensor-parallelism {ranks} does not divide the {count} {name} of a layer of tier {tier}",
                    "Choose a divisor, and use --data-parallelism for the other ranks",
                )


def cut(model: LanguageModel, mesh: DeviceMesh) -> TensorPlan:
    """Cut a network in place over the ranks of a one-dimensional mesh, by its own plan.

    Return the plan. Raises Unsuitable if the network cannot be cut.
    """
    plan = _plan(model.config, model.tier)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            for ending, dim in plan.dims.items():
                if _matches(f"{name}.weight", (ending,)):
                    style = RowwiseParallel() if dim else ColwiseParallel()
                    parallelize_module(module, mesh, style, src_data_rank=None)
            for ending, dim in plan.inner.items():
                if _matches(f"{name}.weight", (ending,)):
                    _cut_on_rank(module, mesh, dim)
        elif _matches(name, plan.spread):
            module.register_forward_hook(partial(_spread, mesh))
        elif _matches(name, plan.summed):
            module.register_forward_hook(partial(_summed, mesh))
    model.take_part(mesh.get_local_rank(), mesh.size())
    return plan


def is_partial(plan: TensorPlan, name: str) -> bool:
    """Return whether the ranks' gradients of a parameter must be summed."""
    return _matches(name, plan.partial)


def _cut_on_rank(module: nn.Linear, mesh: DeviceMesh, dim: int) -> None:
    """Cut a matrix whose input and output stay on their rank."""
    part = distribute_tensor(module.weight, mesh, [Shard(dim)], src_data_rank=None)
    module.register_parameter("weight", nn.Parameter(part))

    def forward(input: Tensor) -> Tensor:
        weight = module.weight
        assert isinstance(weight, DTensor)
        return F.linear(input, weight.to_local())

    module.forward = forward  # type: ignore[method-assign]


def _spread(mesh: DeviceMesh, module: nn.Module, tensor: object, whole: Tensor) -> Tensor:
    """Pass the input on, and sum the ranks' gradients in the backward pass."""
    del module, tensor
    local: Tensor = DTensor.from_local(whole, mesh, [Replicate()]).to_local(
        grad_placements=[Partial()]
    )
    return local


def _summed(mesh: DeviceMesh, module: nn.Module, tensor: object, part: Tensor) -> Tensor:
    """Sum the ranks' parts, and give each rank the same gradient in the backward pass."""
    del module, tensor
    whole: Tensor = (
        DTensor.from_local(part, mesh, [Partial()])
        .redistribute(placements=[Replicate()])
        .to_local()
    )
    return whole


def _matches(name: str, endings: Iterable[str]) -> bool:
    return any(fnmatchcase(name, f"*.{ending}") for ending in endings)


def _plan(config: ModelConfig, tier: int) -> TensorPlan:
    plan = config.tensor_plan(tier)
    if isinstance(plan, str):
        raise Unsuitable(
            f"--tensor-parallelism: a model of type {config.MODEL_TYPE} cannot be split: {plan}",
            "Omit --tensor-parallelism, and use --data-parallelism",
        )
    return plan
