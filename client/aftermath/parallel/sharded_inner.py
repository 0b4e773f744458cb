"""The inner optimizer of a member, its moments divided over the ranks.

Each rank steps its own parameters on its device, and the first rank collects them. The first rank
computes the clipping factor from one norm, so a step has the bits of a single rank. The moments
move only to be saved or copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from math import prod
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from aftermath.base.merkle import DIGEST
from aftermath.model.levels import is_hidden_matrix
from aftermath.optim.gradient_clip import scale
from aftermath.optim.inner_optimizer import inner_optimizer, step_at
from aftermath.optim.moments import (
    Kind,
    States,
    betas_of,
    bytes_of,
    check_moments,
    moment_kinds,
    moments_in,
    states_of,
)
from aftermath.optim.schema import Schema
from aftermath.optim.state_merkle import BLOCK, digests_of
from aftermath.parallel.group import Ranks, Sharded, as_byte_tensor, on_all_ranks

Shapes = Mapping[str, tuple[int, ...]]


class MomentPlan:
    """The parameters and moments of each rank."""

    def __init__(self, schema: Schema, tier: int, ranks: int) -> None:
        self.settings = schema.optimizer
        self.shapes, orthogonal = inner_shapes(schema, tier)
        self.owned = split_moments(self.shapes, orthogonal, ranks)
        blank = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        optimizer = inner_optimizer(blank, self.settings)
        self.kinds = moment_kinds(optimizer, blank)
        """Shape and type of every moment, by the names of `optim.moments`."""
        self.betas = betas_of(optimizer)
        self._owner = {name: rank for rank, own in enumerate(self.owned) for name in own}

    def owner(self, path: str) -> int:
        """Return the rank that holds a moment."""
        return self._owner[path.partition("/")[2]]

    def moments_of(self, rank: int) -> dict[str, Kind]:
        """Return the moments of a rank after a step of all its parameters."""
        return {path: kind for path, kind in self.kinds.items() if self.owner(path) == rank}


def inner_shapes(schema: Schema, tier: int) -> tuple[dict[str, tuple[int, ...]], bool]:
    """Return the shapes of the parameters that the inner optimizer steps, and whether it is Muon.

    The shapes are empty without an inner optimizer.
    """
    settings = schema.optimizer
    config = schema.state.config
    if settings.inner_optimizer is None:
        return {}, False
    shapes = {
        name: tuple(shape)
        for name, shape in config.parameter_shapes(tier).items()
        if not config.balances(name)
    }
    return shapes, settings.inner_optimizer == "muon"


def split_moments(shapes: Shapes, orthogonal: bool, ranks: int) -> list[list[str]]:
    """Return the tensors of each rank, in the order in which it steps them.

    One rank computes the step of a tensor, because a matrix is orthogonalised as a whole. Matrices
    of Muon are assigned by cost (numbers times shorter edge), all other tensors by size. The
    largest go first, each to the rank with the least, so all ranks find the same split.
    `orthogonal`: whether the optimizer orthogonalises hidden matrices.
    """
    hidden = {
        name for name, shape in shapes.items() if orthogonal and is_hidden_matrix(name, shape)
    }
    owned: list[list[str]] = [[] for _ in range(ranks)]

    def hand_out(names: Collection[str], weight: Callable[[str], int]) -> None:
        loads = [sum(map(weight, own)) for own in owned]
        for name in sorted(names, key=lambda name: (-weight(name), name)):
            least = loads.index(min(loads))
            owned[least].append(name)
            loads[least] += weight(name)

    hand_out(hidden, lambda name: prod(shapes[name]) * min(shapes[name][-2:]))
    hand_out(shapes.keys() - hidden, lambda name: prod(shapes[name]))
    return owned


class ShardedInner(Sharded):
    """Step one replica's parameters on all ranks. Only the first rank has all parameters."""

    takes_gradients_as_they_are: ClassVar[bool] = False

    def __init__(
        self,
        ranks: Ranks,
        schema_json: bytes,
        tier: int,
        *,
        params: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Hold the moments of this rank's parameters. There are none before the first step."""
        super().__init__(ranks)
        self._params = None if params is None else dict(params)
        self._plan = MomentPlan(Schema.from_json(schema_json), tier, ranks.size)
        self._own = self._plan.owned[ranks.rank]
        self._states: States = {}
        self._before: dict[str, Tensor] = {}
        """Moments at the start of the share, to undo it."""
        self._must_undo = False
        """Whether the last share must be undone. Set on the first rank only."""
        # Weights and gradients of the last pass that are not applied yet. The first rank has all
        # of them in its parameters, so it keeps none here.
        self._weights: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        moments = self._plan.moments_of(ranks.rank)
        buffers = [(self._plan.shapes[name], torch.float32) for name in self._own if ranks.rank]
        ranks.reserved = 2 * sum(map(bytes_of, moments.values())) + sum(map(bytes_of, buffers))

    def forget_pass(self) -> None:
        """Drop the weights and gradients of the last pass."""
        self._weights = {}
        self._gradients = {}

    def keep_weight(self, name: str, whole: Tensor) -> None:
        """Keep a weight for the step if its parameter is this rank's."""
        if self._params is None and name in self._own:
            self._weights[name] = whole

    def keep_gradient(self, name: str, whole: Tensor) -> None:
        """Keep a gradient for the step if its parameter is this rank's."""
        if self._params is None and name in self._own:
            self._gradients[name] = whole

    @on_all_ranks
    def begin(self) -> None:
        """Copy the moments, so that the share can be undone."""
        self._before = {path: tensor.clone() for path, tensor in self.moments().items()}

    @on_all_ranks
    def end(self) -> None:
        """Drop the copies of the moments."""
        self._before = {}

    def undo(self) -> None:
        """Restore the moments before their next use, because the share failed.

        Not at once, because the other ranks may have ended, or wait inside a method that failed.
        """
        self._must_undo = True

    def recover(self) -> None:
        """Restore the moments of all ranks if a share failed."""
        if self._must_undo:
            self._must_undo = False
            self.ranks.announce(self, "restore_before")
            self.restore_before()

    def restore_before(self) -> None:
        """Restore this rank's moments from the start of the share."""
        self._set_moments(self._before)
        self._before = {}

    def step(self, lr: float, factors: Sequence[float]) -> None:
        """Step all parameters that have a gradient.

        The gradients are those that the ranks keep of the last pass, times the factors.
        """
        params = self._params or {}
        without = [name for name, tensor in params.items() if tensor.grad is None]
        self._step(lr, tuple(factors), without)

    @on_all_ranks
    @torch.no_grad()
    def _step(self, lr: float, factors: Sequence[float], without: Sequence[str]) -> None:
        """Step this rank's parameters, and collect all parameters on the first rank.

        The new parameters are sent, not differences, because adding one to a weight can lose bits.
        """
        owned = [[name for name in own if name not in without] for own in self._plan.owned]
        transfers: list[dist.Work | None] = []
        if self._params is not None:
            transfers += [
                dist.irecv(self._params[name].detach(), rank)
                for rank, names in enumerate(owned)
                for name in names
                if rank
            ]
        try:
            for name in owned[self.ranks.rank]:
                if self._params is not None:
                    weight = self._params[name].detach()
                    gradient = self._params[name].grad
                    assert gradient is not None
                    weight.copy_(self._step_tensor(name, weight, gradient, lr))
                else:
                    gradient = self._gradients.pop(name)
                    scale([gradient], factors)
                    stepped = self._step_tensor(name, self._weights.pop(name), gradient, lr)
                    transfers.append(dist.isend(stepped.to("cpu").contiguous(), 0))
        finally:  # no transfer may end after the parameters are restored
            for transfer in transfers:
                if transfer is not None:
                    transfer.wait()

    def _step_tensor(self, name: str, weight: Tensor, gradient: Tensor, lr: float) -> Tensor:
        """Return a weight after a step. It changes in place if it is on this rank's device."""
        here = weight.detach().to(self.ranks.device)
        here.grad = gradient.to(self.ranks.device)
        optimizer = inner_optimizer({name: here}, self._plan.settings)
        optimizer.state[here] = self._states.setdefault(name, {})
        step_at(optimizer, lr)
        return here

    def moments(self) -> dict[str, Tensor]:
        """Return the moments that this rank holds, ordered by name."""
        return dict(sorted(moments_in(self._states).items()))

    @on_all_ranks
    def state_tensors(self) -> dict[str, Tensor]:
        """Return all moments on the CPU."""
        parts = self.ranks.gather(self.moments())
        return {path: tensor for own in parts for path, tensor in own.items()}

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all moments on the CPU."""
        return {
            path: tensor if self._plan.owner(path) else tensor.clone()
            for path, tensor in self.state_tensors().items()
        }

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each moment."""
        return {path: bytes_of(kind) for path, kind in self._plan.kinds.items()}

    @on_all_ranks
    def digests(self) -> list[bytes]:
        """Return the digests of the moments' blocks. Each rank hashes its own."""
        moments = self.moments()
        own_digests = iter(digests_of(moments))
        digests: dict[str, Tensor] = {}
        for path, tensor in moments.items():
            of_tensor = islice(own_digests, -(-tensor.nbytes // BLOCK))
            digests[path] = as_byte_tensor(b"".join(of_tensor))
        gathered = {path: own for part in self.ranks.gather(digests) for path, own in part.items()}
        data = b"".join(gathered[path].numpy().tobytes() for path in sorted(gathered))
        return [data[at : at + DIGEST] for at in range(0, len(data), DIGEST)]

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Send a result of `state` to the ranks. Raises BadState, and changes nothing, if it is not
        of this optimizer.
        """
        check_moments(self._plan.kinds, state, self._plan.betas)
        if state:
            self._restore(state=state)
        else:
            self.reset()

    @on_all_ranks
    def _restore(self, *, state: Mapping[str, Tensor] | None = None) -> None:
        parts = None
        if state is not None:
            parts = [
                {path: state[path] for path in self._plan.moments_of(rank)}
                for rank in range(self.ranks.size)
            ]
        self._set_moments(self.ranks.scatter(parts))

    def _set_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Replace this rank's moments by copies of these."""
        self._states = {}  # free memory first
        self._states = states_of(moments, dict.fromkeys(self._own, self.ranks.device))

    @on_all_ranks
    def reset(self) -> None:
        """Reset the moments of all ranks."""
        self._states = {}
        self._before = {}
