"""What the accounts `Run` and `Witnesses` hold, as frozen dataclasses with the program's field names.

Decided (of all accounts): bitmaps are `int` masks (see `bitmap`), public keys and hashes are 32 `bytes`, strings are
decoded, `f64` values that travel as their bits are floats under the name without `_bits`, and per-level arrays are cut
to the levels that exist. The program's step counters name the step that comes next; people are told how many are
trained (`steps_before`): step 120 is the 120th, and a model or checkpoint of step 120 has 120 steps in it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

from aftermath.rules.bitmap import seats
from aftermath.rules.state import Alone, ExitReason, ModelSource, RunState

STORED_ROUNDS = 4
MAX_WITNESSES = 32
MAX_VERDICTS = 32
FINGERPRINT_BYTES = 320
BACKLOG = 96
REDO = 4


def steps_before(step: int) -> int:
    """How many steps are trained when the program's counter says `step`; the first step is 1, and 0 is no step."""
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
    """The rules of a run. Times in seconds, the bond in lamports; `epoch_time` and `rounds_per_epoch` are 0 when unset.

    With an `overlap` of 1 the results of a round travel while the next one trains, whose witnesses attest them; with 0
    its own witnesses do. Whatever depends on it asks `judged` and `judges`.
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
        """The height of the round whose results the witnesses of round `height` attest; -1 if there is none."""
        return height - self.overlap

    def judges(self, height: int) -> int:
        """The height of the round whose witnesses attest the results of round `height`."""
        return height + self.overlap


class RoundId(NamedTuple):
    """Names a round, for votes: no other epoch, nor another attempt at the same, has one of this seed."""

    epoch: int
    height: int
    seed: int


@dataclass(frozen=True, slots=True)
class Round:
    """The header of a round. The positions of its batch are the sequences of `redo`, in order, then fresh ones from
    `data_index` on. `began`: the members that began its epoch, of whom its orders are; `roster`: those in the
    round, fixed when the one before it began. `salt` is what the fingerprints are made with that are attested in it.
    `established` says what those of `Members.judges` do alone: its witnesses, and their order, may be of these.
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
    established: Alone

    @property
    def redone(self) -> int:
        """How many sequences of the batch are done again, its first positions."""
        return sum(interval.len for interval in self.redo)

    @property
    def pieces(self) -> tuple[Interval, ...]:
        """The sequences of the batch by position, as intervals that ascend."""
        fresh = Interval(self.data_index, self.batch - self.redone)
        return (*self.redo, fresh) if fresh.len else self.redo

    @property
    def members(self) -> tuple[int, ...]:
        """The seats of the roster, by rank."""
        return tuple(seats(self.roster))


@dataclass(frozen=True, slots=True)
class Run:
    """The account that changes at every transition, and to subscribe to. Times are unix seconds of the chain;
    `backlog` is how many sequences wait to be trained again. The next round's seed is drawn from the hash of the slot
    `seed_slot`, which is 0 once that is done. `created` is the slot in which the run was created. Of the levels of the
    bits `levels_established` only `Members.judges` say who delivers them, since the rounds began.
    """

    version: int
    state: RunState
    pending_pause: bool
    cold_start: bool
    model_source: ModelSource
    exit_reason: ExitReason
    draining: bool
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
        """Nothing waits for a slot; in warm-up, the witnesses are known."""
        return self.seed_slot == 0

    @property
    def active(self) -> bool:
        return self.state.active

    @property
    def halted(self) -> bool:
        return self.state.halted

    @property
    def identity(self) -> str:
        """16 hex digits that tell this run from an earlier or later one of the same id."""
        named = self.run_id.encode() + self.main_authority + self.created.to_bytes(8, "little")
        return hashlib.sha256(named).hexdigest()[:16]

    @property
    def trained_steps(self) -> int:
        return steps_before(self.step)

    @property
    def current(self) -> Round:
        """The newest round header; in Warmup it carries the roster, the seed and who has sent a warm-up witness."""
        return self.rounds[self.head]

    @property
    def round_id(self) -> RoundId:
        """The current round's."""
        return RoundId(self.epoch, self.current.height, self.current.seed)

    def round(self, height: int) -> Round | None:
        """The header of round `height` of this epoch while the ring of four still holds it, else None."""
        back = self.current.height - height
        if height < 0 or not 0 <= back < STORED_ROUNDS:
            return None
        found = self.rounds[(self.head - back) % STORED_ROUNDS]
        return found if found.height == height and found.clients else None

    def ring(self, height: int) -> int | None:
        """The ring index of round `height`, the same in Run and Witnesses, or None when it is no longer stored."""
        if self.round(height) is None:
            return None
        return (self.head - (self.current.height - height)) % STORED_ROUNDS


@dataclass(frozen=True, slots=True)
class Attestation:
    """What one witness saw of the round it judges: who delivered, and a fingerprint of each result (`consensus`)."""

    seat: int
    participation: int
    fingerprints: bytes
