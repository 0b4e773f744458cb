"""Table of attacks: the effect of each on a run, from the chain and the honest members' events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import psutil

from aftermath.rules.assignment import PositionInterval, sequences
from aftermath.rules.bitmap import seats
from aftermath.rules.members import Members
from aftermath.rules.run import Round, Run
from aftermath.rules.state import MemberState, RunState
from aftermath.sim.chain_invariants import state_of
from e2e.cluster import ClusterMember
from e2e.event_log import Event
from hostile.attacks import NONE, blamed_for, provable

AT_LIMIT = 0.78
"""Fraction of the time limit from which a round counts as at its limit. Witnesses wait at most
0.9.
"""
MOST_AT_LIMIT = 2
MOST_AGAINST_CONTROL = 1.5
DROPPED_WITHIN = 3
"""Rounds after its first offence within which a provable attacker must lose its seat."""


@dataclass(frozen=True)
class Attacker:
    """An attack, and the shortened key by which peers know its member."""

    attack: str
    member: ClusterMember
    peer: str


@dataclass(frozen=True)
class Row:
    """Result of one attack, which had one epoch."""

    attack: str
    epoch: int
    actions: int
    """Number of hostile actions."""
    began_at: int
    """Round height of the first hostile action."""
    warmup_seconds: float
    """Seconds from the beginning of the epoch's warm-up to that of its first round."""
    median_seconds: float
    against_control: float
    """Median round over that of the same run's epochs without an attack."""
    longest_seconds: float
    rounds_at_limit: int
    due: int
    trained: int
    """Number of the epoch's sequences that an honest member had applied by the end of the run."""
    rounds: int
    honest_applied: int
    """Rounds with data, and the number of them that the honest member with the fewest has
    applied.
    """
    comparisons: int
    replicas_equal: bool
    """Number of comparisons of a level between honest members, and whether all were equal."""
    levels: int
    levels_attested: int
    """Levels of the model, and the number of them that a quorum attested when the epoch ended."""
    attacker_dropped_at: int | None
    """Round height at which the attacker lost its seat."""
    attacker_kept_out: bool
    """Whether an honest member closed its connection for breaking the protocol."""
    blamed_by: int
    """Number of honest members that reported the attack."""
    honest: int
    honest_dropped: int
    honest_megabytes: float
    """Largest memory growth of an honest member, in MB."""
    honest_cpu_per_round: float
    honest_lines: int
    """Number of events of honest members about peers: refusals, failures, warnings."""

    def slow(self, warmup_limit: float) -> list[str]:
        """Return the names of the time limits that the row misses. No test fails for them, because
        a busy machine may be at fault.
        """
        met = {
            "a warm-up does not take all its time": self.warmup_seconds < AT_LIMIT * warmup_limit,
            "a round takes as long as without an attack": self.against_control
            <= MOST_AGAINST_CONTROL,
            "two rounds at most take all their time": self.rounds_at_limit <= MOST_AT_LIMIT,
        }
        return [bar for bar, is_met in met.items() if not is_met]

    def failed(self) -> list[str]:
        """Return the names of the limits that the row misses, without time limits."""
        met = {
            "the attack was made": self.actions > 0 or self.attack == NONE,
            "honest replicas are identical": self.replicas_equal,
            "no honest member is dropped": not self.honest_dropped,
            "honest members apply every round": 0 < self.rounds == self.honest_applied,
            "90 % of the due sequences are trained": self.trained >= 0.9 * self.due > 0,
            "every level is attested": self.levels_attested == self.levels,
            "the attacker is dropped": not provable(self.attack) or self._dropped_in_time(),
            "honest members say why": not blamed_for(self.attack) or self._blamed(),
        }
        return [bar for bar, is_met in met.items() if not is_met]

    def _blamed(self) -> bool:
        return self.attacker_kept_out or 2 * self.blamed_by > self.honest

    def _dropped_in_time(self) -> bool:
        dropped_at = self.attacker_dropped_at
        return dropped_at is not None and dropped_at <= self.began_at + DROPPED_WITHIN


@dataclass
class _Epoch:
    headers: dict[int, Round] = field(default_factory=dict)
    dropped: dict[int, int] = field(default_factory=dict)
    began: dict[str, tuple[float, float]] = field(default_factory=dict)
    ended: dict[str, tuple[float, float]] = field(default_factory=dict)
    levels: int = 0
    attested: int = 0


