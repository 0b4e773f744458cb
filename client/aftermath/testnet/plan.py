"""The plan of a local testnet: its clients, their commands, and the schedule of kills."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aftermath.base.errors import UsageError
from aftermath.base.text import counted
from aftermath.events.trackers import TrackerOptions
from aftermath.testnet.chaos import ChaosSchedule
from aftermath.testnet.files import ChosenConfig

RUN_ID = "local-testnet"
_NUMBERS = re.compile(r"[0-9]{1,6}(,[0-9]{1,6})*")

TESTNET_NAMES = r"config\.toml|state\.toml|checkpoints|events|keys|ledger|logs|peers|pipes|server"
"""Names of the entries that a local testnet makes in its directory."""


@dataclass(frozen=True)
class LocalTestnetClient:
    """One client of the testnet."""

    number: int
    tier: int

    @property
    def name(self) -> str:
        return f"client-{self.number}"


@dataclass(frozen=True)
class LineOptions:
    """Faults of every client's line."""

    latency_ms: int = 0
    loss: float = 0.0
    """Percentage of packets to lose."""
    bandwidth: str | None = None
    """UP/DOWN in Mb/s."""
    seed: int = 0

    def options(self) -> Iterator[str]:
        """Yield the options of `train`."""
        if self.latency_ms:
            yield from ("--fault-latency-ms", str(self.latency_ms))
        if self.loss:
            yield from ("--fault-packet-loss", str(self.loss))
        if self.bandwidth is not None:
            yield from ("--fault-bandwidth-limit", self.bandwidth)
        if self.seed:
            yield from ("--fault-seed", str(self.seed))


@dataclass(frozen=True)
class ClientExtras:
    """What every client does besides training."""

    device: str = "auto"
    write_log: bool = False
    distro_data: Path | None = None
    optim_stats: int | None = None
    eval_tasks: str | None = None
    checkpoints: Path | None = None
    keep_steps: int | None = None
    trackers: TrackerOptions = field(default_factory=TrackerOptions)
    line: LineOptions = field(default_factory=LineOptions)


@dataclass(frozen=True)
class LocalTestnetPlan:
    """Everything that a local testnet runs."""

    chosen: ChosenConfig
    clients: tuple[LocalTestnetClient, ...]
    place: Path
    """The directory for all output."""
    port: int
    extras: ClientExtras
    panes: bool = False
    """Whether each process has its own terminal. Otherwise the testnet prints lines about the
    clients.
    """
    tui: bool = False
    """Whether the processes show screens in these terminals."""

    def keys(self, name: str) -> Path:
        return self.place / "keys" / f"{name}.json"

    @property
    def events(self) -> Path:
        return self.place / "events"

    @property
    def config(self) -> Path:
        return self.place / "config.toml"

    def log(self, name: str) -> Path:
        return self.place / "logs" / f"{name}.log"

    @property
    def threads(self) -> int:
        """Compute threads of each client and of any other process."""
        return max(1, (os.cpu_count() or 1) // len(self.clients))

    def options(self, client: LocalTestnetClient) -> Iterator[str]:
        """Yield a client's options that do not depend on the backend."""
        extras = self.extras
        name = client.name
        yield from (
            "--matformer-tier",
            str(client.tier),
            "--device",
            extras.device,
            "--threads",
            str(self.threads),
        )
        yield from ("--bind-p2p-interface", "127.0.0.1", "--iroh-relay", "disabled")
        yield from (
            "--logs",
            "tui" if self.tui else "console",
            "--events-dir",
            str(self.events / name),
        )
        if client.tier == 0:
            checkpoints = extras.checkpoints or self.place / "checkpoints"
            yield from ("--checkpoint-dir", str(checkpoints.expanduser().absolute() / name))
            if extras.keep_steps is not None:
                yield from ("--keep-steps", str(extras.keep_steps))
        yield from self._local_files()
        yield from extras.line.options()
        if extras.write_log:
            yield from ("--write-log", str(self.place / "logs" / f"{name}.jsonl"))
        if extras.distro_data is not None:
            yield from (
                "--write-gradients-dir",
                str(extras.distro_data.expanduser().absolute() / name),
            )
        if extras.optim_stats is not None:
            yield from ("--optim-stats-steps", str(extras.optim_stats))
        if extras.eval_tasks is not None:
            yield from ("--eval-tasks", extras.eval_tasks)
        for name, value in vars(extras.trackers).items():
            if value is not None:
                yield from ("--" + name.replace("_", "-"), value)

    def _local_files(self) -> Iterator[str]:
        """Yield the options for local model and data; clients do not open paths that the chain
        names.
        """
        llm = self.chosen.config.llm
        for option, local in (
            ("--model-path", llm.checkpoint.Local),
            ("--data-path", llm.data_location.Local),
        ):
            if local is not None:
                yield from (option, str(Path(local.path).expanduser().absolute()))


def clients_of(count: int, tiers: str, chosen: ChosenConfig) -> tuple[LocalTestnetClient, ...]:
    """Return the clients with their tiers. Raises UsageError if the run lacks a tier or needs more
    clients.
    """
    tier_count = chosen.config.llm.matformer.tiers
    client_tiers = numbers("--client-matformer-tiers", tiers)
    if len(client_tiers) > count:
        raise UsageError(
            f"--client-matformer-tiers {tiers} are more than --num-clients {count}",
            "List one tier per client, in order",
        )
    if strange := [tier for tier in client_tiers if tier >= tier_count]:
        raise UsageError(
            f"--client-matformer-tiers: {chosen.path} has {counted(tier_count, 'tier')}, and no tier {strange[0]}",
            f"Choose from 0 to {tier_count - 1}, or write another number of tiers under [model.LLM.matformer]",
        )
    rules = chosen.config.config
    if count < (least := max(rules.min_clients, rules.init_min_clients)):
        raise UsageError(
            f"--num-clients {count}: the run of {chosen.path} waits for {least}",
            f"Pass --num-clients {least}, or write another init_min_clients",
        )
    return tuple(
        LocalTestnetClient(number, client_tiers[(number - 1) % len(client_tiers)])
        for number in range(1, count + 1)
    )


def allowed_of(text: str | None, clients: tuple[LocalTestnetClient, ...]) -> tuple[int, ...]:
    """Return the numbers of the clients that may be killed. Raises UsageError."""
    if text is None:
        return tuple(client.number for client in clients)
    allowed = numbers("--allowed-to-kill", text)
    if strange := [number for number in allowed if not 1 <= number <= len(clients)]:
        raise UsageError(
            f"--allowed-to-kill: there is no client {strange[0]}",
            f"Clients have the numbers 1 to {len(clients)}",
        )
    return tuple(allowed)


def chaos_of(
    number: int, interval: float, allowed_text: str | None, clients: tuple[LocalTestnetClient, ...]
) -> ChaosSchedule:
    """Return the schedule of kills. Raises UsageError if fewer clients may be killed than asked."""
    allowed = allowed_of(allowed_text, clients)
    if number > (most := len(set(allowed))):
        raise UsageError(
            f"--random-kill-num {number}: only {counted(most, 'client')} may be killed",
            f"Pass at most --random-kill-num {most}, or more clients",
        )
    return ChaosSchedule(number, interval, allowed)


def numbers(option: str, text: str) -> list[int]:
    """Return integers separated by commas. Raises UsageError."""
    words = text.replace(" ", "")
    if not _NUMBERS.fullmatch(words):
        raise UsageError(
            f"{option} {text!r} is not a list of numbers", f"For example {option} 0,1,2"
        )
    return [int(word) for word in words.split(",")]
