"""What a local testnet did, in one line and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from aftermath.base.counted import counted
from aftermath.testnet.plan import Plan
from aftermath.testnet.story import Story

_LAST = 10  # steps whose mean is the last loss


class Ending(StrEnum):
    """Why it ended."""

    FINISHED = "finished"
    TIME = "time is over"
    LEFT = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Summary:
    """All of it."""

    ending: Ending
    steps: int
    total_steps: int
    clients: int
    tiers: list[int]
    kills: int
    failed: list[str]
    """Clients that ended with an error."""
    loss_first: float | None
    loss_last: float | None
    comparisons: int
    differing: list[str]
    """Where two replicas differed, which must not be."""
    seconds: float
    directory: str

    @property
    def good(self) -> bool:
        return not self.failed and not self.differing

    def data(self) -> dict[str, Any]:
        return asdict(self) | {"ending": self.ending.name.lower()}

    def line(self) -> str:
        """One line."""
        took = f"{self.ending}: step {self.steps} of {self.total_steps} in {self.seconds:.0f} s"
        tiers = ("tier " if len(self.tiers) == 1 else "tiers ") + ", ".join(map(str, self.tiers))
        loss = f"loss {self.loss_first:.3f} to {self.loss_last:.3f}" if self.loss_last is not None else "no loss yet"
        same = f"replicas identical in {counted(self.comparisons, 'comparison')}"
        if not self.comparisons:
            same = "no two replicas to compare"
        parts = [
            f"{counted(self.clients, 'client')} of {tiers}",
            counted(self.kills, "kill"),
            loss,
            f"REPLICAS DIFFER: {self.differing[0]}" if self.differing else same,
        ]
        parts += [f"ended with an error: {', '.join(self.failed)}"] if self.failed else []
        return f"{took}; {', '.join(parts)}; everything is in {self.directory}"


def summary_of(plan: Plan, story: Story, ending: Ending, kills: int, failed: list[str], seconds: float) -> Summary:
    """What happened, from what the clients told."""
    curve = story.history.loss_curve()
    last = [loss for _, loss in curve[-_LAST:]]
    checks, differing = story.replica_checks()
    return Summary(
        ending=ending,
        steps=max((member.step for member in story.members), default=0),
        total_steps=plan.chosen.config.config.total_steps,
        clients=len(plan.clients),
        tiers=[client.tier for client in plan.clients],
        kills=kills,
        failed=failed,
        loss_first=round(curve[0][1], 4) if curve else None,
        loss_last=round(sum(last) / len(last), 4) if last else None,
        comparisons=checks,
        differing=differing,
        seconds=round(seconds, 1),
        directory=str(plan.place),
    )
