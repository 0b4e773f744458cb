"""Audits of a scenario's results, and votes on cases about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aftermath.chain import views
from aftermath.rules import assignment, audits, bitmap, committee
from aftermath.rules.audits import Case
from aftermath.rules.run import Interval, RoundId
from programs.harness import Outcome, World
from programs.scenario import Scenario

EVERYONE = range(7)
RATES = (100, 9)
POINTS = 20


@dataclass(frozen=True)
class Audit:
    """A drawn result: its round, the member that delivered it, its auditor, and the jury."""

    at: RoundId
    target: int
    auditor: int
    jury: tuple[int, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """Return the jurors without the auditor."""
        return tuple(seat for seat in self.jury if seat != self.auditor)

    @property
    def decisive(self) -> int:
        """Return the number of equal votes that decide a case about the result."""
        return committee.quorum(len(self.jury))


def start_established(
    run: Scenario, tiers: Mapping[int, int], established: Iterable[int] | None = None
) -> Scenario:
    """Start round 0 with members of these tiers.

    Those in `established` (all if None) count as members that delivered in an earlier epoch, so
    only they witness, and the rounds are audited.
    """
    for index, tier in tiers.items():
        run.join(index, tier=tier).ok()
    run.world.advance(40)
    run.tick().ok()
    run.draw()
    indices = tiers if established is None else established
    seats = bitmap.to_bytes(bitmap.from_seats(run.seat_of(index) for index in indices))
    record = run.world.record("Members", run.run_id)
    record["established"][0] = seats
    record["judges"][0] = seats
    run.world.store("Members", run.run_id, record)
    run.world.advance(31)
    run.tick().ok()
    assert run.run.current.established
    return run


def audited(world: World, rounds: int = 2, **config: int) -> Scenario:
    """Return a run in round `rounds` of seven established members.

    Four results of each round are audited.
    """
    run = Scenario(world).start(
        **{"verification_percent": 100, "init_min_clients": 7, "rounds_per_epoch": 9} | config
    )
    run.owner("set_future_epoch_rates", *RATES).ok()
    start_established(run, dict.fromkeys(EVERYONE, 0))
    record = world.record("Members", "test")
    record["seats"][0]["points"][:7] = POINTS
    world.store("Members", "test", record)
    for _ in range(rounds):
        run.witness_round()
    return run.draw()


def audit_of(run: Scenario, height: int, target: int | None = None) -> Audit:
    """Return the audit of a target's result of a round, or of the first drawn one."""
    state = run.run
    drawn = audits.drawn_results(state, run.members, height)
    target = min(drawn) if target is None else target
    header = state.round(height)
    assert header is not None
    jury = tuple(bitmap.seats(audits.jury(run.members, target)))
    return Audit(RoundId(state.epoch, height, header.seed), target, drawn[target], jury)


def vote(run: Scenario, seat: int, audit: Audit, mismatch: bool = True) -> Outcome:
    return run.by(
        run.index_of(run.members.seats[seat].signer),
        "verify",
        seat,
        audit.at,
        audit.target,
        mismatch,
    )


def convict(run: Scenario, audit: Audit) -> None:
    """Let the auditor open a case, and jurors vote until they have convicted the target."""
    for seat in (audit.auditor, *audit.others)[: audit.decisive]:
        vote(run, seat, audit).ok()


def cases(run: Scenario) -> tuple[Case, ...]:
    """Return the undecided cases. Some may have expired."""
    offset, length = views.witnesses_cases_range()
    data = run.world.data(run.accounts["witnesses"])
    found = views.parse_cases(data[offset : offset + length])
    return tuple(one for one in found if one.jury)


def end_epoch(run: Scenario) -> None:
    """Let the healthy members play the remaining rounds and the cooldown."""
    while run.run.state.training:
        run.witness_round()
    run.world.advance(31)
    run.tick().ok()


def share_of(run: Scenario, audit: Audit) -> list[Interval]:
    """Return the sequences of an audited result."""
    header = run.run.round(audit.at.height)
    assert header is not None
    share = assignment.assign(header, run.members)[audit.target]
    return [Interval(one.start, len(one)) for one in assignment.sequences(header, share)]
