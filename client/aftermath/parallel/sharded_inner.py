"""The inner optimizer of a member, its moments divided over the ranks.

The first rank computes the clipping factor from one norm and sends it with the learning rate, so a
step has the bits of a single rank. The state moves only to be saved or copied. A failed share is
undone before the next use of the moments, not at once, because a rank may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from aftermath.base.merkle import DIGEST
from aftermath.optim.moments import Kind, bytes_of, check_moments
from aftermath.optim.schema import Schema
from aftermath.optim.state_merkle import BLOCK, BlockSpan
from aftermath.parallel.commands import (
    CopyForUndo,
    CopyMoments,
    EndShare,
    ForgetMoments,
    MomentBlock,
    MomentCommand,
    MomentDigests,
    RestoreMoments,
    StepParameters,
)
from aftermath.parallel.group import Ranks
from aftermath.parallel.inner_shard import InnerShard, parameter_of
from aftermath.rules.optimizer import Optimizer

_BYTES = torch.uint8


class ShardedInner:
    """Step one replica's parameters on all ranks. The first rank uses it."""

    takes_gradients_as_they_are: ClassVar[bool] = False

    def __init__(
        self,
        ranks: Ranks,
        schema: Schema,
        tier: int,
        params: Mapping[str, Tensor],
        settings: Optimizer,
    ) -> None:
        """Use the replica whose state the ranks hold now (`parallel.sharded_feedback`)."""
        del settings  # the schema has them
        self._ranks = ranks
        self._params = dict(params)
        self._own = ranks.holder
        self._shard = InnerShard(ranks, schema, tier)
        self._plan = self._shard.plan
        self._stepped = frozenset[str]()
        """Parameters that have moments."""
        self._before = self._stepped
        """Parameters that had moments before the share."""
        self._failed = False

    def _send(self, command: MomentCommand) -> None:
        """Send a command while this thread holds the turn."""
        self._ranks.require_holder(self._own)
        self._undo_what_failed()
        self._ranks.send_command(command)

    def _undo_what_failed(self) -> None:
        if self._failed:
            self._failed = False
            self._ranks.send_command(back := EndShare(undo=True))
            self._shard.perform(back, {})

    def _ask(
        self, command: MomentCommand, tells: Callable[[int], Iterable[Kind]] = lambda rank: ()
    ) -> list[list[Tensor]]:
        """Send a command. Return each rank's tensors of the shapes and types `tells(rank)`."""
        with self._ranks.turn:
            self._send(command)
            return self._replies(command, tells)

    def _replies(
        self, command: MomentCommand, tells: Callable[[int], Iterable[Kind]]
    ) -> list[list[Tensor]]:
        """Return each rank's tensors for a command that was sent in the same turn."""
        return self._ranks.gather_replies(self._shard.perform(command, {}), tells)

    def begin(self) -> None:
        """Copy the moments of all ranks, so that the share can be undone."""
        self._ask(CopyForUndo())
        self._before = self._stepped

    @torch.no_grad()
    def step(self, lr: float, factors: Sequence[float]) -> None:
        """Step all parameters that have a gradient.

        The gradients are those that the ranks hold of the last pass, times the factors.
        """
        without = tuple(name for name, tensor in self._params.items() if tensor.grad is None)
        owned = [[name for name in own if name not in without] for own in self._plan.owned]
        with self._ranks.turn:
            self._send(StepParameters(lr, tuple(factors), without))
            under_way = [
                self._ranks.irecv(self._params[name].detach(), rank)
                for rank, own in enumerate(owned)
                for name in own
                if rank
            ]
            try:
                for name in owned[0]:
                    tensor = self._params[name].detach()
                    tensor.copy_(self._shard.step(name, _gradient(self._params[name]), tensor, lr))
            finally:  # no transfer may end after the parameters are restored
                for arrived in under_way:
                    arrived()
        self._stepped |= self._params.keys() - set(without)

    def end(self) -> None:
        """Drop the copies of the moments."""
        self._ask(EndShare(undo=False))

    def undo(self) -> None:
        """Restore the moments before the next use, because the share failed."""
        self._stepped = self._before
        self._failed = True

    def remembered(self) -> dict[str, Tensor]:
        """Return all moments on the CPU."""
        replies = self._ask(CopyMoments(), lambda rank: self._held(rank).values())
        return {
            path: tensor
            for rank, tensors in enumerate(replies)
            for path, tensor in zip(self._held(rank), tensors, strict=True)
        }

    def _held(self, rank: int) -> dict[str, Kind]:
        """Return the moments that a rank holds now."""
        return self._plan.of(rank, self._stepped)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all moments on the CPU."""
        own = self._held(0)
        return {
            path: tensor.clone() if path in own else tensor
            for path, tensor in self.remembered().items()
        }

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each moment."""
        return {path: bytes_of(kind) for path, kind in self._plan.kinds.items()}

    def digests(self) -> list[bytes]:
        """Return the digests of the moments' blocks. Each rank hashes its own."""
        replies = self._ask(
            MomentDigests(),
            lambda rank: [((DIGEST * sum(_blocks(self._held(rank)).values()),), _BYTES)],
        )
        found: dict[str, bytes] = {}
        for rank, [own] in enumerate(replies):
            counts = _blocks(self._held(rank))
            data = own.numpy().tobytes()
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
        with self._ranks.turn:  # other threads change the moments in their turns
            if self._ranks.holder is not self._own:
                return b""
            self._undo_what_failed()
            if parameter_of(place.name) not in self._stepped:
                return b""
            self._ranks.send_command(command := MomentBlock(*place))
            owner = self._plan.owner(place.name)
            replies = self._replies(
                command, lambda rank: [((place.size,), _BYTES)] if rank == owner else []
            )
        return b"".join(tensor.numpy().tobytes() for own in replies for tensor in own)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Send a result of `state` to the ranks. Raises BadState, and changes nothing, if it is not
        of this optimizer.
        """
        check_moments(self._plan.kinds, state)
        if not state:
            self.reset()
            return
        whole = frozenset(self._params)
        with self._ranks.turn:
            self._send(command := RestoreMoments())
            for rank in range(1, self._ranks.size):
                for path in self._plan.of(rank, whole):
                    self._ranks.send(state[path], rank)
            self._shard.perform(command, {path: state[path] for path in self._plan.of(0, whole)})
        self._stepped = whole

    def reset(self) -> None:
        """Reset the moments of all ranks."""
        self._stepped = frozenset()  # first, so that no other thread asks for them
        self._ask(ForgetMoments())


def _gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def _blocks(kinds: Mapping[str, Kind]) -> dict[str, int]:
    """Return the number of blocks of each moment."""
    return {path: -(-bytes_of(kind) // BLOCK) for path, kind in kinds.items()}
