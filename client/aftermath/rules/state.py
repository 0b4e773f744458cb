"""The small integers of the accounts under their names. The values are the program's and never change."""

from __future__ import annotations

from enum import IntEnum


class RunState(IntEnum):
    """Where a run is in its life. Halted: no clock runs and the owner may edit; training: rounds go by; active: from
    the first round to the end of the cooldown.
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
    """How a member stands in the running epoch."""

    IDLE = 0
    HEALTHY = 1
    DROPPED = 2
    WITHDRAWN = 3
    EJECTED = 4
    LEFT_EARLY = 5
    RESTARTED = 6


class ModelSource(IntEnum):
    """Where a joiner takes the model from: the checkpoint named in the Model account, or the members themselves."""

    CHECKPOINT = 0
    PEERS = 1


class ExitReason(IntEnum):
    """Why the running (or last) epoch left its rounds."""

    NONE = 0
    QUORUM_MISSING = 1
    TOO_FEW_CLIENTS = 2
    TOTAL_STEPS = 3
    ROUNDS_PER_EPOCH = 4
    EPOCH_TIME = 5
    PAUSE = 6
    NO_ATTESTATION = 7


class Alone(IntEnum):
    """What the established members of a round do alone: they witness, or train too (`assignment.assign`)."""

    NOTHING = 0
    WITNESS = 1
    TRAIN = 2


class Committee(IntEnum):
    """What a member does in a round: train its share of the data, or recompute another member's."""

    TRAINER = 0
    VERIFIER = 1


class Architecture(IntEnum):
    """What kind of model a run trains."""

    HF_LLAMA = 0
    HF_DEEPSEEK = 1
    HF_AUTO = 2
    HF_NANOGPT = 3


class CheckpointKind(IntEnum):
    """Which kind of durable checkpoint the Model account names."""

    NONE = 0
    HUB = 1
    LOCAL = 2
    DUMMY = 3


class DataType(IntEnum):
    """Which tokens are learnt."""

    PRETRAINING = 0
    FINETUNING = 1


class DataKind(IntEnum):
    """Where the tokens of a run are."""

    DUMMY = 0
    SERVER = 1
    LOCAL = 2
    HTTP_SINGLE_URL = 3
    HTTP_NUMBERED_FILES = 4
    HTTP_GCP = 5
    WEIGHTED_HTTP = 6
    PREPROCESSED = 7


class ScheduleKind(IntEnum):
    """The shape of the learning rate after its warm-up."""

    CONSTANT = 0
    LINEAR = 1
    COSINE = 2
    WARMUP_STABLE_DECAY = 3


class OptimizerKind(IntEnum):
    """Which optimizer a run's members use; NONE until the run is configured."""

    NONE = 0
    ADAMW = 1
    DISTRO = 2
    SPARSELOCO = 3


class InnerOptimizer(IntEnum):
    """What makes the inner steps of SparseLoCo."""

    ADAMW = 0
    MUON = 1


class Divisor(IntEnum):
    """By what SparseLoCo divides a sum of values: those who kept the coefficient, all results, or the root of both
    numbers' product.
    """

    KEEPERS = 0
    ALL = 1
    ROOT = 2
