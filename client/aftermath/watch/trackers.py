"""The experiment trackers that there are: Weights & Biases, and trackio.

Decided
- Each is an extra, imported when it is asked for. Their keys come from their own environment variables and logins.
- A member has one run there, by its name, its wallet and the run's identity: a restarted member continues in
  it, and not in that of an earlier run with the same id.
- They are told the series and who the member is, and nothing else: neither the machine's programs, files and hosts, nor
  what is printed. Nor can they stop a member.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from aftermath.base.errors import Unsuitable, UsageError
from aftermath.base.threads import within
from aftermath.watch import kinds
from aftermath.watch.series import Row
from aftermath.watch.tracking import Tracker, Tracking

_LOOK_SECONDS = 20.0  # for finding out whether there is a key, which needs no network
_BARRED = "/\\#?%:"
_MOST_NAME = 128


@dataclass(frozen=True)
class Wanted:
    """Which trackers, and what a member is called there; None for what is not said."""

    wandb_project: str | None = None
    wandb_run: str | None = None
    wandb_group: str | None = None
    wandb_entity: str | None = None
    trackio_project: str | None = None

    @classmethod
    def of(cls, settings: object) -> Wanted:
        """What some settings say, whose fields have these names; which they have not is not said."""
        return cls(**{field.name: getattr(settings, field.name, None) for field in fields(cls)})

    @property
    def any(self) -> bool:
        return self.wandb_project is not None or self.trackio_project is not None

    def check(self) -> None:
        """Raises UsageError for names that cannot be, Unsuitable without the extra or the tracker's key."""
        for name, given in vars(self).items():
            _check_name("--" + name.replace("_", "-"), given)
        if self.wandb_project is None:
            for name in ("wandb_run", "wandb_group", "wandb_entity"):
                if getattr(self, name) is not None:
                    option = "--" + name.replace("_", "-")
                    raise UsageError(
                        f"{option} is of a project of Weights & Biases, and none is named",
                        f"Pass --wandb-project as well, or unset {name.upper()}",
                    )
        else:
            _check_wandb()
        if self.trackio_project is not None:
            _imported("trackio", "init")

    def sinks(self) -> list[Tracking]:
        """One for each tracker; nothing is opened yet."""
        found = []
        if self.wandb_project is not None:
            found.append(Tracking("wandb", self._wandb))
        if self.trackio_project is not None:
            found.append(Tracking("trackio", self._trackio))
        return found

    def _wandb(self, started: kinds.Started) -> Tracker:
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
            config=_told(started),
            settings=quiet,
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return _Opened(lambda row: run.log({**row.numbers, "step": row.step}), run.finish)

    def _trackio(self, started: kinds.Started) -> Tracker:
        trackio = _imported("trackio", "init")
        _silence("trackio", "trackio.run", "trackio.utils", "trackio.deploy")
        run = trackio.init(
            project=self.trackio_project,
            group=started.run_id,
            name=f"{_name(started)}-{started.identity[:8]}",  # by which trackio knows what to resume
            resume="allow",
            config=_told(started),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return _Opened(lambda row: run.log(dict(row.numbers), step=row.step), run.finish)


@dataclass(frozen=True)
class _Opened:
    """A run of a tracker."""

    add: Callable[[Row], None]
    close: Callable[[], None]

    def log(self, row: Row) -> None:
        self.add(row)

    def finish(self) -> None:
        self.close()


def _name(started: kinds.Started) -> str:
    return f"{started.run_id}-tier{started.tier}-{started.wallet[:8]}"


def _told(started: kinds.Started) -> dict[str, Any]:
    return {name: getattr(started, name) for name in ("run_id", "tier", "wallet", "version")}


def _check_name(option: str, given: str | None) -> None:
    """Raises UsageError for a name that the trackers would refuse later."""
    if given is None:
        return
    if not given.strip() or len(given) > _MOST_NAME or any(one in _BARRED or not one.isprintable() for one in given):
        raise UsageError(
            f"{option} {given!r} is no name that a tracker takes",
            f"Give it 1 to {_MOST_NAME} characters, and none of {' '.join(_BARRED)}",
        )


def _check_wandb() -> None:
    """Raises Unsuitable without the package, or without a key where figures are to be sent."""
    wandb = _imported("wandb", "login")

    def ready() -> bool:
        told = wandb.setup(wandb.Settings(silent=True)).settings.mode
        return told in ("offline", "dryrun", "disabled") or bool(wandb.login(prompt=False, verify=False))

    try:
        found = within(_LOOK_SECONDS, ready, TimeoutError())
    except TimeoutError:
        return  # what hangs here must not keep a member from its run; its thread will warn
    except Exception as error:  # a variable or a file of settings that it cannot use
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise Unsuitable(f"--wandb-project: wandb refuses its settings: {first}", _KEY) from None
    if not found:
        raise Unsuitable("--wandb-project: there is no key of Weights & Biases", _KEY)


_KEY = "Run wandb login, or set WANDB_API_KEY; with WANDB_MODE=offline figures stay on this machine"


def _imported(name: str, needed: str) -> ModuleType:
    """The tracker's package. Raises Unsuitable without it; a directory of its name, as wandb makes one, is none."""
    try:
        module = __import__(name)
        getattr(module, needed)
    except (ImportError, AttributeError):
        raise Unsuitable(
            f"--{name}-project: {name} is not installed", f"pip install 'aftermath[{name}]', then restart"
        ) from None
    return module


def _silence(*names: str) -> None:
    """Modules that print, and have no option for it: their lines would fall among a member's own."""
    import importlib

    for name in names:
        vars(importlib.import_module(name))["print"] = lambda *_, **__: None
