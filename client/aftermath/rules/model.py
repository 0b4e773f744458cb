"""The account `Model` as frozen dataclasses.

Fields have the program's names and the forms described in `run`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aftermath.rules.optimizer import Optimizer
from aftermath.rules.state import CheckpointKind, DataKind, ScheduleKind

_HASH_MARK = "#sha256="
_HASH_DIGITS = 64
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Metadata:
    """A run's description for people."""

    name: str
    description: str
    num_parameters: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The durable checkpoint: a Hub repository (with an optional revision) or a local directory."""

    kind: CheckpointKind
    repo: str
    revision: str


def marked(folder: str, files_hash: str) -> str:
    """Return a data location's `secondary`: a folder and the hash (64 hex digits, or empty) of its
    files.
    """
    # Package managers pin a URL's contents in this form. The program needs no separate field.
    return f"{folder}{_HASH_MARK}{files_hash}" if files_hash else folder


@dataclass(frozen=True, slots=True)
class Recorded:
    """A checkpoint that the run can return to.

    `data_index` is the first sequence that it was not trained on. Hashes are zero if the chain has
    none.
    """

    checkpoint: Checkpoint
    hashes: tuple[bytes, ...]
    data_index: int
    step: int

    @property
    def exists(self) -> bool:
        """Return whether this place holds a checkpoint."""
        return self.checkpoint.kind is not CheckpointKind.NONE


@dataclass(frozen=True, slots=True)
class DataLocation:
    """The location of the tokens. `primary` holds the URL, path or bucket that `kind` asks for."""

    kind: DataKind
    token_bytes: int
    shuffle: int
    pad_zeros: int
    start_index: int
    num_files: int
    primary: str
    secondary: str
    """Folder in the bucket, followed by the agreed hash of its files, if any (`marked`)."""
    shuffle_seed: bytes
    source: Any
    """The config table (`config.data_sources.DataSource`) of this location. It reads the tokens.

    For a kind that another package adds, only the table has the keys.
    """

    @property
    def files_hash(self) -> str:
        """Return the agreed hash (hex) of the files' records, or an empty string."""
        _, mark, digits = self.secondary.rpartition(_HASH_MARK)
        return digits if mark and len(digits) == _HASH_DIGITS and set(digits) <= _HEX else ""


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """The parameters of a learning-rate schedule. `schedules.learning_rate` uses them."""

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

    @property
    def peak(self) -> float:
        """Return a rate that the schedule never exceeds."""
        return max(self.base_lr, self.warmup_init_lr, self.final_lr, self.cosine_decay_final_lr)


@dataclass(frozen=True, slots=True)
class Model:
    """The account that says what is trained, on what, and how.

    The two per-level tuples have `tiers` entries. `spec_hash` is the SHA-256 of the training spec;
    zero without one. The spec has the architecture, data type and location, schedule and optimizer.
    If `spec_error` is set, this client cannot read the spec, and these fields have no meaning.
    """

    metadata: Metadata
    client_version: str
    architecture: str
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
    spec_hash: bytes
    tiers: int
    tier_widths: tuple[int, ...]
    spec_error: str = ""

    @property
    def configured(self) -> bool:
        """Return whether the model is configured and its spec is complete."""
        return any(self.schema_hash) and any(self.spec_hash)

    @property
    def recorded(self) -> tuple[Recorded, ...]:
        """Return the checkpoints that the run can return to: the current one, then earlier ones.

        Some places may be empty.
        """
        now = (
            self.checkpoint,
            self.checkpoint_hashes,
            self.checkpoint_data_index,
            self.checkpoint_step,
        )
        return (Recorded(*now), *self.earlier)
