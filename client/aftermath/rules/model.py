"""What the account `Model` holds, as frozen dataclasses with the program's field names; forms are as in `run`.

Decided: the hash that a run's data files must have is a mark on their folder, and no field of its own (`marked`).
"""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.rules.optimizers import OPTIMIZERS
from aftermath.rules.state import CheckpointKind, DataKind, Divisor, InnerOptimizer, OptimizerKind, ScheduleKind

_HASH_MARK, _HASH_DIGITS, _HEX = "#sha256=", 64, frozenset("0123456789abcdef")


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
        return OPTIMIZERS[self.kind].used if self.kind in OPTIMIZERS else ("kind",)


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
    def configured(self) -> bool:
        """Has the owner said what is trained?"""
        return any(self.schema_hash)

    @property
    def recorded(self) -> tuple[Recorded, ...]:
        """The checkpoints that the run can be taken back to, by their place: the present one, then those before it. At
        some places there may be none.
        """
        now = self.checkpoint, self.checkpoint_hashes, self.checkpoint_data_index, self.checkpoint_step
        return (Recorded(*now), *self.earlier)
