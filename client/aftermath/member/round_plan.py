"""The duties of all members in one round, computed from the chain's accounts alone."""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.optim.schema import Schema
from aftermath.rules.announcements import Commitment
from aftermath.rules.assignment import PositionInterval, assign, sequences
from aftermath.rules.members import Members, Seat
from aftermath.rules.run import Round
from aftermath.rules.seal import ResultPlace, Reveal


@dataclass(frozen=True)
class RoundPlan:
    """The shares of one round. A member with an empty share delivers no result."""

    run_id: str
    epoch: int
    header: Round
    seats: tuple[Seat, ...]
    shares: dict[int, PositionInterval]

    @property
    def owing(self) -> frozenset[int]:
        """Return the seats whose result the round needs."""
        return frozenset(seat for seat, share in self.shares.items() if share.len)

    def place(self, seat: int) -> ResultPlace:
        """Return the place of a seat's result in the run."""
        return ResultPlace(self.run_id, self.epoch, self.header.height, self.header.seed, seat)

    def ranges(self, seat: int) -> list[range]:
        """Return the sequences that `seat` trains in this round; empty if it is not in it."""
        share = self.shares.get(seat)
        return sequences(self.header, share) if share is not None else []

    def admits(self, commitment: Commitment, schema: Schema) -> bool:
        """Return whether a commitment comes from the member it names, covers exactly its share,
        and states passes that the schema allows.
        """
        if commitment.seat not in self.owing:
            return False
        member = self.seats[commitment.seat]
        return (
            commitment.run_id == self.run_id
            and (commitment.epoch, commitment.height, commitment.step)
            == (self.epoch, self.header.height, self.header.step)
            and commitment.seed == self.header.seed
            and (commitment.sender, commitment.signer, commitment.tier)
            == (member.p2p, member.signer, member.tier)
            and commitment.schema_hash == schema.hash()
            # Otherwise every judge would abstain, because no device repeats such steps.
            and (commitment.passes.steps == "fp32" or schema.optimizer.may_step_in_bf16)
            and [(i.start, i.stop) for i in commitment.intervals]
            == [(r.start, r.stop) for r in self.ranges(commitment.seat)]
            and list(commitment.levels) == list(range(commitment.tier, schema.state.levels))
            and all(
                payload.size == schema.results.payload_bytes(level)
                for level, payload in commitment.levels.items()
            )
        )

    def comes_from(self, key: Reveal) -> bool:
        """Return whether a key belongs to this round and was sent by the member that it names."""
        member = self.seats[key.seat]
        return key.place == self.place(key.seat) and (key.sender, key.signer) == (
            member.p2p,
            member.signer,
        )


def plan_round(run_id: str, epoch: int, header: Round, members: Members) -> RoundPlan:
    """Return the plan of a round. `members` must still have the epoch's tiers and weights."""
    return RoundPlan(run_id, epoch, header, members.seats, assign(header, members))
