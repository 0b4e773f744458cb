"""How the demo ends: what happened, in plain sentences, each from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.demo.commands import Places
from aftermath.testnet.story import MemberStory


def closing(report: Mapping[str, Any], places: Places, killed: MemberStory) -> list[str]:
    """The sentences; what the demo promised and did not do is said elsewhere."""
    first, last = report["loss_first"], report["loss_last"]
    trained, unseen = report["loss_last_by_tier"], report["held_out_by_tier"]
    tiers = ", ".join(f"tier {tier} {loss:.3f} and {unseen[tier]:.3f}" for tier, loss in trained.items())
    real, every = (sum(counts) for counts in zip(*report["words_of_samples"].values(), strict=True))
    sentences = [
        f"{len(report['tiers'])} members trained {report['rounds']} steps together in {report['wall_seconds']:.0f} s; "
        f"the loss went from {first:.3f} to {last:.3f} nats per byte of text.",
        f"Each tier's own loss over its last rounds, and on text that nobody trained on, of the checkpoint "
        f"of step {report['held_out_step']}: {tiers}.",
        "Asked which of four pieces of source continues another, the whole model is right "
        f"in {report['answered']:.0%} of the cases; guessing is right in 25%.",
        f"Of the {every} words of three letters or more that the tiers wrote above, {real} are words of the text they "
        "learnt from; what they say together means nothing, after so short a training.",
    ]
    if report["replicas_identical"]:
        sentences.append(
            f"The replicas are identical: {report['checks_of_replicas']} times two members held the same level of the "
            "model after the same step, and every time they held the same bits."
        )
    if killed.returned is not None:
        sentences.append(
            f"{killed.name} was killed with kill -9, came back with the model from {killed.came_back_with}, and has "
            f"trained again since step {killed.returned}."
        )
    sentences += [
        f"On chain that took {report['transactions']:,} transactions, for {report['lamports']:,} lamports.",
        f"In {places.root}: demo-report.json (these figures), loss.png (the loss), checkpoints/ (the model), "
        "events/ and logs/ (what every process saw and said).",
    ]
    return sentences
