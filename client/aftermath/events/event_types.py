"""What a member can tell: one kind of event each, with all that is said in it.

Decided
- A kind is a class; as JSON it is a flat object with `kind` and `t`, seconds of the member's clock, which the stream
  sets when the event leaves. Hashes are hex.
- Views tell events apart by their class, so that a misspelt kind or field is an error of the type checker.
- What is not finite is null in JSON, and None here.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec


def _kind(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=_kind, omit_defaults=True):
    """Something that happened, as views and logs are told of it."""

    t: float = -1.0


# --- coming and going -------------------------------------------------------------------------------------------------


class Started(Event, frozen=True, kw_only=True):
    """The first event of a process: what all that follows is about. It heads every file of the process: in those after
    the first, `part` counts them, and `lost` is how many earlier events were not written. These files repeat the
    fields of `run_found` here; the first file has a `run_found` event instead.
    """

    run_id: str
    tier: int
    wallet: str
    version: str
    part: int = 0
    lost: int = 0
    key: Literal["wallet", "identity"] = "wallet"
    """What `wallet` is to a person: a member of a server has an identity there."""
    owner: str = ""
    created: int = 0
    identity: str = ""

    def of_run(self, found: RunFound) -> Started:
        """Return this event with the run that was found."""
        return msgspec.structs.replace(self, owner=found.owner, created=found.created, identity=found.identity)


class RunFound(Event, frozen=True, kw_only=True):
    """The run exists and would admit the member. `owner` is the public key of its owner, and `created` the slot of its
    creation. `identity` has 16 hex digits, which tell it from all other runs of the same id.
    """

    owner: str
    created: int
    identity: str


class Loading(Event, frozen=True, kw_only=True):
    """PyTorch is being loaded, which takes seconds."""


class Compiling(Event, frozen=True, kw_only=True):
    """Kernels are compiled for this machine's processor or GPU, or another process that does it is waited for."""


class Kernels(Event, frozen=True, kw_only=True):
    """By what results are encoded and applied on a CPU: compiled kernels, or torch because of what is `missing`."""

    missing: str | None


class Measuring(Event, frozen=True, kw_only=True):
    """The member makes a model and then measures how fast it trains, for `limit` seconds at most."""

    tier: int
    parameters: int
    limit: float


class Measured(Event, frozen=True, kw_only=True):
    """`weight` is in sequences a minute."""

    weight: int
    seconds: float


class Joined(Event, frozen=True, kw_only=True):
    """The member has a place, or asked for one again."""

    seat: int | None
    tier: int
    weight: int
    epoch: int


class Waiting(Event, frozen=True, kw_only=True):
    """An epoch runs without the member, which waits for `epoch`. `leaves`: no epoch follows, so the member leaves."""

    epoch: int
    leaves: bool = False


class Leaving(Event, frozen=True, kw_only=True):
    """A signal was heard: the member stops. `saves`: it saves the model first."""

    saves: bool = False


class Left(Event, frozen=True, kw_only=True):
    """The place was given up; `finished`: that of a run that is finished."""

    finished: bool


class Stopped(Event, frozen=True, kw_only=True):
    """The last member with part of the model was stopped, and saved the model at `path` after `step` steps.

    `goes_on`: the run continues from the saved model when the member starts again.
    """

    step: int
    path: str
    goes_on: bool


class Finished(Event, frozen=True, kw_only=True):
    """The run finished after `step` steps. `checkpoint` is the newest checkpoint that the chain names, or None, and
    `checkpoint_step` the steps trained in it.
    """

    step: int
    checkpoint: str | None = None
    checkpoint_step: int | None = None


class Error(Event, frozen=True, kw_only=True):
    """What ends the process."""

    message: str


class Warning(Event, frozen=True, kw_only=True):
    """Something a person should know; `until` is the kind of event that makes it outdated."""

    message: str
    until: str | None = None


# --- an epoch -------------------------------------------------------------------------------------------------------


class State(Event, frozen=True, kw_only=True):
    """The run changed state. `since`: chain time in seconds when it did. `last`: no epoch follows this one."""

    epoch: int
    state: str
    step: int
    total_steps: int
    since: int
    last: bool = False


class Model(Event, frozen=True, kw_only=True):
    """The model is here."""

    source: str
    step: int


class Remembered(Event, frozen=True, kw_only=True):
    """The optimizer continues from its state before the member was stopped."""

    epoch: int


class Cooldown(Event, frozen=True, kw_only=True):
    """The epoch's rounds are over; the hashes are those of the levels held."""

    epoch: int
    step: int
    hashes: dict[int, str]


