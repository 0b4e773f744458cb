"""The types of events that a member emits, one class each.

In JSON, an event is a flat object with `kind` and `t`, seconds of the member's clock. Hashes are
hex, and numbers that are not finite are null. Consumers match on the class, so the type checker
finds a misspelt kind or field. Kinds are a public format: a class with another name sets `tag`.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec


def _kind(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Event(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=_kind, omit_defaults=True
):
    """An event. The stream sets `t` when it emits it."""

    t: float = -1.0


# --- coming and going ---


class MemberStarted(Event, frozen=True, kw_only=True, tag="started"):
    """The first event of a process and of each of its files.

    In later files, `part` counts the files and `lost` the earlier events that were not written.
    They repeat the fields of `run_found`; the first file has a `run_found` event instead.
    """

    run_id: str
    tier: int
    wallet: str
    version: str
    part: int = 0
    lost: int = 0
    key: Literal["wallet", "identity"] = "wallet"
    """What people call `wallet`. For a member of a server it is its identity."""
    owner: str = ""
    created: int = 0
    identity: str = ""

    def of_run(self, run: RunFound) -> MemberStarted:
        """Return this event with the run that was found."""
        return msgspec.structs.replace(
            self, owner=run.owner, created=run.created, identity=run.identity
        )


class RunFound(Event, frozen=True, kw_only=True):
    """The run exists and would admit the member.

    `owner` is its owner's public key, `created` the slot of its creation. `identity` (16 hex
    digits) distinguishes it from other runs with the same id.
    """

    owner: str
    created: int
    identity: str


class Loading(Event, frozen=True, kw_only=True):
    """PyTorch is loading, which takes seconds."""


class Compiling(Event, frozen=True, kw_only=True):
    """Kernels are being compiled for this machine, here or by another process."""


class Kernels(Event, frozen=True, kw_only=True):
    """Results are encoded and applied on a CPU by compiled kernels. If something is `missing` for
    that, torch does it.
    """

    missing: str | None


class Measuring(Event, frozen=True, kw_only=True):
    """The member builds a model and measures its training speed, for at most `limit` seconds."""

    tier: int
    parameters: int
    limit: float


class SpeedMeasured(Event, frozen=True, kw_only=True, tag="measured"):
    """The member's speed. `weight` is in sequences per minute."""

    weight: int
    seconds: float


class Joined(Event, frozen=True, kw_only=True):
    """The member joined, or asked to join again."""

    seat: int | None
    tier: int
    weight: int
    epoch: int


class Waiting(Event, frozen=True, kw_only=True):
    """The member waits for `epoch` while an epoch runs without it. With `leaves`, no epoch follows
    and the member leaves. With `ends_in`, the running epoch makes no more steps and ends after at
    most that number of seconds.
    """

    epoch: int
    leaves: bool = False
    ends_in: int | None = None


class Leaving(Event, frozen=True, kw_only=True):
    """The member received a signal and stops. With `saves`, it saves the model first."""

    saves: bool = False


class Left(Event, frozen=True, kw_only=True):
    """The member left the run. `finished`: the run is finished."""

    finished: bool


class Stopped(Event, frozen=True, kw_only=True):
    """The last member with part of the model stopped and saved it at `path` after `step` steps.

    `continues`: the run continues from that model when the member starts again.
    """

    step: int
    path: str
    continues: bool


class RunFinished(Event, frozen=True, kw_only=True, tag="finished"):
    """The run finished after `step` steps.

    `checkpoint` is the newest checkpoint on chain or this member's copy of it, or None, and
    `checkpoint_step` its number of steps. With `elsewhere`, another member saved it to a directory
    of its machine.
    """

    step: int
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    elsewhere: bool = False


class Error(Event, frozen=True, kw_only=True):
    """The error that ended the process."""

    message: str


class Warning(Event, frozen=True, kw_only=True):
    """Something the user should know. The next event of kind `until` makes it outdated."""

    message: str
    until: str | None = None


# --- an epoch ---


class StateChanged(Event, frozen=True, kw_only=True, tag="state"):
    """The run changed state at chain time `since`, in seconds. With `last`, no epoch follows this
    one.
    """

    epoch: int
    state: str
    step: int
    total_steps: int
    since: int
    last: bool = False


class ModelReady(Event, frozen=True, kw_only=True, tag="model"):
    """The member has the model. `checkpoint_step` is the step of the checkpoint that it read.

    `lost_levels` went back to the checkpoint of step `lost_to` for all members.
    """

    source: str
    step: int
    checkpoint_step: int | None = None
    lost_levels: tuple[int, ...] = ()
    lost_to: int = 0


class OptimizerRestored(Event, frozen=True, kw_only=True, tag="remembered"):
    """The optimizer continues from its state before the member stopped."""

    epoch: int


class CooldownStarted(Event, frozen=True, kw_only=True, tag="cooldown"):
    """The epoch's rounds are over. `hashes` are those of the levels that the member holds."""

    epoch: int
    step: int
    hashes: dict[int, str]


