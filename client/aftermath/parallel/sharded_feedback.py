"""The error feedback of a member, divided over its ranks (`optim.error_feedback` on one).

Each rank adds the pseudo-gradient to its part and selects from it. The first rank collects the
selected indices and values and encodes a payload that is bit-identical to a single rank's. The
state itself moves only to be saved or copied. Ranks hold the state of one replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from aftermath.optim.codec import encode_groups, encode_level
from aftermath.optim.error_feedback import check_made, follow, measured
from aftermath.optim.format import ResultFormat
from aftermath.optim.interfaces import Measured, PseudoGradient
from aftermath.optim.layout import Part, level_layout
from aftermath.optim.moe_bias import Balances
from aftermath.optim.schema import Schema
from aftermath.optim.state_checks import check_state, state_sizes
from aftermath.optim.state_merkle import BlockSpan, digests_told, told_size
from aftermath.parallel.commands import (
    Compress,
    CopyState,
    Directions,
    ForgetState,
    HoldState,
    MeasureEnergies,
    ReadState,
    RestoreState,
    StateCommand,
    StateDigests,
)
from aftermath.parallel.feedback_shard import FeedbackShard
from aftermath.parallel.feedback_split import parts_of
from aftermath.parallel.group import Ranks


class ShardedFeedback:
    """Make the results of one replica on all ranks. The first rank uses it."""

    def __init__(
        self,
        ranks: Ranks,
        schema: Schema,
        results: ResultFormat,
        tier: int,
        params: Mapping[str, Tensor],
        decay: float,
        balances: Balances,
    ) -> None:
        """Allocate the state on all ranks. The others read their settings from `schema`."""
        del decay
        self._ranks = ranks
        self._format = results
        self._names = frozenset(params)
        self._balances = balances
        self._layouts = {
            level: level_layout(results, level) for level in range(tier, results.levels)
        }
        self._sent: dict[int, bytes] = {}
        self._own = object()
        with ranks.turn:
            ranks.send_command(HoldState(schema.to_json(), tier))
            ranks.holder = self._own
        self._shard = FeedbackShard(ranks, schema, tier)
        self._plan = self._shard.plan

    def _ask(
        self, command: StateCommand, given: Callable[[int], Sequence[Tensor]] = lambda rank: ()
    ) -> list[list[Tensor]]:
        """Send a command and each rank's `given` tensors. Return what every rank sends back."""
        with self._ranks.turn:
            self._ranks.require_holder(self._own)
            return self._replies(command, given)

    def _replies(
        self, command: StateCommand, given: Callable[[int], Sequence[Tensor]] = lambda rank: ()
    ) -> list[list[Tensor]]:
        """Do the work of `_ask` while this thread holds the turn."""
        ranks = self._ranks
        ranks.send_command(command)
        for rank in range(1, ranks.size):
            for tensor in given(rank):
                ranks.send(tensor, rank)
        return ranks.gather_replies(
            self._shard.perform(command, given(0)), lambda rank: self._plan.tells(command, rank)
        )

    def directions(self) -> Iterator[tuple[Part, Tensor]]:
        """Yield the signs of the residual of all parts."""
        pieces = chain.from_iterable(held.pieces for held in self._plan.held)
        replies = chain.from_iterable(self._ask(Directions()))
        return (
            (part, signs.to(torch.float32))
            for part, signs in parts_of(zip(pieces, replies, strict=True))
        )

    def go_ahead(self, params: Mapping[str, Tensor], rate: float) -> None:
        """Add -rate times these signs to the parameters."""
        follow(self.directions(), params, rate)

    def compress(self, made: PseudoGradient) -> dict[int, bytes]:
        """Add a pseudo-gradient to the residual. Return the payload of each level."""
        check_made(made, self._names, self._layouts)
        self._sent = {}
        held = self._plan.held
        replies = self._ask(
            Compress(made.factor), lambda rank: [piece.of(made) for piece in held[rank].pieces]
        )
        for number, level in enumerate(self._plan.levels):
            indices, values = (
                np.concatenate([own[2 * number + which].numpy() for own in replies])
                for which in (0, 1)
            )
            self._sent[level] = encode_level(self._format, level, indices.view(np.uint16), values)
        return self.sent()

    def sent(self) -> dict[int, bytes]:
        """Return the last result's payload of each level."""
        return dict(self._sent)

    def measure(self, made: PseudoGradient) -> dict[int, Measured]:
        """Return the measurements of each level, from the sums over all ranks."""
        energies = torch.stack([own for [own] in self._ask(MeasureEnergies())]).sum(0).tolist()
        return {
            level: measured(self._layouts[level], made, whole, carried, self._balances)
            for level, (whole, carried) in zip(self._plan.levels, energies, strict=True)
        }

    def remembered(self) -> dict[str, Tensor]:
        """Return the whole state on the CPU."""
        replies = self._ask(CopyState(bool(self._sent)))
        found: dict[str, list[Tensor]] = {}
        for rank, own in enumerate(replies):
            for name, tensor in zip(self._plan.state(rank, bool(self._sent)), own, strict=True):
                found.setdefault(name, []).append(tensor)
        return {name: torch.cat(tensors) for name, tensors in found.items()}

    def state(self) -> dict[str, Tensor]:
        """Return the whole state. It is a copy already."""
        return self.remembered()

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each tensor of the state."""
        return state_sizes(self._layouts)

    def digests(self) -> list[bytes]:
        """Return the digests of the state's blocks. Each rank hashes the blocks that it holds."""
        replies = [bytes(own.numpy()) for [own] in self._ask(StateDigests(bool(self._sent)))]
        runs: dict[str, list[tuple[int, int, bytes]]] = {}
        sizes: dict[str, int] = {}
        for rank, said in enumerate(replies):
            at = 0
            for name in self._plan.state(rank, bool(self._sent)):
                start, stop, sizes[name] = self._plan.span(rank, name)
                length = told_size(start, stop, sizes[name])
                runs.setdefault(name, []).append((start, stop, said[at : at + length]))
                at += length
        return [digest for name in sorted(runs) for digest in digests_told(runs[name], sizes[name])]

    def block(self, place: BlockSpan) -> bytes:
        """Return a block of the state from the rank that holds it; empty if it is gone."""
        with self._ranks.turn:  # other threads change the state in their turns
            if self._ranks.holder is not self._own or not self._shard.remembers(place.name):
                return b""
            replies = self._replies(ReadState(*place))
        return b"".join(bytes(own.numpy()) for [own] in replies)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Send a result of `state` to the ranks. Raises BadState, and changes nothing, if it does
        not fit this replica exactly.
        """
        sent = check_state(self._layouts, state, self._format.values.lattice_bits)

        def part(rank: int) -> list[Tensor]:
            rows = ((name, self._plan.rows(rank, name)) for name in self._plan.state(rank, sent))
            return [
                state[name].narrow(0, own.first, own.count) for name, own in rows if own is not None
            ]

        self._ask(RestoreState(sent), part)
        self._sent = {}
        for level, layout in self._layouts.items() if sent else ():
            names = [f"{level}.{group}" for group in range(len(layout.groups))]
            chosen = [(state[f"indices.{name}"], state[f"values.{name}"]) for name in names]
            self._sent[level] = encode_groups(self._format, level, chosen)

    def reset(self) -> None:
        """Reset the state of all ranks."""
        self._ask(ForgetState())
        self._sent = {}