class RunRecorder:
    """Records the chain and the honest processes during a run."""

    def __init__(self, honest: Sequence[ClusterMember]) -> None:
        self._honest = honest
        self.epochs: dict[int, _Epoch] = defaultdict(_Epoch)

    def record(self, run: Run, members: Members | None) -> None:
        """Record a state of the run. `members` is given if they have changed."""
        epoch = self.epochs[run.epoch]
        before = self.epochs[run.epoch - 1]
        if before.began and not before.ended:
            before.ended = self._cost()
            before.attested = run.levels_attested.bit_count()
        if run.state.active:
            epoch.began, epoch.levels = epoch.began or self._cost(), run.levels
            for header in run.rounds:
                if header.height <= run.current.height and run.round(header.height) is not None:
                    epoch.headers[header.height] = header
            gone = (MemberState.DROPPED, MemberState.EJECTED)
            for seat in (
                seats(members.mask(gone[0]) | members.mask(gone[1])) if members is not None else ()
            ):
                epoch.dropped.setdefault(seat, run.current.height)

    def _cost(self) -> dict[str, tuple[float, float]]:
        """Return megabytes of memory and seconds of CPU of each honest process."""
        costs = {}
        for member in self._honest:
            process = psutil.Process(member.process.pid)
            times = process.cpu_times()
            costs[member.name] = process.memory_info().rss / 1e6, times.user + times.system
        return costs


def rows_of(
    recorder: RunRecorder,
    honest: Sequence[ClusterMember],
    newcomers: Sequence[ClusterMember],
    attackers: Mapping[int, Attacker],
    controls: Sequence[int],
    limit: float,
    actions: Mapping[str, tuple[int, int]],
) -> list[Row]:
    """Return a row for each epoch with an attacker. The `controls` are epochs without an attack.

    `newcomers` take part in one epoch. Their replicas are compared too.
    """
    applied = {
        i
        for p in honest
        for e in p.event_log.events_of("applied")
        for start, stop in e["sequences"]
        for i in range(start, stop)
    }
    usual = median([seconds for epoch in controls for seconds in _seconds(honest, epoch)] or [0.0])
    rows = []
    for epoch, attacker in sorted(attackers.items()):
        seen = recorder.epochs[epoch]
        took = _seconds(honest, epoch) or [0.0]
        due = {i for header in seen.headers.values() for i in _batch(header)}
        seat = next((e["seat"] for e in attacker.member.event_log.events_of("joined")), None)
        both = seen.began.keys() & seen.ended.keys()
        growth = [seen.ended[name][0] - seen.began[name][0] for name in both]
        cpu = [seen.ended[name][1] - seen.began[name][1] for name in both]
        complaints = [_complaints(member, epoch) for member in honest]
        compared, equal = _compare_levels([*honest, *newcomers], epoch)
        rows.append(
            Row(
                attack=attacker.attack,
                epoch=epoch,
                actions=actions.get(attacker.attack, (0, 0))[0],
                began_at=actions.get(attacker.attack, (0, 0))[1],
                warmup_seconds=round(_warmup(honest, epoch), 2),
                median_seconds=round(median(took), 2),
                against_control=round(median(took) / usual, 2) if usual else 0.0,
                longest_seconds=round(max(took), 2),
                rounds_at_limit=sum(seconds >= AT_LIMIT * limit for seconds in took),
                due=len(due),
                trained=len(due & applied),
                rounds=sum(header.batch > 0 for header in seen.headers.values()),
                honest_applied=min(
                    len(member.event_log.events_of("applied", epoch=epoch)) for member in honest
                ),
                comparisons=compared,
                replicas_equal=equal,
                levels=seen.levels,
                levels_attested=seen.attested,
                attacker_dropped_at=seen.dropped.get(seat) if seat is not None else None,
                attacker_kept_out=any(_barred(events, attacker) for events in complaints),
                blamed_by=sum(_blames(events, attacker, seat) for events in complaints),
                honest=len(honest),
                honest_dropped=sum(other != seat for other in seen.dropped),
                honest_megabytes=round(max(growth, default=0.0), 1),
                honest_cpu_per_round=round(sum(cpu) / len(cpu) / len(took), 3) if cpu else 0.0,
                honest_lines=sum(map(len, complaints)),
            )
        )
    return rows


def _batch(header: Round) -> Iterable[int]:
    return (i for span in sequences(header, PositionInterval(0, header.batch)) for i in span)


