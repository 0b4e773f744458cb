"""The network of a member on several devices: what every rank does with its part.

FSDP2 shards parameters and gradients over data-parallel ranks, and DTensor cuts layers over
tensor-parallel ones. A rank without a micro-batch repeats another's, because all must take part in
gathering layers; its gradient is not added. Every rank calls all methods but `held` and `losses`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from aftermath.model.config import ModelConfig, TensorPlan
from aftermath.parallel.collectives import Gathering, Motions
from aftermath.parallel.ordered_sum import OrderedSum
from aftermath.parallel.tensor_parallel import cut, is_partial
from aftermath.replica.memory import LiveBytes, free_bytes, give_back, is_out_of_memory
from aftermath.replica.options import Arithmetic
from aftermath.replica.passes import Passes
from aftermath.replica.replica import share_loss

Keep = Callable[[str, Tensor], None]
"""Takes a parameter's name, and a whole tensor that is of it."""


def _keep_nothing(name: str, whole: Tensor) -> None:
    del name, whole


class ShardedModel:
    """One rank's part of a tier's network, on a mesh of (data, tensor) ranks."""

    def __init__(
        self, config: ModelConfig, tier: int, mesh: DeviceMesh, *, bf16: bool = False
    ) -> None:
        self._config, self._tier, self._bf16 = config, tier, bf16
        self._mesh, self._data, self._tensor = mesh, mesh["data"], mesh["tensor"]
        self._motions = Motions()
        self._plan: TensorPlan | None = None
        self._losses: list[Tensor] = []
        self.short = False
        """Whether this rank ran out of memory in the share."""
        self._build()

    def _build(self) -> None:
        """Make the network, with no weights yet."""
        blank = {
            name: torch.zeros(shape)
            for name, shape in self._config.parameter_shapes(self._tier).items()
        }
        self._model = self._config.build(self._tier, blank)
        del blank
        self._folds: list[OrderedSum] = []
        layers = _layers(self._model)
        if self._tensor.size() > 1:
            self._plan = cut(self._model, self._tensor)
        self._model.to(self._mesh.device_type)
        if self._data.size() > 1:
            for module in [*layers, self._model]:
                self._shard(module)
            register_fsdp_forward_method(self._model, "loss")  # which passes by `forward`
        self._passes = Passes(self._model, Arithmetic(bf16=self._bf16))

    def _shard(self, module: nn.Module) -> None:
        sharded = fully_shard(module, mesh=self._data)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
        fold: Any = OrderedSum(self._motions)
        gathering: Any = Gathering(self._motions)
        sharded.set_custom_reduce_scatter(fold)
        sharded.set_custom_all_gather(gathering)
        self._folds.append(fold)

    @property
    def held(self) -> int:
        """Parameters that are on this rank."""
        return sum(_local(parameter).numel() for parameter in self._model.parameters())

    @torch.no_grad()
    def begin(
        self, weights: Mapping[str, Tensor] | None, *, recompute: bool, keep: Keep = _keep_nothing
    ) -> None:
        """Take the first rank's weights, fp32 and whole, and forget all gradients and losses.

        `recompute`: layers are computed twice. A caller may `keep` a weight that arrived.
        """
        if self.short:
            self._build()
            self.short = False
        self._model.recompute = recompute
        self._losses.clear()
        for fold in self._folds:
            fold.forget()
        for name, parameter in self._model.named_parameters():
            parameter.grad = None
            whole = torch.empty(parameter.shape, device=self._mesh.device_type)
            if weights is not None:
                whole.copy_(weights[name])
            dist.broadcast(whole, 0)
            _local(parameter).copy_(_part(whole, parameter))
            keep(name, whole)

    def step(self, sequences: Tensor, micro_batch: int, first: int) -> None:
        """Train on the micro-batches of a share from number `first` on, one for each data-parallel
        rank.

        `sequences` is the share, as `Replica.train` takes it. Where this rank has no memory for it,
        it is `short` from now on.
        """
        if self.short:
            self._motions.begin()
            self._motions.finish()
            return
        batches = sequences.split(micro_batch)
        active = min(self._data.size(), len(batches) - first)
        number = self._data.get_local_rank()
        for fold in self._folds:
            fold.active = active
        if self._folds:  # the folds hold the sum: FSDP2 would add to it once more
            for parameter in self._model.parameters():
                parameter.grad = None
        mine = number < active
        batch = batches[first + number if mine else first]
        self._motions.begin()
        try:
            loss = share_loss(self._passes, self._passes.upload(batch), batch, sequences)
            loss.backward()
        except Exception as error:
            if not is_out_of_memory(error) or not self._may_stand_aside():
                raise
        else:
            self._motions.end()
            self._losses.append(loss.detach() if mine else torch.zeros_like(loss))
            return
        self._stand_aside()  # here, where the error is gone, and with it what the pass held

    def _may_stand_aside(self) -> bool:
        return self._tensor.size() == 1 and self._motions.may_finish

    def _stand_aside(self) -> None:
        """Throw the network away, and take part in what the others wait for."""
        self.short = True
        self._losses.clear()
        self._folds.clear()
        del self._model, self._passes
        gc.collect()  # FSDP2's modules and their hooks hold each other
        give_back(torch.device(self._mesh.device_type))
        self._motions.finish()

    def measure(self, sequences: Tensor, reserved: int) -> Tensor:
        """Return the bytes of this rank's memory for a pass of one sequence, and those besides
        gradients.

        `reserved` bytes belong to others. What is kept of a pass is to be forgotten before the next
        (`begin`).
        """
        device = torch.device(self._mesh.device_type)
        sharers = self._mesh.size() if device.type == "cpu" else 1  # of one memory
        free = free_bytes(device) // sharers
        with LiveBytes() as live:
            self.step(sequences[:1], 1, 0)
        if self.short:
            return torch.tensor([1, 0], dtype=torch.float64)  # nothing fits
        # the gradient, and the sum that is gone on with
        kept = 2 * self.held * torch.float32.itemsize
        return torch.tensor([live.peak, free - kept - reserved], dtype=torch.float64)

    def losses(self, steps: int) -> Tensor:
        """What this rank's micro-batch of every step added to the share's mean loss; 0 where it had
        none. On the CPU.

        Read once for each share: each reading waits for the device. One number more says whether it
        is `short`.
        """
        found = torch.zeros(steps + 1, dtype=torch.float64)
        if self.short:
            found[-1] = 1
        else:
            found[:-1] = torch.stack(self._losses)
        return found

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Name and sum of every parameter's gradient, whole, and on every rank, whose own from then
        on it is.
        """
        for fold in self._folds:
            fold.forget()  # which makes room for those that a rank keeps
        for name, parameter in self._model.named_parameters():
            if parameter.grad is None:
                continue
            gradient = parameter.grad
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            if self._plan is not None and is_partial(self._plan, name):
                dist.all_reduce(whole, group=self._tensor.get_group())
            yield name, whole
            parameter.grad = None


def is_short(losses: Tensor) -> bool:
    """Whether one of the ranks, which say these `losses` [n, ranks], ran out of memory in the
    share.
    """
    return bool(losses[-1].any())


def _layers(model: nn.Module) -> list[nn.Module]:
    """The model's layers: the longest list of modules in it that is in no other, and is none of
    tables.
    """
    lists = [
        module for module in model.modules() if isinstance(module, nn.ModuleList | nn.ModuleDict)
    ]
    lists = [
        found
        for found in lists
        if not any(isinstance(part, nn.Embedding) for part in found.children())
    ]
    inner = {part for outer in lists for part in outer.modules() if part is not outer}
    return list(
        max(
            (found for found in lists if found not in inner), key=len, default=nn.ModuleList()
        ).children()
    )


def _local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()


def _part(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of a whole tensor that all ranks have."""
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(
        whole, parameter.device_mesh, parameter.placements, src_data_rank=None
    ).to_local()
