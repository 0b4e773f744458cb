"""The lines that the demonstration prints at its end, made from its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.demo.commands import Places
from aftermath.testnet.story import MemberStory

_LAMPORTS_PER_SOL = 1_000_000_000


def closing(report: Mapping[str, Any], places: Places, killed: MemberStory) -> list[str]:
    """Return the lines. Steps of the demonstration that failed are reported elsewhere."""
    held_out = ", ".join(f"tier {tier} {loss:.2f}" for tier, loss in report["held_out_by_tier"].items())
    lines = [
        f"{len(report['tiers'])} members trained {report['rounds']} steps in {report['wall_seconds']:.0f} s. "
        f"The loss fell from {report['loss_first']:.2f} to {report['loss_last']:.2f} nats per byte.",
        f"Held-out loss at step {report['held_out_step']}: {held_out}.",
        f"The whole model picks the right one of four continuations in {report['answered']:.0%} of the cases "
        "(25% by chance).",
    ]
    if report["replicas_identical"]:
        checks = report["checks_of_replicas"]
        lines.append(f"Replicas are identical: {checks} of {checks} hash checks agree.")
    if killed.returned is not None:
        lines.append(
            f"{killed.name} was killed with kill -9. It fetched the model from {killed.came_back_with} and has "
            f"trained again since step {killed.returned}."
        )
    lines += [
        f"On chain: {report['transactions']:,} transactions, {report['lamports']:,} lamports in fees "
        f"({report['lamports'] / _LAMPORTS_PER_SOL:g} SOL).",
        f"Files in {places.root}: demo-report.json, loss.png, checkpoints/, events/, logs/.",
    ]
    return lines
