"""Train all replicas of a run in one process with the members' own code.

Every result is encoded to bytes and decoded. In a run, the network between members affects only
which results are accepted. Here the caller decides which ones are. With an overlap of 1, the
results of a round are applied after the next round was trained, as in a run.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.lab.trainer import MemberResult, Rates, Stepped, below, on_cpu, take_weights
from aftermath.model.json_documents import CheckpointError
from aftermath.model.network import LanguageModel
from aftermath.optim.codec import decode_level
from aftermath.optim.gradient_clip import NonFiniteGradient
from aftermath.replica.replica import Replica

if TYPE_CHECKING:
    from aftermath.lab.stacked_members import StackedMembers

Results = dict[int, list[bytes]]
"""The payloads of a round that count, by level."""

_UNDER_WAY = "under-way/"
_TRAVELLING = "travelling"


class ReplicasDiffer(AftermathError):
    """Two replicas hold different numbers for the same level. This is a bug or a memory fault."""

    code = "replicas-differ"


class MultiReplicaTrainer:
    """Trains the replicas of all members. `rate` returns the learning rate of a step.

    Replicas of one tier may share their tensors (`Replica.another`). A round is then applied to
    them once.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        rate: Callable[[int], float],
        overlap: int,
        stacked: StackedMembers | None = None,
        *,
        reset_inner: bool = False,
    ) -> None:
        """Train members at once where `stacked` can, and the others one after another.

        `reset_inner` makes their inner optimizers forget their state before each round.
        """
        self.replicas = list(replicas)
        first: dict[int, int] = {}
        for member, replica in enumerate(self.replicas):
            first.setdefault(id(replica.model), member)
        self._holders = {member: self.replicas[member] for member in first.values()}
        """The first member of each set of tensors. It applies results for the others."""
        self._schema = self.replicas[0].schema
        self._rate = rate
        self._overlap = overlap
        self._stacked = stacked
        self._reset_inner = reset_inner
        self._under_way: list[tuple[int, Results]] = []
        self._travelling = [False] * len(self.replicas)

    def step(self, step: int, shares: Sequence[Tensor], accepted: Sequence[bool]) -> Stepped:
        """Train every member's share, then apply the results that are due."""
        results: Results = {level: [] for level in range(self._schema.state.levels)}
        losses: list[float | None] = []
        left_out = []
        sent = 0
        if self._reset_inner:
            for replica in self.replicas:
                replica.optimizer.private_step.reset()
        at_once = self._train_stacked(shares, step)
        for member, (sequences, counts) in enumerate(zip(shares, accepted, strict=True)):
            trained = at_once.get(member)
            if trained is None:
                trained = self._train(member, sequences, step)
            self._travelling[member] = bool(self._overlap) and not isinstance(trained, str)
            if isinstance(trained, str):
                losses.append(None)
                left_out.append(trained)
                continue
            losses.append(trained.loss)
            sent += sum(map(len, trained.payloads.values()))
            if counts:
                for level, payload in trained.payloads.items():
                    results[level].append(payload)
        self._under_way.append((step, results))
        while len(self._under_way) > self._overlap:
            self._apply(*self._under_way.pop(0))
        return Stepped(losses, sent, tuple(left_out))

    def _train_stacked(
        self, shares: Sequence[Tensor], step: int
    ) -> Mapping[int, MemberResult | str]:
        """Return the results, or the reasons why there are none, of members trained at once."""
        if self._stacked is None:
            return {}
        return self._stacked.train(shares, self._rates(step), self._travelling)

    def _train(self, member: int, sequences: Tensor, step: int) -> MemberResult | str:
        """Return a member's result, or the reason why there is none."""
        travelling = self._travelling[member]
        try:
            trained = self.replicas[member].train(
                sequences, *self._rates(step), threading.Event(), travelling=travelling
            )
        except NonFiniteGradient as error:
            return error.message
        if not math.isfinite(trained.loss):
            return f"the loss is {trained.loss}"
        return MemberResult(trained.payloads, trained.loss)

    def _rates(self, step: int) -> Rates:
        return Rates(self._rate(step), self._rate(step - 1))

    def _apply(self, step: int, results: Results) -> None:
        device = self.replicas[0].device
        votes = {
            level: [
                decode_level(payload, self._schema.results, level, device) for payload in payloads
            ]
            for level, payloads in results.items()
        }
        for replica in self._holders.values():
            replica.apply({level: votes[level] for level in replica.levels}, self._rate(step))

    def settle(self) -> None:
        """Apply all pending results, after the last step."""
        while self._under_way:
            self._apply(*self._under_way.pop(0))

    def hashes(self) -> dict[int, bytes]:
        """Return the hash of every level. Raises ReplicasDiffer if two replicas disagree."""
        digests: dict[int, bytes] = {}
        for member, replica in self._holders.items():
            for level, digest in replica.hashes().items():
                if digests.setdefault(level, digest) != digest:
                    raise ReplicasDiffer(
                        f"the replica of member {member} differs from the others at level {level}",
                        "Please report this bug, unless this machine's memory is faulty",
                    )
        return digests

    def check(self) -> None:
        """Raise ReplicasDiffer if replicas hold different numbers for the same level."""
        self.hashes()

    def models(self) -> Mapping[int, LanguageModel]:
        """Return one model per tier, the largest first."""
        return {
            replica.tier: replica.model
            for replica in sorted(self.replicas, key=lambda replica: replica.tier)
        }

    def state(self) -> dict[str, Tensor]:
        """Return all weights, the private state of every member, and the pending results."""
        tensors = {_TRAVELLING: torch.tensor(self._travelling)}
        for member, replica in self._holders.items():
            tensors |= on_cpu(replica.shared, f"{member}/weights/")
        for member, replica in enumerate(self.replicas):
            tensors |= on_cpu(replica.optimizer.state(), f"{member}/optimizer/")
        for step, results in self._under_way:
            for level, payloads in results.items():
                sizes = (len(payloads), self._schema.results.payload_bytes(level))
                joined = torch.frombuffer(
                    bytearray(b"".join(payloads)) or bytearray(1), dtype=torch.uint8
                )
                tensors[f"{_UNDER_WAY}{step}/{level}"] = (
                    joined[: sizes[0] * sizes[1]].view(sizes).clone()
                )
        return tensors

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned.

        Raises CheckpointError or BadState if it does not fit, or BadPayload for a damaged result.
        """
        under_way = self._results(below(state, _UNDER_WAY))
        travelling = state.get(_TRAVELLING, torch.empty(0))
        if travelling.shape != (len(self.replicas),) or travelling.dtype != torch.bool:
            raise CheckpointError(
                "the saved state does not list the pending results of each member",
                "Name another --out",
            )
        for member, replica in self._holders.items():
            take_weights(replica.shared, below(state, f"{member}/weights/"))
        for member, replica in enumerate(self.replicas):
            replica.optimizer.restore(below(state, f"{member}/optimizer/"))
        self._under_way = under_way
        self._travelling = travelling.tolist()
        self.check()

    def _results(self, tensors: Mapping[str, Tensor]) -> list[tuple[int, Results]]:
        """Return the saved pending results by step, in order."""
        results: dict[int, Results] = {}
        for path, payloads in tensors.items():
            step, _, level = path.partition("/")
            if (
                not (step.isdecimal() and level.isdecimal())
                or payloads.dtype != torch.uint8
                or payloads.ndim != 2
            ):
                raise CheckpointError(
                    f"the saved state has results in an unknown format: {path}",
                    "Name another --out",
                )
            rows = [payload.numpy().tobytes() for payload in payloads]
            for row in rows:
                decode_level(row, self._schema.results, int(level))
            results.setdefault(int(step), {})[int(level)] = rows
        if len(results) > self._overlap or any(
            len(levels) != self._schema.state.levels for levels in results.values()
        ):
            raise CheckpointError(
                "the saved state has too few or too many results", "Name another --out"
            )
        return sorted(results.items())
