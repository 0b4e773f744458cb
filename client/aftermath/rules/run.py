"""The accounts `Run` and `Witnesses` as frozen dataclasses with the program's field names.

Forms in all accounts: bitmaps are `int` masks (see `bitmap`), public keys and hashes 32 `bytes`,
strings decoded. An `f64` that travels as its bits is a float under the name without `_bits`.
Per-level arrays are cut to the levels that exist.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

from aftermath.rules.bitmap import seats
from aftermath.rules.state import EstablishedOnly, ExitReason, ModelSource, RunState

STORED_ROUNDS = 4
MAX_WITNESSES = 32
FINGERPRINT_BYTES = 320
BACKLOG = 96
REDO = 4


def steps_before(step: int) -> int:
    """Return how many steps are trained when the program's counter says `step`.

    The counter names the next step and starts at 1. Messages count trained steps: a checkpoint of
    step 120 contains 120 steps.
    """
    return max(step - 1, 0)


@dataclass(frozen=True, slots=True)
class Interval:
    """`len` sequences from sequence index `start`."""

    start: int
    len: int

    @property
    def stop(self) -> int:
        return self.start + self.len


@dataclass(frozen=True, slots=True)
class Config:
    """The rules of a run. Times in seconds, the bond in lamports. `epoch_time` and
    `rounds_per_epoch` are 0 if unset.

    With an `overlap` of 1, the results of a round travel while the next one trains, and the next
    round's witnesses attest them. With 0, the witnesses of the same round attest them. See `judged`
    and `attesting_round`.
    """

    warmup_time: int
    cooldown_time: int
    min_round_time: int
    max_round_train_time: int
    round_witness_time: int
    epoch_time: int
    global_batch_size_warmup_tokens: int
    join_bond: int
    rounds_per_epoch: int
    total_steps: int
    max_seq_len: int
    init_min_clients: int
    min_clients: int
    witness_nodes: int
    overlap: int
    global_batch_size_start: int
    global_batch_size_end: int
    verification_percent: int
    waiting_for_members_extra_time: int

    def judged(self, height: int) -> int:
        """Return the height of the round whose results the witnesses of round `height` attest, or
        -1.
        """
        return height - self.overlap

    def attesting_round(self, height: int) -> int:
        """Return the height of the round whose witnesses attest the results of round `height`."""
        return height + self.overlap


class RoundId(NamedTuple):
    """Identifies a round in votes. The seed differs in each epoch and each attempt at it."""

    epoch: int
    height: int
    seed: int


@dataclass(frozen=True, slots=True)
class Round:
    """The header of a round.

    Its batch has the sequences of `redo`, in order, then fresh ones from `data_index` on. Seeded
    orders shuffle the members that `began` its epoch. `roster` has the members in the round; it is
    fixed when the previous round begins. `salt` is for the fingerprints attested in it.
    `established` says what is reserved for the members in `Members.judges`.
    """

    seed: int
    salt: int
    began: int
    data_index: int
    height: int
    step: int
    batch: int
    redo: tuple[Interval, ...]
    clients: int
    elected: int
    attestations: int
    roster: int
    attested: int
    established: EstablishedOnly

    @property
    def redone(self) -> int:
        """Return how many sequences are trained again. They come first in the batch."""
        return sum(interval.len for interval in self.redo)

    @property
    def pieces(self) -> tuple[Interval, ...]:
        """Return the sequences of the batch by position, as ascending intervals."""
        fresh = Interval(self.data_index, self.batch - self.redone)
        return (*self.redo, fresh) if fresh.len else self.redo

    @property
    def members(self) -> tuple[int, ...]:
        """Return the seats of the roster, by rank."""
        return tuple(seats(self.roster))


@dataclass(frozen=True, slots=True)
class Run:
    """The account that changes at every transition. Times are unix seconds of the chain.

    `backlog` is the number of sequences to train again. The next round's seed is drawn from the
    hash of slot `seed_slot`, which is 0 afterwards. `created` is the slot of the run's creation.
    `levels_established` is a bitmap of the levels that only `Members.judges` judge since the rounds
    began.
    """

    version: int
    state: RunState
    pending_pause: bool
    cold_start: bool
    model_source: ModelSource
    exit_reason: ExitReason
    draining: int
    """Number of drain rounds left, including the current one."""
    head: int
    levels: int
    levels_attested: int
    levels_lost: int
    levels_established: int
    run_id: str
    main_authority: bytes
    join_authority: bytes
    seq: int
    model_seq: int
    members_seq: int
    state_started_at: int
    waiting_since: int
    config: Config
    epoch: int
    step: int
    data_index: int
    backlog: int
    epoch_started_at: int
    start_step: int
    attested_step: int
    attested_data_index: int
    lost_sequences: int
    seed_slot: int
    next_seed: int
    created: int
    earning_rate: int
    slashing_rate: int
    future_earning_rate: int
    future_slashing_rate: int
    rounds: tuple[Round, ...]
    finishers: int
    began: int
    next_roster: int
    level_hashes: tuple[bytes, ...]

    @property
    def seed_is_drawn(self) -> bool:
        """Return whether the next seed is drawn; in warm-up, whether the witnesses are known."""
        return self.seed_slot == 0

    @property
    def active(self) -> bool:
        return self.state.active

    @property
    def starts_empty(self) -> bool:
        """Return whether members begin the running epoch with empty private states.

        In runs with audits they do, so that a state invented in a round that was not drawn
        affects no later epoch.
        """
        return self.cold_start or bool(self.config.verification_percent)

    @property
    def is_audited(self) -> bool:
        """Return whether results of the running epoch are audited.

        An epoch in which everyone witnesses has no audits, because newcomers could convict
        established members.
        """
        return bool(self.config.verification_percent and self.current.established)

    @property
    def halted(self) -> bool:
        return self.state.halted

    @property
    def identity(self) -> str:
        """Return 16 hex digits that distinguish this run from earlier runs with the same id."""
        preimage = self.run_id.encode() + self.main_authority + self.created.to_bytes(8, "little")
        return hashlib.sha256(preimage).hexdigest()[:16]

    @property
    def trained_steps(self) -> int:
        return steps_before(self.step)

    @property
    def current(self) -> Round:
        """Return the newest round header. In warm-up it has the roster, the seed and the warm-up
        witnesses.
        """
        return self.rounds[self.head]

    @property
    def round_id(self) -> RoundId:
        """Return the `RoundId` of the current round, for votes."""
        return RoundId(self.epoch, self.current.height, self.current.seed)

    def round(self, height: int) -> Round | None:
        """Return the header of round `height` of this epoch, or None if the ring of four has
        dropped it.
        """
        back = self.current.height - height
        if height < 0 or not 0 <= back < STORED_ROUNDS:
            return None
        candidate = self.rounds[(self.head - back) % STORED_ROUNDS]
        return candidate if candidate.height == height and candidate.clients else None

    def ring(self, height: int) -> int | None:
        """Return the ring index of round `height` in Run and Witnesses, or None if it is not
        stored.
        """
        if self.round(height) is None:
            return None
        return (self.head - (self.current.height - height)) % STORED_ROUNDS


@dataclass(frozen=True, slots=True)
class Attestation:
    """One witness's attestation: who delivered, and a fingerprint of each result (`consensus`)."""

    seat: int
    participation: int
    fingerprints: bytes
