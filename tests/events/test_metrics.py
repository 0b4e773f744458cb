"""Test that the page and the dashboard use exactly the metrics that Prometheus gets."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aftermath.base.errors import Unsuitable
from aftermath.events.metrics import Metrics
from aftermath.localnet.free_ports import free_ports
from aftermath.rules.state import RunState
from aftermath.train.settings import TrainSettings
from aftermath.train.sinks import events_of
from events.sample_events import KINDS, sample_event

ROOT = Path(__file__).parents[2]
NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
GPU = {
    "number": 1,
    "memory_used": 5 << 30,
    "memory_total": 8 << 30,
    "utilization": 75.0,
    "temperature": 60.0,
    "power": 250.5,
}
OWN = {"run": 'a "run"\nof two lines', "wallet": "Wal1et", "tier": "1"}


def scraped(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the served values by name and by the labels that not all series have."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            assert OWN.items() <= sample.labels.items(), sample
            values[sample.name, frozenset(sample.labels.items() - OWN.items())] = sample.value
    return values


def names() -> set[str]:
    """Return the names of all metrics as queries use them."""
    suffixes = {"counter": ["_total"], "summary": ["_count", "_sum"], "gauge": [""]}
    return {
        one.name + end
        for one in Metrics(lambda: NOON).registry.collect()
        for end in suffixes[one.type]
    }


def test_metrics_are_served_while_member_runs() -> None:
    port = free_ports("127.0.0.1", 1)
    with contextlib.ExitStack() as stack:
        events = events_of(TrainSettings(run_id=OWN["run"], metrics_port=port), stack)
        assert scraped(port) == {}
        events.emit(
            sample_event("started", run_id=OWN["run"], wallet="Wal1et", tier=1, version="0.1.0")
        )
        events.emit(sample_event("state", epoch=2, state="WARMUP", step=39, total_steps=120))
        for step in (40, 41):
            events.emit(sample_event("round", epoch=2, step=step))
            events.emit(
                sample_event(
                    "trained",
                    step=step,
                    loss=4.0 - step / 100,
                    tokens=500,
                    tokens_per_sec=99.5,
                    seconds=1.5,
                )
            )
            events.emit(sample_event("applied", step=step, results=3, waited=0.25, seconds=0.5))
            costs = {"transactions": step - 39, "lamports": 5000 * (step - 39)}
            events.emit(
                sample_event(
                    "traffic", sent=1000 * step, received=2000 * step, peers=2, costs=costs
                )
            )
        events.emit(sample_event("trained", step=42, loss=None, tokens=500, tokens_per_sec=99.5))
        events.emit(sample_event("fetch_failed"))
        events.emit(sample_event("refused"))
        events.emit(sample_event("dropped", seats=[3, 4]))
        for verdict in ("match", "mismatch", "abstained"):
            events.emit(sample_event("audited", verdict=verdict))
        events.emit(sample_event("warning", message="trouble"))
        for network in (100, 250):
            machine = {"cpu": 12.5, "resident": 1 << 30, "available": 2 << 30, "disk_free": 3 << 30}
            network_told = {"network_sent": network, "network_received": 2 * network}
            events.emit(
                sample_event("machine", **machine, **network_told, gpus=[{"number": 0}, GPU])
            )
        values = scraped(port)
        none: frozenset[tuple[str, str]] = frozenset()
        expected = {
            "aftermath_epoch": 2,
            "aftermath_step": 40,
            "aftermath_steps": 120,
            "aftermath_loss": 4.0 - 41 / 100,
            "aftermath_tokens_per_second": 99.5,
            "aftermath_tokens_total": 1500,
            "aftermath_results_applied_total": 6,
            "aftermath_fetch_failures_total": 1,
            "aftermath_refused_total": 1,
            "aftermath_members_dropped_total": 2,
            "aftermath_audits_total": 2,
            "aftermath_audit_mismatches_total": 1,
            "aftermath_warnings_total": 1,
            "aftermath_peers": 2,
            "aftermath_sent_bytes_total": 41_000,
            "aftermath_received_bytes_total": 82_000,
            "aftermath_transactions_total": 2,
            "aftermath_lamports_total": 10_000,
            "aftermath_cpu_percent": 12.5,
            "aftermath_memory_resident_bytes": 1 << 30,
            "aftermath_memory_available_bytes": 2 << 30,
            "aftermath_disk_free_bytes": 3 << 30,
            "aftermath_network_sent_bytes_total": 250,
            "aftermath_network_received_bytes_total": 500,
        }
        assert (
            expected.items()
            <= {name: value for (name, labels), value in values.items() if labels == none}.items()
        )
        in_state = {
            dict(labels)["state"]
            for (name, labels), on in values.items()
            if name == "aftermath_state" and on
        }
        assert in_state == {"warmup"}
        assert sum(name == "aftermath_state" for name, _ in values) == len(RunState)
        wait = frozenset({("part", "wait")})
        assert (
            values["aftermath_round_seconds_count", wait],
            values["aftermath_round_seconds_sum", wait],
        ) == (2, 0.5)
        of_gpus = {name: value for (name, labels), value in values.items() if "gpu" in dict(labels)}
        assert of_gpus == {
            "aftermath_gpu_memory_used_bytes": 5 << 30,
            "aftermath_gpu_memory_total_bytes": 8 << 30,
            "aftermath_gpu_utilization_percent": 75,
            "aftermath_gpu_temperature_celsius": 60,
            "aftermath_gpu_power_watts": 250.5,
        }
        assert {dict(labels)["gpu"] for _, labels in values if "gpu" in dict(labels)} == {"1"}, (
            "the other told nothing"
        )
        assert values["aftermath_client_info", frozenset({("version", "0.1.0")})] == 1
        assert {name for name, _ in values} == names(), "all that there is was told"
    with pytest.raises(OSError):
        scraped(port)


def test_metrics_accept_every_event_in_any_order() -> None:
    metrics = Metrics(lambda: NOON)
    for _ in range(2):
        for kind in KINDS:
            metrics(sample_event(kind))


def test_taken_metrics_port_error_names_option() -> None:
    port = free_ports("127.0.0.1", 1)
    settings = TrainSettings(run_id="demo", metrics_port=port)
    with contextlib.ExitStack() as stack:
        events_of(settings, stack)
        with pytest.raises(Unsuitable, match=f"^--metrics-port: cannot listen on port {port}"):
            events_of(settings, stack)


def test_metrics_page_lists_exactly_all_metrics() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    assert set(re.findall(r"`(aftermath_\w+)", page)) == names()


def test_dashboard_queries_exactly_all_metrics() -> None:
    dashboard = json.loads((ROOT / "config/grafana/aftermath.json").read_text())
    queries = {target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}
    assert set(re.findall(r"aftermath_\w+", " ".join(queries))) == names()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    labels = {*OWN, "state", "part", "version", "gpu"}
    legends = {
        target["legendFormat"] for panel in dashboard["panels"] for target in panel["targets"]
    }
    assert set(re.findall(r"{{(\w+)}}", " ".join(legends))) <= labels
