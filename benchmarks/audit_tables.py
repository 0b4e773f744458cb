"""The tables of docs/measurements.md about audits, from benchmarks/measured/hostile.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learning_tables import table

LABELS = {"adamw": "AdamW", "muon": "Muon", "distro": "DisTrO"}
"""SparseLoCo by its inner optimizer, and DisTrO."""
AUDITS = """From `{command}`. One of eight established members is hostile. The code of real members judges its
results: 30 inner steps of a tiny model, {seeds} seeds, three auditors each. The program draws the
audits and counts the votes, and each judgement takes a round. *rounds* are those from the first false
result to the conviction: median; worst. A judgement takes {seconds:.2f} s of CPU time and fetches
{kilobytes:.0f} KB. Honest members lost {lost} cases. Unless a row says otherwise, each
judgement found the attack. False alarms about honest shares: {alarms}."""

COST = """Cost of one result in 16 for a member of 8.5 M parameters on one CPU core, with shares of
{tokens:,} tokens. *compute* is relative to the share. *uplink* is relative to a line of 110 Mb/s
while the share trains; a round of *shortest round* makes it 5%. *over results* compares the fetched
bytes with the member's result, sent to seven peers."""


def tables(found: Mapping[str, Any]) -> str:
    """Return how long each attack lasts under audits, and what audits cost."""
    rows = [_audited_attack(row) for row in found["audits"]]
    heads = ("attack", "rounds at 6%", "at 25%")
    cost = found["audit_cost"]
    tokens = next(iter(cost.values()))["share_tokens"]
    costs = [
        (
            label,
            f"{cost[name]['compute']:.1%}",
            f"{cost[name]['bytes'] / 1e6:.0f} MB",
            f"{cost[name]['uplink']:.1%}",
            f"{cost[name]['shortest_round']:.1f} s",
            f"{cost[name]['over_results']:.1f}",
        )
        for name, label in LABELS.items()
    ]
    honest = found["audit_honest"]
    judged = [row for row in found["audits"] if row.get("judgements")]
    alarms = ", ".join(
        f"{LABELS[name]} {one['false_alarms']} of {one['judgements']}"
        for name, one in honest["by_optimizer"].items()
    )
    intro = AUDITS.format(
        command=found["audits_measured"]["command"],
        seeds=judged[0]["seeds"],
        seconds=judged[0]["seconds"],
        kilobytes=judged[0]["bytes"] / 1e3,
        lost=sum(row["false_convictions"] for row in found["audits"]),
        alarms=alarms,
    )
    cost_heads = (
        "optimizer",
        "compute",
        "bytes per audit",
        "uplink",
        "shortest round",
        "over results",
    )
    parts = [intro, table(heads, rows), COST.format(tokens=tokens), table(cost_heads, costs)]
    return "\n\n".join(part if part.startswith("|") else _one_line(part) for part in parts)


def _one_line(text: str) -> str:
    """Return a paragraph as one line, which the page wraps."""
    return text.replace("\n", " ")


def _audited_attack(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = row["attack"]
    if row.get("detected") != row.get("judgements"):
        name += f" (found by {row['detected']} of {row['judgements']})"
    rounds = [
        f"{_rounds(row[f'rounds_median{at}'])}; {_rounds(row[f'rounds_worst{at}'])}"
        if row[f"rounds_median{at}"] is not None
        else "never"
        for at in ("", "_25")
    ]
    return (name, *rounds)


def _rounds(count: float | None) -> str:
    return "never" if count is None else f"{count:g}"
