"""Play runs of established members in the real program until audits eject a hostile one.

The program draws the audits, opens the cases and counts the votes, in LiteSVM. The caller says what
members find. `benchmarks/hostile_audits.py` counts the rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from aftermath.rules import audits, bitmap
from aftermath.rules.audits import OPENING_ROUNDS
from aftermath.rules.state import MemberState
from programs.audit_cases import Audit, audit_of, cases, start_established, vote
from programs.harness import World
from programs.scenario import Scenario

MEMBERS = 8
BOND = 1_000_000
MOST_ROUNDS = 400
_SLOTS = 1000  # between the beginnings of two trials, so that their seeds differ

Finds = Callable[[int, int], bool | None]
"""Returns whether the member in the first seat calls the result of the second one false.

None: it says nothing.
"""


class Trial(NamedTuple):
    """The outcome of a trial."""

    rounds: int | None
    """Rounds from the first one to the ejection. None if nobody was ejected."""
    audits: int
    """Audits of the watched member until the first case about it."""
    ejected: frozenset[int]


def play(
    seed: int, percent: int, watched: int, finds: Finds, *, rounds: int = MOST_ROUNDS
) -> Trial:
    """Play rounds until a member is ejected. All members deliver in all rounds.

    Members take one round for each judgement: an auditor opens a case in the round after the draw,
    and jurors vote in the round after that. `watched` is the member whose audits are counted.
    """
    world = World()
    world.advance(0, slots=_SLOTS * (seed + 1))
    run = Scenario(world).start(
        verification_percent=percent,
        init_min_clients=MEMBERS,
        rounds_per_epoch=rounds + audits.VOTING_ROUNDS,
        join_bond=BOND,
        global_batch_size_start=2 * MEMBERS,
        global_batch_size_end=2 * MEMBERS,
    )
    start_established(run, dict.fromkeys(range(MEMBERS), 0))
    counted = 0
    is_accused = False
    for height in range(1, rounds + 1):
        run.witness_round()
        run.draw()
        _vote_on_open_cases(run, finds)
        drawn = _drawn_last_round(run)
        counted += watched in drawn and not is_accused
        for audit in drawn.values():
            if finds(audit.auditor, audit.target):
                vote(run, audit.auditor, audit)  # refused if this auditor has an open case
        is_accused = is_accused or any(case.target == watched for case in cases(run))
        ejected = run.members.mask(MemberState.EJECTED)
        if ejected:
            return Trial(height, counted, frozenset(bitmap.seats(ejected)))
    return Trial(None, counted, frozenset())


def _drawn_last_round(run: Scenario) -> Mapping[int, Audit]:
    """Return the audits that were drawn in the round before, by target."""
    now = run.run
    height = now.current.height - now.config.overlap - OPENING_ROUNDS
    if height not in audits.auditable_heights(now):
        return {}
    return {
        target: audit_of(run, height, target)
        for target in audits.drawn_results(now, run.members, height)
    }


def _vote_on_open_cases(run: Scenario, finds: Finds) -> None:
    for opened in cases(run):
        at = opened.round_id(run.run.epoch)
        audit = Audit(at, opened.target, opened.auditor, tuple(bitmap.seats(opened.jury)))
        for juror in audit.jury:
            mismatch = finds(juror, opened.target)
            if mismatch is not None and _may_vote(run, audit, juror):
                vote(run, juror, audit, mismatch).ok()


def _may_vote(run: Scenario, audit: Audit, juror: int) -> bool:
    now = run.run
    return bitmap.contains(run.members.healthy, juror) and any(
        case.may_vote(now, juror)
        for case in cases(run)
        if (case.height, case.target) == (audit.at.height, audit.target)
    )
