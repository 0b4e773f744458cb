"""The error feedback of a member, divided over its ranks (`optim.feedback` on one).

Each rank adds the pseudo-gradient to its part and selects from it. The first rank collects the few
indices and values and makes the payload, bit-identical to that of a single rank. The state itself
moves only to be saved or copied. Ranks hold the state of one replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from aftermath.optim.balance import Balances
from aftermath.optim.codec import encode_groups, encode_level
from aftermath.optim.feedback import check_made, follow, measured
from aftermath.optim.format import ResultFormat
from aftermath.optim.layout import Part, level_layout
from aftermath.optim.parts import Measured, PseudoGradient
from aftermath.optim.private_blocks import BlockSpan, digests_told, told_size
from aftermath.optim.remembered import check_state, state_sizes
from aftermath.optim.schema import Schema
from aftermath.parallel.commands import (
    Choose,
    Copy,
    Digests,
    Directions,
    Forget,
    Hold,
    OfState,
    Read,
    Restore,
    Weigh,
)
from aftermath.parallel.feedback_shard import Shard
from aftermath.parallel.feedback_split import parts_of
from aftermath.parallel.group import Ranks


class ShardedFeedback:
    """The results of one replica, for the first rank to make."""

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
        """Collective, as what it does; the others follow (`parallel.worker`). `schema` has what the
        others are told.
        """
        del decay
        self._ranks, self._format, self._names, self._balances = (
            ranks,
            results,
            frozenset(params),
            balances,
        )
        self._layouts = {
            level: level_layout(results, level) for level in range(tier, results.levels)
        }
        self._sent: dict[int, bytes] = {}
        self._own = object()
        with ranks.turn:
            ranks.tell(Hold(schema.to_json(), tier))
            ranks.holder = self._own
        self._shard = Shard(ranks, schema, tier)
        self._plan = self._shard.plan

    def _ask(
        self, order: OfState, given: Callable[[int], Sequence[Tensor]] = lambda rank: ()
    ) -> list[list[Tensor]]:
        """What every rank tells when it is given that."""
        with self._ranks.turn:
            self._ranks.require_holder(self._own)
            return self._told(order, given)

    def _told(
        self, order: OfState, given: Callable[[int], Sequence[Tensor]] = lambda rank: ()
    ) -> list[list[Tensor]]:
        """The same, within this thread's turn."""
        ranks = self._ranks
        ranks.tell(order)
        for rank in range(1, ranks.size):
            for tensor in given(rank):
                ranks.send(tensor, rank)
        return ranks.told(
            self._shard.perform(order, given(0)), lambda rank: self._plan.tells(order, rank)
        )

    def directions(self) -> Iterator[tuple[Part, Tensor]]:
        """The signs of all parts."""
        pieces = chain.from_iterable(held.pieces for held in self._plan.held)
        told = chain.from_iterable(self._ask(Directions()))
        return (
            (part, signs.to(torch.float32))
            for part, signs in parts_of(zip(pieces, told, strict=True))
        )

    def go_ahead(self, params: Mapping[str, Tensor], rate: float) -> None:
        """Change parameters by -rate times these signs."""
        follow(self.directions(), params, rate)

    def compress(self, made: PseudoGradient) -> dict[int, bytes]:
        """Have a pseudo-gradient added to all parts; the result per held level."""
        check_made(made, self._names, self._layouts)
        self._sent = {}
        held = self._plan.held
        told = self._ask(
            Choose(made.factor), lambda rank: [piece.of(made) for piece in held[rank].pieces]
        )
        for number, level in enumerate(self._plan.levels):
            indices, values = (
                np.concatenate([own[2 * number + which].numpy() for own in told])
                for which in (0, 1)
            )
            self._sent[level] = encode_level(self._format, level, indices.view(np.uint16), values)
        return self.sent()

    def sent(self) -> dict[int, bytes]:
        """The last result."""
        return dict(self._sent)

    def measure(self, made: PseudoGradient) -> dict[int, Measured]:
        """Of the sums of what the ranks measure."""
        energies = torch.stack([own for [own] in self._ask(Weigh())]).sum(0).tolist()
        return {
            level: measured(self._layouts[level], made, whole, carried, self._balances)
            for level, (whole, carried) in zip(self._plan.levels, energies, strict=True)
        }

    def remembered(self) -> dict[str, Tensor]:
        """All parts put together, on the CPU."""
        told, found = self._ask(Copy(bool(self._sent))), dict[str, list[Tensor]]()
        for rank, own in enumerate(told):
            for name, tensor in zip(self._plan.state(rank, bool(self._sent)), own, strict=True):
                found.setdefault(name, []).append(tensor)
        return {name: torch.cat(tensors) for name, tensors in found.items()}

    def state(self) -> dict[str, Tensor]:
        """The same."""
        return self.remembered()

    def sizes(self) -> dict[str, int]:
        """Of what is remembered."""
        return state_sizes(self._layouts)

    def digests(self) -> list[bytes]:
        """Of the state's blocks, most of which the ranks make."""
        told = [bytes(own.numpy()) for [own] in self._ask(Digests(bool(self._sent)))]
        runs: dict[str, list[tuple[int, int, bytes]]] = {}
        sizes: dict[str, int] = {}
        for rank, said in enumerate(told):
            at = 0
            for name in self._plan.state(rank, bool(self._sent)):
                start, stop, sizes[name] = self._plan.span(rank, name)
                length = told_size(start, stop, sizes[name])
                runs.setdefault(name, []).append((start, stop, said[at : at + length]))
                at += length
        return [digest for name in sorted(runs) for digest in digests_told(runs[name], sizes[name])]

    def block(self, place: BlockSpan) -> bytes:
        """Return a block of the state from the rank that holds it; empty if it is gone."""
        with self._ranks.turn:  # what there is changes in turns of other threads
            if self._ranks.holder is not self._own or not self._shard.remembers(place.name):
                return b""
            told = self._told(Read(*place))
        return b"".join(bytes(own.numpy()) for [own] in told)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Deal out what `state` gave. Raises BadState, leaving all as it was, unless it fits this
        replica exactly.
        """
        sent = check_state(self._layouts, state, self._format.values.lattice_bits)

        def part(rank: int) -> list[Tensor]:
            rows = ((name, self._plan.rows(rank, name)) for name in self._plan.state(rank, sent))
            return [
                state[name].narrow(0, own.first, own.count) for name, own in rows if own is not None
            ]

        self._ask(Restore(sent), part)
        self._sent = {}
        for level, layout in self._layouts.items() if sent else ():
            names = [f"{level}.{group}" for group in range(len(layout.groups))]
            chosen = [(state[f"indices.{name}"], state[f"values.{name}"]) for name in names]
            self._sent[level] = encode_groups(self._format, level, chosen)

    def reset(self) -> None:
        """Have all ranks forget what they learnt."""
        self._ask(Forget())
        self._sent = {}