class Checkpoint(Event, frozen=True, kw_only=True):
    """A checkpoint is written, or on the Hub."""

    step: int
    path: str


# --- a round --------------------------------------------------------------------------------------------------------


class Round(Event, frozen=True, kw_only=True):
    """A round begins; the run's state of it does `since` that second of its time."""

    epoch: int
    height: int
    step: int
    since: int


class Trained(Event, frozen=True, kw_only=True):
    """The member's share is trained and its result announced."""

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


class Optimizer(Event, frozen=True, kw_only=True):
    """What the optimizer keeps and sends, measured in a step."""

    epoch: int
    height: int
    step: int
    levels: dict[int, dict[str, float | int | None]]
    seconds: float


class Witnessed(Event, frozen=True, kw_only=True):
    """The member attested that it holds some results. `sent`: the attestation arrived."""

    height: int
    held: int
    sent: bool
    seconds: float


class Applied(Event, frozen=True, kw_only=True):
    """Results of a round are in the replica: how many, of which sequences; `hashes` if they were asked for."""

    epoch: int
    height: int
    step: int
    results: int
    sequences: list[list[int]]
    waited: float
    seconds: float
    hashes: dict[int, str]


class Fetched(Event, frozen=True, kw_only=True):
    """A level of another member's result was fetched and checked."""

    height: int
    seat: int
    level: int
    seconds: float
    decode_seconds: float


class FetchFailed(Event, frozen=True, kw_only=True):
    """A result could not be had yet."""

    height: int
    seat: int
    why: str


class Refused(Event, frozen=True, kw_only=True):
    """What a peer said or sent does not count: of a round and a member, where these are known."""

    why: str
    height: int | None = None
    seat: int | None = None
    peer: str | None = None


class Equivocated(Event, frozen=True, kw_only=True):
    """A member signed two different results of one share: both announcements in hex, which prove it to anybody."""

    epoch: int
    height: int
    seat: int
    first: str
    second: str


class Ejected(Event, frozen=True, kw_only=True):
    """This member showed the program that another one signed two different results of one share."""

    seat: int
    height: int


class Dropped(Event, frozen=True, kw_only=True):
    """Members that did not deliver were reported by this one."""

    seats: list[int]
    height: int


class Kicked(Event, frozen=True, kw_only=True):
    """An authority of the run has taken a wallet out of the next epoch; `barred`: for good."""

    seat: int
    wallet: str
    barred: bool


class Rewound(Event, frozen=True, kw_only=True):
    """The owner has taken the run back from one step to another."""

    before: int
    step: int


class Traffic(Event, frozen=True, kw_only=True):
    """Counters since the process began: bytes to and from peers, and what talking to the coordinator has cost."""

    sent: int
    received: int
    sent_by_kind: dict[str, int]
    peers: int
    costs: dict[str, int]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the machine's GPUs; what its driver does not tell is None."""

    number: int
    memory_used: int | None = None
    memory_total: int | None = None
    """Bytes, as above."""
    utilization: float | None = None
    """Percent of the time in which it computed."""
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""


class Machine(Event, frozen=True, kw_only=True):
    """What the member's machine does and has left, in bytes: `resident` is in memory of the member's processes, the
    rest is the machine's. `cpu` is percent of all its cores; network counters are since the process began.
    """

    cpu: float
    resident: int
    available: int
    disk_free: int
    network_sent: int
    network_received: int
    gpus: list[Gpu]


class Evaluated(Event, frozen=True, kw_only=True):
    """A figure of a task."""

    step: int
    """Whose weights answered."""
    task: str
    metric: str
    value: float
    error: float | None
    """Its standard error, where the task has one."""
    docs: int


class Sample(Event, frozen=True, kw_only=True):
    """The model's continuation of a prompt."""

    step: int
    prompt: str
    text: str


MEMBER_EVENTS = (
    Started
    | RunFound
    | Evaluated
    | Loading
    | Compiling
    | Kernels
    | Measuring
    | Measured
    | Joined
    | Waiting
    | Leaving
    | Left
    | Stopped
    | Finished
    | Error
    | Warning
    | State
    | Model
    | Remembered
    | Cooldown
    | Checkpoint
    | Round
    | Trained
    | Optimizer
    | Witnessed
    | Applied
    | Fetched
    | FetchFailed
    | Refused
    | Equivocated
    | Ejected
    | Dropped
    | Kicked
    | Rewound
    | Traffic
    | Machine
    | Sample
)
"""All of them, to read a member's file of events back."""