class CheckpointWritten(Event, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint was written to a directory or to the Hub."""

    step: int
    path: str


# --- a round ---


class RoundStarted(Event, frozen=True, kw_only=True, tag="round"):
    """A round started at chain time `since`, in seconds."""

    epoch: int
    height: int
    step: int
    since: int


class ShareTrained(Event, frozen=True, kw_only=True, tag="trained"):
    """The member trained its share and announced its result.

    `loss` is in nats per token. `bytes` are those of all levels' payloads. Times are in seconds.
    """

    epoch: int
    height: int
    step: int
    loss: float | None
    tokens: int
    tokens_per_sec: float
    seconds: float
    encode_seconds: float
    announce_seconds: float
    bytes: int


class OptimizerReport(Event, frozen=True, kw_only=True, tag="optimizer"):
    """Measurements of the optimizer's state and result in one step."""

    epoch: int
    height: int
    step: int
    levels: dict[int, dict[str, float | int | None]]
    seconds: float


class Witnessed(Event, frozen=True, kw_only=True):
    """The member attested the results that it had. `held` is their number.

    `sent`: the attestation arrived. `seconds`: the time that sending took.
    """

    height: int
    held: int
    sent: bool
    seconds: float


class Applied(Event, frozen=True, kw_only=True):
    """A round's results were applied.

    `results` is their number, and `sequences` are the ranges [start, stop) that they trained.
    `waited`: seconds until they were fetched. `seconds`: the time to apply and hash. `hashes` are
    optional.
    """

    epoch: int
    height: int
    step: int
    results: int
    sequences: list[list[int]]
    waited: float
    seconds: float
    hashes: dict[int, str]


class Fetched(Event, frozen=True, kw_only=True):
    """A level of another member's result was fetched and verified.

    `seconds`: the time to fetch it. `decode_seconds`: the time to decode it after the reveal.
    """

    height: int
    seat: int
    level: int
    seconds: float
    decode_seconds: float


class FetchFailed(Event, frozen=True, kw_only=True):
    """A result could not be fetched yet."""

    height: int
    seat: int
    why: str


class PeerRefused(Event, frozen=True, kw_only=True, tag="refused"):
    """A peer's message or data was rejected. `height` and `seat` are set if known."""

    why: str
    height: int | None = None
    seat: int | None = None
    peer: str | None = None


class Audited(Event, frozen=True, kw_only=True):
    """This member replayed another member's share, or could not.

    `is_vote`: it votes on a case that another member opened.
    """

    epoch: int
    height: int
    seat: int
    verdict: Literal["match", "mismatch", "abstained"]
    why: str
    is_vote: bool = False


class CaseOpened(Event, frozen=True, kw_only=True):
    """The auditor in seat `auditor` disputes the result of `seat`. The jury votes."""

    epoch: int
    height: int
    seat: int
    auditor: int


class CaseDecided(Event, frozen=True, kw_only=True):
    """A jury decided about the result of `seat`: the member in seat `loser` is ejected."""

    epoch: int
    height: int
    seat: int
    loser: int


class Equivocated(Event, frozen=True, kw_only=True):
    """A member signed two different results of one share. Both announcements, in hex, prove it."""

    epoch: int
    height: int
    seat: int
    first: str
    second: str


class Ejected(Event, frozen=True, kw_only=True):
    """This member proved to the program that another one signed two results of one share."""

    seat: int
    height: int


class Dropped(Event, frozen=True, kw_only=True):
    """This member reported members that did not deliver."""

    seats: list[int]
    height: int


class Kicked(Event, frozen=True, kw_only=True):
    """An authority of the run removed a wallet from the next epoch, or with `barred` for good."""

    seat: int
    wallet: str
    barred: bool


class Rewound(Event, frozen=True, kw_only=True):
    """The run went back to an earlier step: the owner rewound it, or the chain undid an epoch."""

    before: int
    step: int


class Traffic(Event, frozen=True, kw_only=True):
    """Counters since the process started: bytes to and from peers, and the cost of the
    coordinator.
    """

    sent: int
    received: int
    sent_by_kind: dict[str, int]
    peers: int
    costs: dict[str, int]
    connections: dict[str, int] = msgspec.field(default_factory=dict)
    """Connections to peers that were opened, closed, refused, or failed before the greeting."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of the machine. Values that its driver does not report are None."""

    number: int
    memory_used: int | None = None
    memory_total: int | None = None
    """In bytes, as `memory_used`."""
    utilization: float | None = None
    """Percent of the time in which the GPU computed."""
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""


class Machine(Event, frozen=True, kw_only=True):
    """Use of the member's machine, in bytes.

    `resident` is the memory of the member's processes; the rest covers the machine. `cpu` is
    percent of all cores. Network counters start with the process.
    """

    cpu: float
    resident: int
    available: int
    disk_free: int
    network_sent: int
    network_received: int
    gpus: list[Gpu]


class Evaluated(Event, frozen=True, kw_only=True):
    """One metric of an evaluation task."""

    step: int
    """The step of the weights that were evaluated."""
    task: str
    metric: str
    value: float
    error: float | None
    """Standard error, if the task has one."""
    docs: int


class Sample(Event, frozen=True, kw_only=True):
    """The model's continuation of a prompt."""

    step: int
    prompt: str
    text: str


MEMBER_EVENTS = (
    MemberStarted
    | RunFound
    | Evaluated
    | Loading
    | Compiling
    | Kernels
    | Measuring
    | SpeedMeasured
    | Joined
    | Waiting
    | Leaving
    | Left
    | Stopped
    | RunFinished
    | Error
    | Warning
    | StateChanged
    | ModelReady
    | OptimizerRestored
    | CooldownStarted
    | CheckpointWritten
    | RoundStarted
    | ShareTrained
    | OptimizerReport
    | Witnessed
    | Applied
    | Fetched
    | FetchFailed
    | PeerRefused
    | Audited
    | CaseOpened
    | CaseDecided
    | Equivocated
    | Ejected
    | Dropped
    | Kicked
    | Rewound
    | Traffic
    | Machine
    | Sample
)
"""All member events, to read an event file back."""
