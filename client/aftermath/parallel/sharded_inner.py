"""The inner optimizer of a member, its moments divided over the ranks.

The first rank sends the learning rate and the clipping factor, which it computes from one norm, so
a step has the bits of a single rank. The state moves only to be saved or copied. A failed share is
undone before the next use of the moments, since it may have failed because a rank is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from aftermath.base.merkle import DIGEST
from aftermath.optim.moments import Kind, bytes_of, check_moments
from aftermath.optim.private_blocks import BLOCK, BlockSpan
from aftermath.optim.schema import Schema
from aftermath.optim.sparseloco import SparseLoCo
from aftermath.parallel.commands import (
    Advance,
    CopyMoments,
    ForgetMoments,
    Mark,
    MomentBlock,
    MomentDigests,
    OfMoments,
    Settle,
    TakeMoments,
)
from aftermath.parallel.group import Ranks
from aftermath.parallel.inner_shard import InnerShard, parameter_of

_BYTES = torch.uint8


class ShardedInner:
    """The steps of one replica's parameters, for the first rank to have made."""

    takes_gradients_as_they_are: ClassVar[bool] = False

    def __init__(
        self,
        ranks: Ranks,
        schema: Schema,
        tier: int,
        params: Mapping[str, Tensor],
        settings: SparseLoCo,
    ) -> None:
        """Of the replica whose state the ranks hold now (`parallel.sharded_feedback`)."""
        del settings  # the schema has them
        self._ranks, self._params, self._own = ranks, dict(params), ranks.holder
        self._shard = InnerShard(ranks, schema, tier)
        self._plan = self._shard.plan
        self._stepped = self._before = frozenset[str]()
        """Which parameters were, now and before the share."""
        self._failed = False

    def _tell(self, order: OfMoments) -> None:
        """Within this thread's turn."""
        self._ranks.require_holder(self._own)
        self._undo_what_failed()
        self._ranks.tell(order)

    def _undo_what_failed(self) -> None:
        if self._failed:
            self._failed = False
            self._ranks.tell(back := Settle(undo=True))
            self._shard.perform(back, {})

    def _ask(
        self, order: OfMoments, tells: Callable[[int], Iterable[Kind]] = lambda rank: ()
    ) -> list[list[Tensor]]:
        """What every rank tells, on the CPU; `tells` says of what kinds that is."""
        with self._ranks.turn:
            self._tell(order)
            return self._told(order, tells)

    def _told(self, order: OfMoments, tells: Callable[[int], Iterable[Kind]]) -> list[list[Tensor]]:
        """The same, of an order that was given within this thread's turn."""
        return self._ranks.told(self._shard.perform(order, {}), tells)

    def begin(self) -> None:
        """Have all ranks copy their moments."""
        self._ask(Mark())
        self._before = self._stepped

    @torch.no_grad()
    def step(self, lr: float, factors: Sequence[float]) -> None:
        """Have all parameters stepped that have a gradient, which is the ranks' of the last pass
        times the factors.
        """
        without = tuple(name for name, tensor in self._params.items() if tensor.grad is None)
        dealt = [[name for name in own if name not in without] for own in self._plan.dealt]
        with self._ranks.turn:
            self._tell(Advance(lr, tuple(factors), without))
            under_way = [
                self._ranks.expect(self._params[name].detach(), rank)
                for rank, own in enumerate(dealt)
                for name in own
                if rank
            ]
            try:
                for name in dealt[0]:
                    tensor = self._params[name].detach()
                    tensor.copy_(self._shard.step(name, _gradient(self._params[name]), tensor, lr))
            finally:  # nothing may still arrive when parameters are restored
                for arrived in under_way:
                    arrived()
        self._stepped |= self._params.keys() - set(without)

    def end(self) -> None:
        """Have all ranks drop the copies."""
        self._ask(Settle(undo=False))

    def undo(self) -> None:
        """The share failed."""
        self._stepped, self._failed = self._before, True

    def remembered(self) -> dict[str, Tensor]:
        """All moments put together, on the CPU."""
        told = self._ask(CopyMoments(), lambda rank: self._held(rank).values())
        return {
            path: tensor
            for rank, tensors in enumerate(told)
            for path, tensor in zip(self._held(rank), tensors, strict=True)
        }

    def _held(self, rank: int) -> dict[str, Kind]:
        """What a rank remembers by now."""
        return self._plan.of(rank, self._stepped)

    def state(self) -> dict[str, Tensor]:
        """The same, of which the first rank's own are copied."""
        own = self._held(0)
        return {
            path: tensor.clone() if path in own else tensor
            for path, tensor in self.remembered().items()
        }

    def sizes(self) -> dict[str, int]:
        """Of all moments."""
        return {path: bytes_of(kind) for path, kind in self._plan.kinds.items()}

    def digests(self) -> list[bytes]:
        """Of the moments' blocks, each made where it lies."""
        told = self._ask(
            MomentDigests(),
            lambda rank: [((DIGEST * sum(_blocks(self._held(rank)).values()),), _BYTES)],
        )
        found: dict[str, bytes] = {}
        for rank, [own] in enumerate(told):
            counts, data = _blocks(self._held(rank)), own.numpy().tobytes()
            ends = accumulate(DIGEST * count for count in counts.values())
            found |= {
                path: data[end - DIGEST * counts[path] : end]
                for path, end in zip(counts, ends, strict=True)
            }
        return [
            data[at : at + DIGEST]
            for _, data in sorted(found.items())
            for at in range(0, len(data), DIGEST)
        ]

    def block(self, place: BlockSpan) -> bytes:
        """Return a block of a moment from the rank that holds it; empty if it is gone."""
        with self._ranks.turn:  # what there is changes in turns of other threads
            if self._ranks.holder is not self._own:
                return b""
            self._undo_what_failed()
            if parameter_of(place.name) not in self._stepped:
                return b""
            self._ranks.tell(order := MomentBlock(*place))
            owner = self._plan.owner(place.name)
            told = self._told(
                order, lambda rank: [((place.size,), _BYTES)] if rank == owner else []
            )
        return b"".join(tensor.numpy().tobytes() for own in told for tensor in own)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Deal out what `state` gave. Raises BadState, leaving all as it was, unless it is of this
        optimizer.
        """
        check_moments(self._plan.kinds, state)
        if not state:
            self.reset()
            return
        whole = frozenset(self._params)
        with self._ranks.turn:
            self._tell(order := TakeMoments())
            for rank in range(1, self._ranks.size):
                for path in self._plan.of(rank, whole):
                    self._ranks.send(state[path], rank)
            self._shard.perform(order, {path: state[path] for path in self._plan.of(0, whole)})
        self._stepped = whole

    def reset(self) -> None:
        """Have all ranks begin without moments."""
        self._stepped = frozenset()  # before: then nobody asks for them
        self._ask(ForgetMoments())


def _gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def _blocks(kinds: Mapping[str, Kind]) -> dict[str, int]:
    """How many blocks each moment has."""
    return {path: -(-bytes_of(kind) // BLOCK) for path, kind in kinds.items()}