def _seconds(honest: Sequence[ClusterMember], epoch: int) -> list[float]:
    """Return the lengths of an epoch's rounds in seconds, as seen by the member with most rounds.
    The last round ends with the epoch.
    """

    def of(member: ClusterMember) -> list[float]:
        begun = [e["t"] for e in member.event_log.events_of("round", epoch=epoch)]
        begun += [e["t"] for e in member.event_log.events_of("cooldown", epoch=epoch)][:1]
        return [later - now for now, later in pairwise(begun)]

    return max((of(member) for member in honest), key=len)


def _warmup(honest: Sequence[ClusterMember], epoch: int) -> float:
    """Return the longest time in seconds that an honest member was in the warm-up."""

    def of(member: ClusterMember) -> float:
        began = [
            e["t"]
            for e in member.event_log.events_of("state", epoch=epoch, state=RunState.WARMUP.name)
        ]
        ended = [e["t"] for e in member.event_log.events_of("round", epoch=epoch)]
        return ended[0] - began[-1] if began and ended else 0.0

    return max(map(of, honest))


def _complaints(member: ClusterMember, epoch: int) -> list[Event]:
    """Return a member's events about other members in an epoch, from its warm-up on."""
    complaints = []
    inside = False
    for event in member.event_log.events:
        if event["kind"] == "state":
            inside = event["epoch"] == epoch and event["state"] != RunState.WAITING_FOR_MEMBERS.name
        elif inside and event["kind"] in ("refused", "fetch_failed", "warning"):
            complaints.append(event)
    return complaints


def _blames(events: Iterable[Event], attacker: Attacker, seat: int | None) -> bool:
    """Return whether a member's events report this attacker's fault."""
    why = blamed_for(attacker.attack)
    about = (
        e
        for e in events
        if e.get("peer") == attacker.peer or (seat is not None and e.get("seat") == seat)
    )
    return bool(why) and any(why in e.get("why", "") for e in about)


def _barred(events: Iterable[Event], attacker: Attacker) -> bool:
    """Return whether a member closed the attacker's connection for breaking the protocol."""
    return any(f"peer {attacker.peer} broke the protocol" in e.get("message", "") for e in events)


def _compare_levels(honest: Sequence[ClusterMember], epoch: int) -> tuple[int, bool]:
    """Return the number of comparisons of a level between honest members in an epoch, and whether
    all were equal.
    """
    digests_by_state: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for member in honest:
        for event in member.event_log.events_of(
            "applied", epoch=epoch
        ) + member.event_log.events_of("cooldown", epoch=epoch):
            for level, digest in event["hashes"].items():
                digests_by_state[(*state_of(event), level)].append(digest)
    equal = bool(digests_by_state) and all(
        len(set(digests)) == 1 for digests in digests_by_state.values()
    )
    return sum(len(digests) - 1 for digests in digests_by_state.values()), equal


def figures(
    rows: Sequence[Row], rounds: int, limit: float, warmup_limit: float, known: Mapping[str, str]
) -> dict[str, Any]:
    """Return the table as JSON: each row with its missed limits and the known reason."""
    row_dicts = [
        {
            **asdict(row),
            "not_met": row.failed(),
            "slow": row.slow(warmup_limit),
            "known": known.get(row.attack),
        }
        for row in rows
    ]
    return {
        "round_limit": limit,
        "warmup_limit": warmup_limit,
        "rounds_per_epoch": rounds,
        "rows": row_dicts,
    }


def format_table(rows: Sequence[Row], warmup_limit: float) -> str:
    """Return the table as text for a terminal."""
    lines = [
        f"{'attack':38} {'actions':>6} {'median':>6} {'ratio':>5} {'most':>5} {'full':>4} {'due':>4} {'done':>4}  ends"
    ]
    for row in rows:
        end = (
            "stayed"
            if row.attacker_dropped_at is None
            else f"dropped in round {row.attacker_dropped_at}"
        )
        end += ", kept out" if row.attacker_kept_out else ""
        lines.append(
            f"{row.attack:38} {row.actions:6} {row.median_seconds:6.2f} {row.against_control:5.2f} "
            f"{row.longest_seconds:5.1f} {row.rounds_at_limit:4} {row.due:4} {row.trained:4}  {end}; "
            f"{row.honest_megabytes:+.0f} MB, {row.honest_cpu_per_round:.2f} s, {row.honest_lines} lines"
            + "".join(f"\n{'':8}NOT MET: {bar}" for bar in row.failed())
            + "".join(f"\n{'':8}slow: {bar}" for bar in row.slow(warmup_limit))
        )
    return "\n".join(lines)
