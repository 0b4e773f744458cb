"""The tables of docs/measurements.md about audits, from benchmarks/measured/hostile.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learning_tables import table

AUDITS = """From `{command}`. One of eight established members is hostile from round 0 on. Real
members' code judges its results: 30 inner steps of a tiny model, {seeds} seeds, three auditors each. The
program draws the audits and counts the votes, and each judgement takes a round. *rounds* are those
from the first false result to the conviction. *judgements* counts those that convict."""

COST = """Cost of one result in 16 for a member of 8.5 M parameters, on a CPU. *audit* is its CPU time over
that of the share ({tokens:,} tokens). *compute* adds the copies that each round keeps. *uplink* is the
bytes fetched from it per round, over what a line of 110 Mb/s sends while the share trains on one
core. *shortest round* would make that 5 %. *over results* compares them with its result, sent to
seven peers."""


def tables(found: Mapping[str, Any]) -> str:
    """Return how long each attack lasts under audits, and what audits cost."""
    rows = [_audited_attack(row) for row in found["audits"]]
    heads = (
        "attack",
        "judgements",
        "rounds at 6 %, median; worst",
        "at 25 %",
        "false convictions",
        "CPU s",
        "KB fetched",
    )
    command = found["audits_measured"]["command"]
    cost = found["audit_cost"]
    tokens = next(iter(cost.values()))["share_tokens"]
    costs = [
        (
            label,
            f"{cost[name]['audit_over_share']:.2f}",
            f"{cost[name]['compute']:.1%}",
            f"{cost[name]['bytes'] / 1e6:.0f} MB",
            f"{cost[name]['uplink']:.1%}",
            f"{cost[name]['shortest_round']:.1f} s",
            f"{cost[name]['over_results']:.1f}",
        )
        for name, label in (
            ("adamw", "SparseLoCo, AdamW"),
            ("muon", "SparseLoCo, Muon"),
            ("distro", "DisTrO"),
        )
    ]
    honest = found["audit_honest"]
    note = (
        f"Of {honest['judgements']:,} judgements of honest shares of 30 inner steps, "
        f"{honest['false_alarms']} were false alarms. The largest distance was "
        f"{honest['largest_distance']:.2g}; the bound is 2e-3."
    )
    cost_heads = (
        "optimizer",
        "audit",
        "compute",
        "bytes per audit",
        "uplink",
        "shortest round",
        "over results",
    )
    return "\n\n".join(
        [
            AUDITS.format(command=command, seeds=found["audits"][0]["seeds"]),
            table(heads, rows),
            note,
            COST.format(tokens=tokens),
            table(cost_heads, costs),
        ]
    )


def _audited_attack(row: dict[str, Any]) -> tuple[str, ...]:
    judged = f"{row['detected']} of {row['judgements']}" if "detected" in row else ""
    rounds = [
        f"{_rounds(row[f'rounds_median{at}'])}; {_rounds(row[f'rounds_worst{at}'])}"
        for at in ("", "_25")
    ]
    return (
        row["attack"],
        judged,
        *rounds,
        str(row["false_convictions"]),
        f"{row['seconds']:.2f}",
        f"{row['bytes'] / 1e3:.0f}",
    )


def _rounds(count: float | None) -> str:
    return "never" if count is None else f"{count:g}"
