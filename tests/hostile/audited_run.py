"""Run five members with bonds and audits. One or two of them cheat."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aftermath.rules.state import MemberState, RunState
from e2e.cluster import TrainingCluster
from e2e.event_log import Event
from e2e.processes import PATIENCE
from e2e.run_inputs import RunInputs

CHEATING = Path(__file__).with_name("cheating_member.py")
BOND = 2_000_000  # lamports
EPOCHS = 2
ROUND_SECONDS = 5
"""Minimum round. An auditor replays twice before it accuses."""
RULES = {
    "min_clients": 3,
    "init_min_clients": 5,
    "waiting_for_members_extra_time": 20,
    "max_round_train_time": 60,
    "global_batch_size_start": 20,
    "global_batch_size_end": 20,
    "join_bond": BOND,
}
_LIMIT = ("--max-bond", str(BOND))


@dataclass(frozen=True)
class AuditedRun:
    """What the chain and the other members say at the end. The cheater is the highest number."""

    seat: int | None
    """Seat of the cheater."""
    forfeited: int
    """Seats (a bitmap) that had lost their bond when the cheater was stopped."""
    events: tuple[Event, ...]
    """Events of the other members."""

    def seats(self, kind: str, key: str, **fields: object) -> set[int]:
        """Return the seats that events of a kind name."""
        return {
            event[key]
            for event in self.events
            if event["kind"] == kind and fields.items() <= event.items()
        }


def play(
    cluster: TrainingCluster,
    run_inputs: RunInputs,
    cheats: Mapping[int, str],
    *,
    percent: int,
    steps: int,
    options: Sequence[str] = (),
) -> AuditedRun:
    """Play a run until it is finished, and stop its cheater once it is ejected.

    `cheats` maps a member's number to its way of cheating (`hostile.cheating_member`); other
    members are honest. The run should eject the highest number. `options` are those of `train`.
    """
    lengths = {"rounds_per_epoch": steps // EPOCHS, "total_steps": steps}
    rules = RULES | lengths | {"verification_percent": percent, "min_round_time": ROUND_SECONDS}
    cluster.configure(run_inputs.config(cluster.place, one_bit=True, **rules))
    members = [cluster.add_member(0) for _ in range(5)]
    lent = cluster.place / "lent"
    lent.mkdir()
    cluster.command("set-paused", "resume", "--run-id", cluster.run_id)
    # All must be in the first epoch: a newcomer audits nobody in the second one.
    for number, cheat in cheats.items():
        line = [sys.executable, CHEATING, cheat, *cluster.line(members[number], *_LIMIT, *options)]
        cluster.launch(members[number], line, LENT_RESULTS=str(lent))
    for number in cheats:
        cluster.until(partial(cluster.seat, members[number]), "a cheater joins")
    for number, member in enumerate(members):
        if number not in cheats:
            cluster.start(member, *_LIMIT, *options)
    cheater = members[max(cheats)]
    others = [member for member in members if member is not cheater]

    def is_over() -> bool:
        seat = cluster.seat(cheater)
        is_ejected = seat is not None and seat.state is MemberState.EJECTED
        return is_ejected or cluster.run.state is RunState.FINISHED

    patience = PATIENCE + 15 * steps  # seconds
    cluster.until(is_over, "the cheater is ejected", patience)
    seat = cluster.chain_members.find(bytes(cheater.wallet))
    forfeited = cluster.chain_members.forfeited
    cheater.process.kill()
    cluster.until(lambda: cluster.run.state is RunState.FINISHED, "the run finishes", patience)
    assert [member.process.wait() for member in others] == [0] * len(others)
    assert cluster.run.trained_steps == steps
    assert cluster.compare_replicas() > 0
    events = tuple(event for member in others for event in member.event_log.events)
    return AuditedRun(seat, forfeited, events)
