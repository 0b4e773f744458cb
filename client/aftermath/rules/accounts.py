"""What the coordinator's accounts hold, as frozen dataclasses with the program's field names.

Decided: bitmaps are `int` masks (see `bitmap`), public keys and hashes are 32 `bytes`, strings are decoded, `f64`
values that travel as their bits are floats under the name without `_bits`, and per-level arrays are cut to the levels
that exist. The program's step counters name the step that comes next; people are told how many are trained
(`steps_before`): step 120 is the 120th, and a model or checkpoint of step 120 has 120 steps in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from aftermath.rules.bitmap import seats
from aftermath.rules.state import (
    CheckpointKind,
    DataKind,
    Divisor,
    ExitReason,
    InnerOptimizer,
    MemberState,
    ModelSource,
    OptimizerKind,
    RunState,
    ScheduleKind,
)

STORED_ROUNDS = 4
MAX_WITNESSES = 32
MAX_VERDICTS = 32
FINGERPRINT_BYTES = 320
BACKLOG = 96
REDO = 4
_HASH_MARK, _HASH_DIGITS, _HEX = "#sha256=", 64, frozenset("0123456789abcdef")


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


class Place(NamedTuple):
    """Names a round, for votes: no other epoch, nor another attempt at the same, has one of this seed."""

    epoch: int
    height: int
    seed: int


@dataclass(frozen=True, slots=True)
class Round:
    """The header of a round. The positions of its batch are the sequences of `redo`, in order, then fresh ones from
    `data_index` on. `began`: the members that began its epoch, of whom all its orders are; `roster`: those in the
    round, fixed when the one before it began. `salt` is what the fingerprints are made with that are attested in it.
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
    `seed_slot`, which is 0 once that is done. `created` is the slot in which the run was created.
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
        """Nothing waits for a seat; in warm-up, the witnesses are known."""
        return self.seed_slot == 0

    @property
    def active(self) -> bool:
        return self.state.active

    @property
    def halted(self) -> bool:
        return self.state.halted

    @property
    def trained_steps(self) -> int:
        return steps_before(self.step)

    @property
    def current(self) -> Round:
        """The newest round header; in Warmup it carries the roster, the seed and who has sent a warm-up witness."""
        return self.rounds[self.head]

    @property
    def place(self) -> Place:
        """The current round's."""
        return Place(self.epoch, self.current.height, self.current.seed)

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
class Metadata:
    """What a run says about itself to people."""

    name: str
    description: str
    num_parameters: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the durable checkpoint is: a hub repository (with an optional revision) or a local directory."""

    kind: CheckpointKind
    repo: str
    revision: str


def marked(folder: str, files_hash: str) -> str:
    """A data location's `secondary`: the folder and the hash (64 hex digits, or none) that the files there have.

    It is the form in which package managers pin what a URL leads to. So the program needs no field for it, and who
    has the accounts has the mark.
    """
    return f"{folder}{_HASH_MARK}{files_hash}" if files_hash else folder


@dataclass(frozen=True, slots=True)
class Recorded:
    """A checkpoint that the run can be taken back to; `data_index` is the first sequence that it was not trained on,
    and hashes are zero where the chain knows none.
    """

    checkpoint: Checkpoint
    hashes: tuple[bytes, ...]
    data_index: int
    step: int

    @property
    def exists(self) -> bool:
        """Whether there is one at this place."""
        return self.checkpoint.kind is not CheckpointKind.NONE


@dataclass(frozen=True, slots=True)
class DataLocation:
    """Where the tokens are, and what marks them; `primary` holds the URL, path or bucket that `kind` asks for."""

    kind: DataKind
    token_bytes: int
    shuffle: int
    pad_zeros: int
    start_index: int
    num_files: int
    primary: str
    secondary: str
    """The bucket's folder, and after it a mark with the hash that the files have, if one is agreed (`marked`)."""
    shuffle_seed: bytes

    @property
    def folder(self) -> str:
        """The folder in a bucket."""
        return self.secondary if not self.files_hash else self.secondary[: -len(_HASH_MARK) - _HASH_DIGITS]

    @property
    def files_hash(self) -> str:
        """The hash (hex) of the files' records that all members must have; empty if none is agreed."""
        _, mark, digits = self.secondary.rpartition(_HASH_MARK)
        return digits if mark and len(digits) == _HASH_DIGITS and set(digits) <= _HEX else ""


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """The numbers of a learning-rate schedule; `schedules.learning_rate` gives their meaning for each kind."""

    kind: ScheduleKind
    base_lr: float
    warmup_init_lr: float
    final_lr: float
    cosine_decay_final_lr: float
    warmup_steps: int
    total_steps: int
    stable_steps: int
    cosine_decay_steps: int
    linear_decay_steps: int


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The numbers of the optimizer; zero where a kind does not use one (`used`), `clip_grad_norm` 0 for no clipping,
    and `compression_topk_embeddings` 0 for as many as `compression_topk`.
    """

    kind: OptimizerKind
    quantize_1bit: bool
    compression_topk: int
    compression_topk_embeddings: int
    compression_chunk: int
    value_bits: int
    inner_steps: int
    inner_optimizer: InnerOptimizer
    divisor: Divisor
    outer_lr: float
    orthogonal_lr: float
    clip_grad_norm: float
    weight_decay: float
    compression_decay: float
    beta1: float
    beta2: float
    eps: float

    @property
    def used(self) -> tuple[str, ...]:
        """The fields that mean something to this kind."""
        return _USED[self.kind]


_EVERY = ("kind", "clip_grad_norm", "weight_decay")
_COMPRESSED = (
    *_EVERY,
    "compression_decay",
    "compression_chunk",
    "compression_topk",
    "compression_topk_embeddings",
)
_USED = {
    OptimizerKind.NONE: ("kind",),
    OptimizerKind.ADAMW: (*_EVERY, "beta1", "beta2", "eps"),
    OptimizerKind.DISTRO: (*_COMPRESSED, "quantize_1bit"),
    OptimizerKind.SPARSELOCO: (
        *_COMPRESSED,
        "value_bits",
        "inner_steps",
        "inner_optimizer",
        "divisor",
        "outer_lr",
        "orthogonal_lr",
    ),
}


@dataclass(frozen=True, slots=True)
class Model:
    """The account that says what is trained, on what, and how. Lengths of the two per-level tuples equal `tiers`."""

    metadata: Metadata
    client_version: str
    architecture: int
    data_type: int
    max_seq_len: int
    cold_start_warmup_steps: int
    checkpoint: Checkpoint
    checkpoint_step: int
    checkpoint_hashes: tuple[bytes, ...]
    checkpoint_data_index: int
    earlier: tuple[Recorded, ...]
    data_location: DataLocation
    lr_schedule: LrSchedule
    optimizer: Optimizer
    schema_hash: bytes
    tiers: int
    tier_widths: tuple[int, ...]

    @property
    def recorded(self) -> tuple[Recorded, ...]:
        """The checkpoints that the run can be taken back to, by their place: the present one, then those before it. At
        some places there may be none.
        """
        now = self.checkpoint, self.checkpoint_hashes, self.checkpoint_data_index, self.checkpoint_step
        return (Recorded(*now), *self.earlier)


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place. `declared` is its speed in sequences per minute, `weight` what its share is measured by in the
    running epoch (between epochs, the most that it may be in the next; 0 of a newcomer). `pending`: it wants the next
    epoch; `removed`: an authority has taken it out of the line; `barred`: it may not ask again.
    """

    signer: bytes
    p2p: bytes
    tier: int
    state: MemberState
    pending: bool
    removed: bool
    barred: bool
    used: bool
    weight: int
    declared: int
    last_epoch: int
    exited_height: int
    points: int
    slashed: int


