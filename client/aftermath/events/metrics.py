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
_OWN = ("run", "wallet", "tier")
_OF_A_GPU = (
    ("memory_used", "memory_used_bytes", "Memory of the GPU that is in use, by all processes"),
    ("memory_total", "memory_total_bytes", "Memory of the GPU"),
    ("utilization", "utilization_percent", "Of the time, in which the GPU computed"),
    ("temperature", "temperature_celsius", "Of the GPU"),
    ("power", "power_watts", "That the GPU draws"),
)
"""Fields of `event_types.Gpu`, and what they are called here."""


class Metrics:
    """A sink that updates the metrics in `registry`."""

    def __init__(self, wall: Wall) -> None:
        self.registry = CollectorRegistry()
        self._wall = wall
        self._of: tuple[str, str, str] | None = None
        self._before = event_types.Traffic(sent=0, received=0, sent_by_kind={}, peers=0, costs={})
        self._network = 0, 0
        self._client = self._gauge("client_info", "1, with the client's version", "version")
        self._epoch = self._gauge("epoch", "The run's epoch")
        self._step = self._gauge("step", "Steps that the run has trained")
        self._steps = self._gauge("steps", "Steps that the run will have trained in the end")
        self._state = self._gauge(
            "state", "1 for the state that the run is in, 0 for the others", "state"
        )
        self._loss = self._gauge("loss", "Of this member's newest share, in nats per token")
        self._speed = self._gauge("tokens_per_second", "At which that share was trained")
        self._tokens = self._counter("tokens", "Tokens that this member has trained")
        self._told = self._gauge(
            "last_trained_timestamp_seconds", "When that share was trained, in unix time"
        )
        self._seconds = self._summary(
            "round_seconds", "What the parts of this member's rounds took", "part"
        )
        self._applied = self._counter(
            "results_applied", "Results that are in the model, of all members"
        )
        self._failed = self._counter("fetch_failures", "Results that could not be had yet")
        self._refused = self._counter("refused", "What peers said or sent that does not count")
        self._dropped = self._counter("members_dropped", "Members that this one reported as gone")
        self._warnings = self._counter("warnings", "What a person should know: see the log")
        self._peers = self._gauge("peers", "Peers in reach")
        self._sent = self._counter("sent_bytes", "Bytes sent to peers")
        self._received = self._counter("received_bytes", "Bytes received from peers")
        self._transactions = self._counter("transactions", "Transactions that this member has sent")
        self._lamports = self._counter("lamports", "Lamports that these have cost")
        self._cpu = self._gauge("cpu_percent", "What all cores of the machine do")
        self._resident = self._gauge("memory_resident_bytes", "Memory of this member's processes")
        self._available = self._gauge("memory_available_bytes", "Memory that the machine has left")
        self._disk = self._gauge("disk_free_bytes", "Room where this member writes")
        self._network_sent = self._counter("network_sent_bytes", "Bytes that the machine has sent")
        self._network_received = self._counter(
            "network_received_bytes", "Bytes that the machine has received"
        )
        self._gpu = {
            name: self._gauge(f"gpu_{unit}", meaning, "gpu") for name, unit, meaning in _OF_A_GPU
        }

    def __call__(self, event: event_types.Event) -> None:
        if isinstance(event, event_types.MemberStarted):
            self._of = event.run_id, event.wallet, str(event.tier)
            self._client.labels(*self._of, event.version).set(1)
        elif self._of is not None:
            self._take(event, self._of)

    def _take(self, event: event_types.Event, own: tuple[str, str, str]) -> None:
        match event:
            case event_types.StateChanged():
                self._epoch.labels(*own).set(event.epoch)
                self._step.labels(*own).set(event.step)
                self._steps.labels(*own).set(event.total_steps)
                for state in RunState:
                    self._state.labels(*own, state.name.lower()).set(state.name == event.state)
            case event_types.RoundStarted():
                self._epoch.labels(*own).set(event.epoch)
                self._step.labels(*own).set(max(0, event.step - 1))
            case event_types.ShareTrained():
                self._trained(event, own)
            case event_types.Applied():
                self._applied.labels(*own).inc(event.results)
                self._seconds.labels(*own, "wait").observe(event.waited)
                self._seconds.labels(*own, "apply").observe(event.seconds)
            case event_types.FetchFailed():
                self._failed.labels(*own).inc()
            case event_types.PeerRefused():
                self._refused.labels(*own).inc()
            case event_types.Dropped():
                self._dropped.labels(*own).inc(len(event.seats))
            case event_types.Warning():
                self._warnings.labels(*own).inc()
            case event_types.Traffic():
                self._traffic(event, own)
            case event_types.Machine():
                self._machine(event, own)
            case event_types.RunFinished():
                self._step.labels(*own).set(event.step)

    def _trained(self, event: event_types.ShareTrained, own: tuple[str, str, str]) -> None:
        if event.loss is not None:
            self._loss.labels(*own).set(event.loss)
        self._speed.labels(*own).set(event.tokens_per_sec)
        self._tokens.labels(*own).inc(event.tokens)
        self._told.labels(*own).set(self._wall().timestamp())
        self._seconds.labels(*own, "train").observe(event.seconds)
        self._seconds.labels(*own, "encode").observe(event.encode_seconds)
        self._seconds.labels(*own, "announce").observe(event.announce_seconds)

    def _traffic(self, event: event_types.Traffic, own: tuple[str, str, str]) -> None:
        before, self._before = self._before, event
        self._peers.labels(*own).set(event.peers)
        self._sent.labels(*own).inc(max(0, event.sent - before.sent))
        self._received.labels(*own).inc(max(0, event.received - before.received))
        for name, counter in (("transactions", self._transactions), ("lamports", self._lamports)):
            counter.labels(*own).inc(max(0, event.costs.get(name, 0) - before.costs.get(name, 0)))

    def _machine(self, event: event_types.Machine, own: tuple[str, str, str]) -> None:
        self._cpu.labels(*own).set(event.cpu)
        self._resident.labels(*own).set(event.resident)
        self._available.labels(*own).set(event.available)
        self._disk.labels(*own).set(event.disk_free)
        (sent, received), self._network = (
            self._network,
            (event.network_sent, event.network_received),
        )
        self._network_sent.labels(*own).inc(max(0, event.network_sent - sent))
        self._network_received.labels(*own).inc(max(0, event.network_received - received))
        for gpu in event.gpus:
            for name, gauge in self._gpu.items():
                if (value := getattr(gpu, name)) is not None:
                    gauge.labels(*own, str(gpu.number)).set(value)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"aftermath_{name}", meaning, (*_OWN, *labels), registry=self.registry)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"aftermath_{name}", meaning, _OWN, registry=self.registry)

    def _summary(self, name: str, meaning: str, *labels: str) -> Summary:
        return Summary(f"aftermath_{name}", meaning, (*_OWN, *labels), registry=self.registry)


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
