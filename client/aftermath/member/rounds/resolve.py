"""Decide which results of a judged round are applied, at which levels, and fetch them.

A member abandons the epoch rather than apply fewer results than the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from aftermath.base.concurrency import first_of
from aftermath.coordinator.errors import Refused
from aftermath.events import event_types
from aftermath.member.evidence import disputed
from aftermath.member.payloads import Candidate
from aftermath.member.ports import Desync, Ports
from aftermath.member.results import Results
from aftermath.member.rounds.background import BackgroundTasks
from aftermath.member.rounds.collect import Collector
from aftermath.member.rounds.epoch import Epoch
from aftermath.optim.level_votes import Votes
from aftermath.rules.availability import had_by_all, judged_by
from aftermath.rules.consensus import Fingerprint, consensus, vouched
from aftermath.rules.run import Round, Run


@dataclass(frozen=True)
class Settled:
    """The results of one round that all members apply."""

    accepted: Mapping[int, Fingerprint]
    """Fingerprints, by seat, that a quorum recorded. If empty, the round is not a step."""
    results: Sequence[Candidate]
    votes: Mapping[int, list[Votes]]
    """Votes by held level, in seat order."""


class RoundResolver:
    """Settles the rounds of one epoch for one member."""

    def __init__(
        self, ports: Ports, levels: range, results: Results, epoch: Epoch, tasks: BackgroundTasks
    ) -> None:
        self._ports = ports
        self._levels = levels
        self._results = results
        self._epoch = epoch
        self._tasks = tasks
        self.collector = Collector(ports, levels, results, epoch.number)

    async def settle(self, run: Run, done: Round, attesting: Round) -> Settled:
        """Return what to apply of round `done`, by the attestations in round `attesting`. Raises
        Desync.

        `run` may be any view of the epoch that still stores both rounds. Any attester can serve
        the levels that all witnesses fetch; a member that missed the round learns of them from the
        chain.
        """
        run = replace(run, config=self._epoch.rules)  # the run's rules may have changed since
        members = self._epoch.members
        try:
            attestations = await self._ports.coordinator.attestations(attesting)
        except Refused as error:
            raise Desync(str(error)) from error
        accepted = consensus(attesting, attestations, done.roster)
        if disputed_seats := disputed(attestations, done.roster) & self._results.announced(
            done.height
        ):
            self._tasks.start(self.collector.ask(done.height, disputed_seats, lambda _: False))
        witnesses = {members.seats[one.seat].p2p for one in attestations}
        judged = judged_by(attesting, run, members)
        self._results.payloads.note_fetched_by_all(
            done.height, had_by_all(judged, attesting, run, members), witnesses
        )
        levels = vouched(accepted, attestations, done.roster, run, members, self._levels, judged)
        results = await self._collect(done.height, attesting.salt, accepted, levels)
        self._report_left_out(done.height, results, levels)
        return Settled(accepted, results, self.collector.by_level(results, levels))

    async def _collect(
        self,
        height: int,
        salt: int,
        accepted: Mapping[int, Fingerprint],
        vouched: Mapping[int, frozenset[int]],
    ) -> list[Candidate]:
        """Return the accepted results of a round.

        Raises Desync if they are still missing one round's time after the epoch ended. The next
        epoch may wait for this member, and then the chain never reports that it is too late.
        """

        async def give_up() -> NoReturn:
            await self._ports.feed.until(lambda now: now.epoch != self._epoch.number)
            await self._ports.clock.sleep(self._epoch.rules.max_round_train_time)
            raise Desync(f"the epoch is over and no peer has all results of round {height}")

        return await first_of(self.collector.collect(height, salt, accepted, vouched), give_up())

    def _report_left_out(
        self, height: int, results: Sequence[Candidate], vouched: Mapping[int, frozenset[int]]
    ) -> None:
        for result in results:
            seat = result.commitment.seat
            if levels := [
                level
                for level in vouched
                if level >= result.commitment.tier and seat not in vouched[level]
            ]:
                names = f"level{'s' * (len(levels) > 1)} {', '.join(map(str, levels))}"
                why = f"{names} left out: too few of its judging witnesses hold it"
                self._ports.events.emit(event_types.PeerRefused(height=height, seat=seat, why=why))