@dataclass(frozen=True, slots=True)
class Members:
    """All 256 seats, used or not. `judged` counts the rounds of the epoch that were steps, `delivered` for each seat in
    how many of them it delivered all it owed; `proven` are those who owed something then, or had delivered in half of
    the rounds when they left, and in cooldown those whose word counts about their levels; `established` those who
    have shown in an epoch before that they hold their levels; `forfeited` those who were ejected and whose memberships
    do not say so yet.
    """

    epoch: int
    judged: int
    delivered: tuple[int, ...]
    proven: int
    established: int
    healthy: int
    forfeited: int
    seats: tuple[Seat, ...]

    def find(self, signer: bytes) -> int | None:
        """The seat of this wallet, or None when it never joined (or its seat was given away)."""
        return next((index for index, seat in enumerate(self.seats) if seat.used and seat.signer == signer), None)

    def mask(self, state: MemberState) -> int:
        """The bitmap of the used seats in this state."""
        return sum(1 << index for index, seat in enumerate(self.seats) if seat.used and seat.state == state)

    @property
    def present(self) -> int:
        """How many members take part in the running epoch or want the next one."""
        return (self.mask(MemberState.HEALTHY) | self.pending).bit_count()

    @property
    def pending(self) -> int:
        """The bitmap of the seats that want the next epoch."""
        return sum(1 << index for index, seat in enumerate(self.seats) if seat.used and seat.pending)


@dataclass(frozen=True, slots=True)
class Membership:
    """What a run keeps of one wallet, with or without a seat. Amounts in lamports: the `bond` that comes back, and what
    is `forfeited`. `delivered` of the `due` rounds of the epochs that it began; while it has a seat, its points there
    are newer. `enrolled` is false where only a bar is kept.
    """

    run: bytes
    wallet: bytes
    sponsor: bytes
    created: int
    bond: int
    forfeited: int
    points: int
    slashed: int
    delivered: int
    due: int
    ejections: int
    enrolled: bool
    barred: bool
    version: int


@dataclass(frozen=True, slots=True)
class Attestation:
    """What one witness saw of the round it judges: who delivered, and a fingerprint of each result (`consensus`)."""

    seat: int
    participation: int
    fingerprints: bytes
