"""Names of the integers in the accounts. The values are the program's and never change."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class RunState(IntEnum):
    """The state of a run.

    Halted: no clock runs and the owner may edit. Training: rounds run. Active: from the first round
    to the end of the cooldown.
    """

    UNINITIALIZED = 0
    WAITING_FOR_MEMBERS = 1
    WARMUP = 2
    ROUND_TRAIN = 3
    ROUND_WITNESS = 4
    COOLDOWN = 5
    FINISHED = 6
    PAUSED = 7

    @property
    def halted(self) -> bool:
        return self in (RunState.UNINITIALIZED, RunState.FINISHED, RunState.PAUSED)

    @property
    def training(self) -> bool:
        return self in (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)

    @property
    def active(self) -> bool:
        return self.training or self is RunState.COOLDOWN


class MemberState(IntEnum):
    """A member's state in the running epoch."""

    IDLE = 0
    HEALTHY = 1
    DROPPED = 2
    WITHDRAWN = 3
    EJECTED = 4
    LEFT_EARLY = 5
    RESTARTED = 6


class ModelSource(IntEnum):
    """Where a joiner takes the model from: the checkpoint in the Model account, or the members."""

    CHECKPOINT = 0
    PEERS = 1


class ExitReason(IntEnum):
    """Why the running or last epoch ended its rounds."""

    NONE = 0
    QUORUM_MISSING = 1
    TOO_FEW_CLIENTS = 2
    TOTAL_STEPS = 3
    ROUNDS_PER_EPOCH = 4
    EPOCH_TIME = 5
    PAUSE = 6
    NO_ATTESTATION = 7


class EstablishedOnly(IntEnum):
    """What is reserved for established members in a round: nothing, witnessing or training too."""

    NOTHING = 0
    WITNESS = 1
    TRAIN = 2


class Architecture(StrEnum):
    """The built-in architectures of a run's model, by their names in a config file and a spec."""

    HF_LLAMA = "HfLlama"
    HF_DEEPSEEK = "HfDeepseek"
    HF_NANOGPT = "HfNanoGPT"
    HF_AUTO = "HfAuto"


class CheckpointKind(IntEnum):
    """The kind of durable checkpoint that the Model account names."""

    NONE = 0
    HUB = 1
    LOCAL = 2
    DUMMY = 3


class DataType(IntEnum):
    """The kind of tokens."""

    PRETRAINING = 0
    FINETUNING = 1


class DataKind(IntEnum):
    """The kind of source of a run's tokens."""

    DUMMY = 0
    SERVER = 1
    LOCAL = 2
    HTTP_SINGLE_URL = 3
    HTTP_NUMBERED_FILES = 4
    HTTP_GCP = 5
    WEIGHTED_HTTP = 6
    PREPROCESSED = 7
    OTHER = 255
    """A kind that another package adds."""


class ScheduleKind(IntEnum):
    """Shape of the learning rate after its warm-up."""

    CONSTANT = 0
    LINEAR = 1
    COSINE = 2
    WARMUP_STABLE_DECAY = 3
