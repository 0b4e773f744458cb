"""Export a member's events as Prometheus metrics. docs/operations.md lists them.

All series carry run, wallet and tier. They are served on the loopback address only, so remote
collectors need their own tunnel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, start_http_server

from aftermath.events import event_types
from aftermath.events.stream import Wall
from aftermath.rules.state import RunState

ADDRESS = "127.0.0.1"
_MEMBER_LABELS = ("run", "wallet", "tier")
_GPU_METRICS = (
    ("memory_used", "memory_used_bytes", "Memory of the GPU that is in use, by all processes"),
    ("memory_total", "memory_total_bytes", "Memory of the GPU"),
    ("utilization", "utilization_percent", "Share of time in which the GPU computed"),
    ("temperature", "temperature_celsius", "Temperature of the GPU"),
    ("power", "power_watts", "Power that the GPU draws"),
)
"""Fields of `event_types.Gpu`, with the names and descriptions of their metrics."""


class Metrics:
    """A sink that updates the metrics in `registry`."""

    def __init__(self, wall: Wall) -> None:
        self.registry = CollectorRegistry()
        self._wall = wall
        self._labels: tuple[str, str, str] | None = None
        self._before = event_types.Traffic(sent=0, received=0, sent_by_kind={}, peers=0, costs={})
        self._network = 0, 0
        self._client = self._gauge("client_info", "1, with the client's version", "version")
        self._epoch = self._gauge("epoch", "The run's epoch")
        self._step = self._gauge("step", "Steps that the run has trained")
        self._steps = self._gauge("steps", "Total steps of the run")
        self._state = self._gauge(
            "state", "1 for the state that the run is in, 0 for the others", "state"
        )
        self._loss = self._gauge("loss", "Loss of this member's newest share, in nats per token")
        self._speed = self._gauge("tokens_per_second", "Training speed of that share")
        self._tokens = self._counter("tokens", "Tokens that this member has trained")
        self._last_trained = self._gauge(
            "last_trained_timestamp_seconds", "When that share was trained, in unix time"
        )
        self._seconds = self._summary(
            "round_seconds", "Duration of the parts of this member's rounds", "part"
        )
        self._applied = self._counter(
            "results_applied", "Results of all members that were applied to the model"
        )
        self._failed = self._counter("fetch_failures", "Results that could not be fetched yet")
        self._refused = self._counter("refused", "Messages and data of peers that were rejected")
        self._audits = self._counter("audits", "Results of others that this member replayed")
        self._mismatches = self._counter("audit_mismatches", "Results that it found to be false")
        self._dropped = self._counter("members_dropped", "Members that this one reported as gone")
        self._warnings = self._counter("warnings", "Warnings in the log")
        self._peers = self._gauge("peers", "Reachable peers")
        self._sent = self._counter("sent_bytes", "Bytes sent to peers")
        self._received = self._counter("received_bytes", "Bytes received from peers")
        self._transactions = self._counter("transactions", "Transactions that this member has sent")
        self._lamports = self._counter("lamports", "Fees of these transactions in lamports")
        self._cpu = self._gauge("cpu_percent", "Use of all cores of the machine")
        self._resident = self._gauge("memory_resident_bytes", "Memory of this member's processes")
        self._available = self._gauge("memory_available_bytes", "Available memory of the machine")
        self._disk = self._gauge("disk_free_bytes", "Free space where this member writes")
        self._network_sent = self._counter("network_sent_bytes", "Bytes that the machine has sent")
        self._network_received = self._counter(
            "network_received_bytes", "Bytes that the machine has received"
        )
        self._gpu = {
            name: self._gauge(f"gpu_{unit}", meaning, "gpu") for name, unit, meaning in _GPU_METRICS
        }

    def __call__(self, event: event_types.Event) -> None:
        if isinstance(event, event_types.MemberStarted):
            self._labels = event.run_id, event.wallet, str(event.tier)
            self._client.labels(*self._labels, event.version).set(1)
        elif self._labels is not None:
            self._take(event, self._labels)

    def _take(self, event: event_types.Event, labels: tuple[str, str, str]) -> None:
        match event:
            case event_types.StateChanged():
                self._epoch.labels(*labels).set(event.epoch)
                self._step.labels(*labels).set(event.step)
                self._steps.labels(*labels).set(event.total_steps)
                for state in RunState:
                    self._state.labels(*labels, state.name.lower()).set(state.name == event.state)
            case event_types.RoundStarted():
                self._epoch.labels(*labels).set(event.epoch)
                self._step.labels(*labels).set(max(0, event.step - 1))
            case event_types.ShareTrained():
                self._trained(event, labels)
            case event_types.Applied():
                self._applied.labels(*labels).inc(event.results)
                self._seconds.labels(*labels, "wait").observe(event.waited)
                self._seconds.labels(*labels, "apply").observe(event.seconds)
            case event_types.FetchFailed():
                self._failed.labels(*labels).inc()
            case event_types.PeerRefused():
                self._refused.labels(*labels).inc()
            case event_types.Audited():
                self._audits.labels(*labels).inc(event.verdict != "abstained")
                self._mismatches.labels(*labels).inc(event.verdict == "mismatch")
            case event_types.Dropped():
                self._dropped.labels(*labels).inc(len(event.seats))
            case event_types.Warning():
                self._warnings.labels(*labels).inc()
            case event_types.Traffic():
                self._traffic(event, labels)
            case event_types.Machine():
                self._machine(event, labels)
            case event_types.RunFinished():
                self._step.labels(*labels).set(event.step)

    def _trained(self, event: event_types.ShareTrained, labels: tuple[str, str, str]) -> None:
        if event.loss is not None:
            self._loss.labels(*labels).set(event.loss)
        self._speed.labels(*labels).set(event.tokens_per_sec)
        self._tokens.labels(*labels).inc(event.tokens)
        self._last_trained.labels(*labels).set(self._wall().timestamp())
        self._seconds.labels(*labels, "train").observe(event.seconds)
        self._seconds.labels(*labels, "encode").observe(event.encode_seconds)
        self._seconds.labels(*labels, "announce").observe(event.announce_seconds)

    def _traffic(self, event: event_types.Traffic, labels: tuple[str, str, str]) -> None:
        previous, self._before = self._before, event
        self._peers.labels(*labels).set(event.peers)
        self._sent.labels(*labels).inc(max(0, event.sent - previous.sent))
        self._received.labels(*labels).inc(max(0, event.received - previous.received))
        for name, counter in (("transactions", self._transactions), ("lamports", self._lamports)):
            counter.labels(*labels).inc(
                max(0, event.costs.get(name, 0) - previous.costs.get(name, 0))
            )

    def _machine(self, event: event_types.Machine, labels: tuple[str, str, str]) -> None:
        self._cpu.labels(*labels).set(event.cpu)
        self._resident.labels(*labels).set(event.resident)
        self._available.labels(*labels).set(event.available)
        self._disk.labels(*labels).set(event.disk_free)
        (sent, received), self._network = (
            self._network,
            (event.network_sent, event.network_received),
        )
        self._network_sent.labels(*labels).inc(max(0, event.network_sent - sent))
        self._network_received.labels(*labels).inc(max(0, event.network_received - received))
        for gpu in event.gpus:
            for name, gauge in self._gpu.items():
                if (value := getattr(gpu, name)) is not None:
                    gauge.labels(*labels, str(gpu.number)).set(value)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(
            f"aftermath_{name}", meaning, (*_MEMBER_LABELS, *labels), registry=self.registry
        )

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"aftermath_{name}", meaning, _MEMBER_LABELS, registry=self.registry)

    def _summary(self, name: str, meaning: str, *labels: str) -> Summary:
        return Summary(
            f"aftermath_{name}", meaning, (*_MEMBER_LABELS, *labels), registry=self.registry
        )


@contextmanager
def served(metrics: Metrics, port: int) -> Iterator[None]:
    """Serve the metrics under `/metrics` at this port. Raises OSError if the port is not
    available.
    """
    server, thread = start_http_server(port, ADDRESS, metrics.registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
