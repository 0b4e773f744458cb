"""The network of a member on several devices.

FSDP2 shards parameters and gradients over data-parallel ranks, and DTensor cuts layers over
tensor-parallel ones. A rank without a micro-batch repeats another rank's, because all must take
part in gathering layers. Its gradient is not added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfig, TensorPlan
from aftermath.model.network import LanguageModel
from aftermath.parallel.group import Ranks, Sharded, on_all_ranks
from aftermath.parallel.sharded_inner import ShardedInner
from aftermath.parallel.tensor_parallel import cut, is_partial
from aftermath.replica.memory import LiveBytes, free_bytes
from aftermath.replica.options import Arithmetic
from aftermath.replica.passes import Passes
from aftermath.replica.replica import share_loss


class ShardedModel(Sharded):
    """A tier's network on a mesh of (data, tensor) ranks."""

    def __init__(self, ranks: Ranks, config: dict[str, Any], tier: int, bf16: bool = False) -> None:
        """Build the network of a config with the keys of `config.json`.

        `bf16`: compute matrix products in bf16.
        """
        super().__init__(ranks)
        self._device = torch.device(ranks.mesh.device_type)
        self._data = ranks.mesh["data"]
        self._tensor = ranks.mesh["tensor"]
        self._plan: TensorPlan | None = None
        self._sequences = torch.empty(0)
        self._micro_batch = 1
        self._losses: list[Tensor] = []
        self._sums: list[OrderedSum] = []
        self._model = _zero_model(config_of(config), tier)
        layers = _layers(self._model)
        if self._tensor.size() > 1:
            self._plan = cut(self._model, self._tensor)
        self._model.to(self._device)
        if self._data.size() > 1:
            for module in [*layers, self._model]:
                self._shard(module)
            register_fsdp_forward_method(self._model, "loss")  # `loss` does not call `forward`
        self._passes = Passes(self._model, Arithmetic(bf16=bf16))

    def _shard(self, module: nn.Module) -> None:
        sharded = fully_shard(module, mesh=self._data)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
        ordered_sum: Any = OrderedSum()
        sharded.set_custom_reduce_scatter(ordered_sum)
        self._sums.append(ordered_sum)

    @property
    def parameter_count(self) -> int:
        """Return the number of parameters on this rank."""
        return sum(_local(parameter).numel() for parameter in self._model.parameters())

    @property
    def device(self) -> torch.device:
        """Return this rank's device."""
        return self._device

    @property
    def bf16(self) -> bool:
        """Return whether matrix products are in bf16."""
        return self._passes.arithmetic.bf16

    @property
    def micro_batches_at_once(self) -> int:
        """Return the number of micro-batches that a step trains."""
        return self.ranks.size // self.ranks.tensor

    @on_all_ranks
    @torch.no_grad()
    def begin(
        self,
        shape: Sequence[int],
        micro_batch: int,
        recompute: bool,
        *,
        sequences: Tensor | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Receive the first rank's share, and its weights (fp32, whole) at which to train it.

        `shape` is that of the share, as `Replica.train` takes it. `recompute`: compute layers again
        in the backward pass.
        """
        self._sequences = (
            torch.empty(tuple(shape), dtype=torch.int64)
            if sequences is None
            else sequences.to("cpu").contiguous()
        )
        dist.broadcast(self._sequences, 0)
        self._micro_batch = micro_batch
        self._model.recompute = recompute
        self._losses.clear()
        for ordered_sum in self._sums:
            ordered_sum.forget()
        inner = self.ranks.current(ShardedInner)
        if inner is not None:
            inner.forget_pass()
        for name, parameter in self._model.named_parameters():
            parameter.grad = None
            whole = torch.empty(parameter.shape, device=self._device)
            if weights is not None:
                whole.copy_(weights[name])
            dist.broadcast(whole, 0)
            _local(parameter).copy_(_part(whole, parameter))
            if inner is not None:
                inner.keep_weight(name, whole)

    @on_all_ranks
    def step(self, first: int) -> None:
        """Train on one micro-batch per data-parallel rank, starting with number `first`."""
        self._pass(first)

    def _pass(self, first: int) -> None:
        batches = self._sequences.split(self._micro_batch)
        active = min(self._data.size(), len(batches) - first)
        number = self._data.get_local_rank()
        for ordered_sum in self._sums:
            ordered_sum.active = active
        if self._sums:  # they hold the sum, and FSDP2 would add `grad` a second time
            for parameter in self._model.parameters():
                parameter.grad = None
        has_batch = number < active
        batch = batches[first + number if has_batch else first]
        loss = share_loss(self._passes, self._passes.upload(batch), batch, self._sequences)
        loss.backward()
        self._losses.append(loss.detach() if has_batch else torch.zeros_like(loss))

    @on_all_ranks
    def measure(self) -> tuple[list[float], list[float]]:
        """Train on the first micro-batch. Return, for every rank, the bytes that this took and the
        bytes free for passes.
        """
        peaks, free = self.ranks.gather_figures(self._memory()).tolist()
        return peaks, free

    def _memory(self) -> Tensor:
        sharers = self.ranks.size if self._device.type == "cpu" else 1  # they share one memory
        free = free_bytes(self._device) // sharers
        with LiveBytes() as live:
            self._pass(0)
        # the gradient and its running sum
        parameter_bytes = 2 * self.parameter_count * torch.float32.itemsize
        return torch.tensor(
            [live.peak, free - parameter_bytes - self.ranks.reserved], dtype=torch.float64
        )

    @on_all_ranks
    def finish(self, *, params: Mapping[str, Tensor] | None = None) -> float:
        """Add the share's gradient to the first rank's parameters. Return its mean loss."""
        # A rank without a micro-batch adds 0. Reading waits for the device, so it is done once.
        own = torch.stack(self._losses).to("cpu", torch.float64)
        losses = self.ranks.gather_figures(own)  # [steps, ranks]
        inner = self.ranks.current(ShardedInner)
        for name, whole in self._gradients():
            if inner is not None:
                inner.keep_gradient(name, whole)
            if params is not None:
                parameter = params[name]
                gradient = whole.to(parameter.device)
                parameter.grad = (
                    gradient if parameter.grad is None else parameter.grad.add_(gradient)
                )
        # in the order of the share
        return float(sum(losses[:, :: self._tensor.size()].flatten().tolist()))

    def _gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and the whole summed gradient of every parameter, on every rank.

        The caller owns the tensor. The model drops its own gradients.
        """
        for ordered_sum in self._sums:
            ordered_sum.forget()  # makes room for the gradients that a rank keeps
        for name, parameter in self._model.named_parameters():
            if parameter.grad is None:
                continue
            gradient = parameter.grad
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            if self._plan is not None and is_partial(self._plan, name):
                dist.all_reduce(whole, group=self._tensor.get_group())
            yield name, whole
            parameter.grad = None


class OrderedSum:
    """Sum the gradients of one group of parameters. The first `active` ranks have a micro-batch."""

    # Floating-point sums depend on the order. So each rank adds the gradients of all micro-batches
    # to its part one by one, in the order of the share, as a single rank does. An all-to-all
    # replaces FSDP2's reduce-scatter and sends as many bytes. Ranks synchronise after every
    # micro-batch.

    allocate = staticmethod(torch.empty)  # FSDP2 allocates its buffers with this

    def __init__(self) -> None:
        self.active = 1
        self._sum: Tensor | None = None

    def forget(self) -> None:
        """Drop the sum."""
        self._sum = None

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Write the sum so far plus the ranks' parts of `input_tensor` [ranks x part] to
        `output_tensor` [part].
        """
        del op, async_op
        parts = torch.empty_like(input_tensor)
        dist.all_to_all_single(parts, input_tensor, group=group)
        first, *from_others = parts.view(group.size(), -1)[: self.active]
        total = output_tensor.view(-1)
        total.copy_(first) if self._sum is None else torch.add(self._sum, first, out=total)
        for part in from_others:
            total.add_(part)
        self._sum = total.clone()


def _zero_model(config: ModelConfig, tier: int) -> LanguageModel:
    shapes = config.parameter_shapes(tier)
    return config.build(tier, {name: torch.zeros(shape) for name, shape in shapes.items()})


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the model's layers: the longest outermost module list that holds no embeddings."""
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.ModuleDict)
        and not any(isinstance(child, nn.Embedding) for child in module.children())
    ]
    nested = {part for outer in lists for part in outer.modules() if part is not outer}
    outermost = [layers for layers in lists if layers not in nested]
    return list(max(outermost, key=len, default=nn.ModuleList()).children())


def _local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()


def _part(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's part of a tensor that all ranks have whole."""
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(
        whole, parameter.device_mesh, parameter.placements, src_data_rank=None
    ).to_local()
