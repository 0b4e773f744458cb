"""Send a member's events to the experiment trackers Weights & Biases and trackio.

Each tracker is an extra, imported when asked for, and takes its key from its own login. It receives
the series and the member's name, and nothing about the machine. It cannot stop a member.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

from aftermath.base.concurrency import within
from aftermath.base.errors import Unsuitable, UsageError
from aftermath.events import event_types

_LOOK_SECONDS = 20.0  # seconds to check for a key, which needs no network
_BARRED = "/\\#?%:"
_MOST_NAME = 128


@dataclass(frozen=True)
class TrackerOptions:
    """Options of the trackers, and the member's name there. None for an unset option."""

    wandb_project: str | None = None
    wandb_run: str | None = None
    wandb_group: str | None = None
    wandb_entity: str | None = None
    trackio_project: str | None = None

    @classmethod
    def of(cls, settings: object) -> TrackerOptions:
        """Return the options of settings whose fields have these names."""
        return cls(**{field.name: getattr(settings, field.name, None) for field in fields(cls)})

    @property
    def any(self) -> bool:
        return self.wandb_project is not None or self.trackio_project is not None

    def check(self) -> None:
        """Raise UsageError for invalid names, and Unsuitable without the extra or the tracker's
        key.
        """
        for name, given in vars(self).items():
            _check_name("--" + name.replace("_", "-"), given)
        if self.wandb_project is None:
            for name in ("wandb_run", "wandb_group", "wandb_entity"):
                if getattr(self, name) is not None:
                    option = "--" + name.replace("_", "-")
                    raise UsageError(
                        f"{option} needs a project of Weights & Biases",
                        f"Pass --wandb-project as well, or unset {name.upper()}",
                    )
        else:
            _check_wandb()
        if self.trackio_project is not None:
            _imported("trackio", "init")

    def sinks(self) -> list[Tracking]:
        """Return one sink per tracker. Nothing is opened yet."""
        trackers = []
        if self.wandb_project is not None:
            trackers.append(Tracking("wandb", self._wandb))
        if self.trackio_project is not None:
            trackers.append(Tracking("trackio", self._trackio))
        return trackers

    def _wandb(self, started: event_types.MemberStarted) -> Tracker:
        wandb = _imported("wandb", "init")
        name = self.wandb_run or _name(started)
        same = "\0".join((started.run_id, started.identity, started.wallet, name))
        quiet = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            host="",
            stop_fn=lambda: None,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        run = wandb.init(
            entity=self.wandb_entity,
            project=self.wandb_project,
            group=self.wandb_group or started.run_id,
            name=name,
            id=hashlib.sha256(same.encode()).hexdigest()[:16],
            resume="allow",
            config=_config_of(started),
            settings=quiet,
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return _Opened(lambda row: run.log({**row.numbers, "step": row.step}), run.finish)

    def _trackio(self, started: event_types.MemberStarted) -> Tracker:
        trackio = _imported("trackio", "init")
        _silence("trackio", "trackio.run", "trackio.utils", "trackio.deploy")
        run = trackio.init(
            project=self.trackio_project,
            group=started.run_id,
            # trackio uses this name to resume
            name=f"{_name(started)}-{started.identity[:8]}",
            resume="allow",
            config=_config_of(started),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return _Opened(lambda row: run.log(dict(row.numbers), step=row.step), run.finish)


@dataclass(frozen=True)
class _Opened:
    """An open run of a tracker."""

    add: Callable[[Row], None]
    close: Callable[[], None]

    def log(self, row: Row) -> None:
        self.add(row)

    def finish(self) -> None:
        self.close()


def _name(started: event_types.MemberStarted) -> str:
    return f"{started.run_id}-tier{started.tier}-{started.wallet[:8]}"


def _config_of(started: event_types.MemberStarted) -> dict[str, Any]:
    return {name: getattr(started, name) for name in ("run_id", "tier", "wallet", "version")}


def _check_name(option: str, given: str | None) -> None:
    """Raise UsageError for a name that the trackers would refuse later."""
    if given is None:
        return
    if (
        not given.strip()
        or len(given) > _MOST_NAME
        or any(one in _BARRED or not one.isprintable() for one in given)
    ):
        raise UsageError(
            f"{option} {given!r} is not a valid name",
            f"Use 1 to {_MOST_NAME} printable characters without {' '.join(_BARRED)}",
        )


def _check_wandb() -> None:
    """Raise Unsuitable without the package, or without a key if it would send data."""
    wandb = _imported("wandb", "login")

    def ready() -> bool:
        mode = wandb.setup(wandb.Settings(silent=True)).settings.mode
        return mode in ("offline", "dryrun", "disabled") or bool(
            wandb.login(prompt=False, verify=False)
        )

    try:
        is_usable = within(_LOOK_SECONDS, ready, TimeoutError())
    except TimeoutError:
        return  # a call that hangs here must not delay the member; the tracker's thread will warn
    except Exception as error:  # an environment variable or settings file that wandb cannot use
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise Unsuitable(f"--wandb-project: wandb rejects its settings: {first}", _KEY) from None
    if not is_usable:
        raise Unsuitable("--wandb-project: found no API key of Weights & Biases", _KEY)


_KEY = "Run wandb login, or set WANDB_API_KEY. WANDB_MODE=offline keeps metrics on this machine"


def _imported(name: str, needed: str) -> ModuleType:
    """Import the tracker's package. Raises Unsuitable without it. A directory with its name does
    not count.
    """
    try:
        module = __import__(name)
        getattr(module, needed)
    except (ImportError, AttributeError):
        raise Unsuitable(
            f"--{name}-project: {name} is not installed",
            f"Run pip install 'aftermath[{name}]', then restart",
        ) from None
    return module


def _silence(*names: str) -> None:
    """Silence modules that print without an option to stop it."""
    import importlib

    for name in names:
        vars(importlib.import_module(name))["print"] = lambda *_, **__: None


MOST_ROWS = 2000  # rows in the queue: hours of a slow run
STUCK_SECONDS = 60.0  # time for one answer of the tracker, after which the user is warned
END_SECONDS = 20.0  # time for the tracker to send the rest
LEAVING_SECONDS = 1.5  # the same, after the member was told to stop

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """One run in a tracker. Any exception counts as its failure."""

    def log(self, row: Row) -> None:
        """Add the numbers of a step."""

    def finish(self) -> None:
        """Send what is left, and close."""


class Tracking:
    """A sink that feeds a tracker, which may be slow, fail or hang. Use it as a context manager.

    `begin` opens the tracker's run once the member has found its run. The tracker has its own
    thread, and a bounded queue that drops rows when full. It warns once. A failed start is final; a
    failed row is retried with the next one. A member that was told to stop has two seconds for
    everything, so its tracker then ends at once.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[event_types.MemberStarted], Tracker],
        *,
        stuck: float = STUCK_SECONDS,
        end: float = END_SECONDS,
        most: int = MOST_ROWS,
    ) -> None:
        self._name = name
        self._begin = begin
        self._stuck = stuck
        self._end = end
        self._most = most
        self._series = Series()
        self._rows: deque[Row] = deque()
        self._changed = threading.Condition()
        self._started: event_types.MemberStarted | None = None
        self._thread: threading.Thread | None = None
        self._asked: float | None = None
        """Time since which the tracker has not answered."""
        self._closing = self._warned = self._over = False
        self._leaving: float | None = None

    def __call__(self, event: event_types.Event) -> None:
        """Queue an event. Never wait for the tracker, and raise nothing."""
        trouble = None
        with self._changed:
            if isinstance(event, event_types.MemberStarted):
                self._started = event
            elif (
                isinstance(event, event_types.RunFound)
                and self._started is not None
                and self._thread is None
            ):
                about = self._started.of_run(event)
                self._asked = time.monotonic()
                self._thread = threading.Thread(
                    target=self._work, args=(about,), name=self._name, daemon=True
                )
                self._thread.start()
            row = self._series.take(event)
            if isinstance(event, event_types.Leaving):
                self._leaving = time.monotonic()
                self._closing = True
            elif row is not None and not (self._closing or self._over):
                if len(self._rows) < self._most:
                    self._rows.append(row)
                else:
                    trouble = f"{self._name} is too slow and loses metrics"
            if self._asked is not None and time.monotonic() - self._asked > self._stuck:
                trouble = (
                    f"{self._name} has not answered for {self._stuck:.0f} s and may lose metrics"
                )
            self._changed.notify_all()
        if trouble:
            self._warn(trouble)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            return
        end = (
            self._end
            if self._leaving is None
            else self._leaving + LEAVING_SECONDS - time.monotonic()
        )
        self._thread.join(max(0.0, end))
        if self._thread.is_alive():
            self._warn(f"{self._name} did not finish in time and may lack the last metrics")

    def _work(self, started: event_types.MemberStarted) -> None:
        """Run the tracker's thread."""
        try:
            tracker = self._begin(started)
        except Exception as error:
            with self._changed:
                self._over = True
                self._asked = None
                self._rows.clear()
            self._warn(
                f"training continues without {self._name}, which failed to start: {_why(error)}"
            )
            return
        while (row := self._next()) is not None:
            self._ask(lambda row=row: tracker.log(row))  # type: ignore[misc]
        self._ask(tracker.finish)

    def _next(self) -> Row | None:
        """Wait for the next row. Return None when no more rows will come."""
        with self._changed:
            self._asked = None
            while not (self._rows or self._closing):
                self._changed.wait()
            self._asked = time.monotonic()
            return self._rows.popleft() if self._rows else None

    def _ask(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._warn(f"{self._name} failed and may lack metrics: {_why(error)}")

    def _warn(self, sentence: str) -> None:
        with self._changed:
            if self._warned:
                return
            self._warned = True
        _log.warning(sentence)


def _why(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


_OF_A_GPU = {
    "gpu_memory_used_bytes": "memory_used",
    "gpu_memory_total_bytes": "memory_total",
    "gpu_utilization_percent": "utilization",
    "gpu_temperature_celsius": "temperature",
    "gpu_power_watts": "power",
}

_COUNTED = ("tokens", "results_applied", "fetch_failures", "refused", "members_dropped", "warnings")


@dataclass(frozen=True)
class Row:
    """Finite numbers of one step, by the names of their series."""

    step: int
    numbers: dict[str, float]


class Series:
    """Turns events, in order, into series of numbers. docs/operations.md lists the names."""

    def __init__(self) -> None:
        self._step = 0
        self._counted: dict[str, float] = dict.fromkeys(_COUNTED, 0)

    def take(self, event: event_types.Event) -> Row | None:
        """Return the numbers that an event adds to the series, or None."""
        step = self._step
        numbers = self._numbers(event)
        if isinstance(
            event,
            event_types.ShareTrained
            | event_types.Applied
            | event_types.Evaluated
            | event_types.OptimizerReport,
        ):
            step = event.step
            self._step = max(step, self._step) if isinstance(event, event_types.Evaluated) else step
        finite = {
            name: value
            for name, value in numbers.items()
            if value is not None and math.isfinite(value)
        }
        return Row(step, finite) if finite else None

    def _numbers(self, event: event_types.Event) -> dict[str, float | None]:
        match event:
            case event_types.StateChanged():
                self._step = event.step
            case event_types.FetchFailed():
                self._counted["fetch_failures"] += 1
            case event_types.PeerRefused():
                self._counted["refused"] += 1
            case event_types.Dropped():
                self._counted["members_dropped"] += len(event.seats)
            case event_types.Warning():
                self._counted["warnings"] += 1
            case event_types.ShareTrained():
                return self._trained(event)
            case event_types.Applied():
                self._counted["results_applied"] += event.results
                return {"round_seconds/wait": event.waited, "round_seconds/apply": event.seconds}
            case event_types.Traffic():
                costs = {name: event.costs.get(name) for name in ("transactions", "lamports")}
                return {
                    "peers": event.peers,
                    "sent_bytes": event.sent,
                    "received_bytes": event.received,
                    **costs,
                }
            case event_types.Machine():
                return _machine(event)
            case event_types.Evaluated():
                return {f"eval/{event.task}/{event.metric}": event.value}
            case event_types.OptimizerReport():
                levels = event.levels.items()
                return {
                    f"optimizer/{level}/{name}": value
                    for level, stats in levels
                    for name, value in stats.items()
                }
        return {}

    def _trained(self, event: event_types.ShareTrained) -> dict[str, float | None]:
        self._counted["tokens"] += event.tokens
        return {
            "epoch": event.epoch,
            "loss": event.loss,
            "tokens_per_second": event.tokens_per_sec,
            "round_seconds/train": event.seconds,
            "round_seconds/encode": event.encode_seconds,
            "round_seconds/announce": event.announce_seconds,
            **self._counted,
        }


def _machine(event: event_types.Machine) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {
        "cpu_percent": event.cpu,
        "memory_resident_bytes": event.resident,
        "memory_available_bytes": event.available,
        "disk_free_bytes": event.disk_free,
        "network_sent_bytes": event.network_sent,
        "network_received_bytes": event.network_received,
    }
    for gpu in event.gpus:
        numbers |= {
            f"{name}/{gpu.number}": getattr(gpu, field) for name, field in _OF_A_GPU.items()
        }
    return numbers
