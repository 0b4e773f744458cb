"""The result of a judged round: which results count, on which levels, all fetched.

It gives up the epoch rather than apply less than everybody does.
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
    """What everybody applies of one round."""

    accepted: Mapping[int, Fingerprint]
    """Fingerprints, by seat, that a quorum recorded. If empty, the round is not a step."""
    results: Sequence[Candidate]
    votes: Mapping[int, list[Votes]]
    """Votes by held level, in seat order."""


class RoundResolver:
    """Settles the rounds of one epoch for one member."""

    def __init__(
        self, ports: Ports, levels: range, results: Results, epoch: Epoch, duties: BackgroundTasks
    ) -> None:
        self._ports = ports
        self._levels = levels
        self._results = results
        self._epoch = epoch
        self._duties = duties
        self.collector = Collector(ports, levels, results, epoch.number)

    async def settle(self, run: Run, done: Round, attesting: Round) -> Settled:
        """Return what to apply of round `done`, by the attestations in round `attesting`. Raises
        Desync.

        `run` may be of any moment from the first round of the epoch on, while its rounds are
        stored. Levels that all witnesses have come from any attester: a member that missed their
        round knows of them only from the chain.
        """
        run = replace(run, config=self._epoch.rules)  # the run may have other rules since
        members = self._epoch.members
        try:
            attestations = await self._ports.coordinator.attestations(attesting)
        except Refused as error:
            raise Desync(str(error)) from error
        accepted = consensus(attesting, attestations, done.roster)
        if others := disputed(attestations, done.roster) & self._results.announced(done.height):
            self._duties.start(self.collector.ask(done.height, others, lambda _: False))
        witnesses = {members.seats[one.seat].p2p for one in attestations}
        judged = judged_by(attesting, run, members)
        self._results.payloads.will_be_had(
            done.height, had_by_all(judged, attesting, run, members), witnesses
        )
        levels = vouched(accepted, attestations, done.roster, run, members, self._levels, judged)
        results = await self._collect(done.height, attesting.salt, accepted, levels)
        self._tell_what_is_left_out(done.height, results, levels)
        return Settled(accepted, results, self.collector.by_level(results, levels))

    async def _collect(
        self,
        height: int,
        salt: int,
        accepted: Mapping[int, Fingerprint],
        vouched: Mapping[int, frozenset[int]],
    ) -> list[Candidate]:
        """Return the accepted results of a round.

        Raises Desync if they are missing a round's time after the epoch has ended: the next epoch
        may wait for this member, and then the chain never says that it is too late.
        """

        async def give_up() -> NoReturn:
            await self._ports.feed.until(lambda now: now.epoch != self._epoch.number)
            await self._ports.clock.sleep(self._epoch.rules.max_round_train_time)
            raise Desync(
                f"the epoch is over and results of round {height} could not be had from any peer"
            )

        return await first_of(self.collector.collect(height, salt, accepted, vouched), give_up())

    def _tell_what_is_left_out(
        self, height: int, results: Sequence[Candidate], vouched: Mapping[int, frozenset[int]]
    ) -> None:
        for result in results:
            seat = result.said.seat
            if out := [
                level
                for level in vouched
                if level >= result.said.tier and seat not in vouched[level]
            ]:
                what = f"level{'s' * (len(out) > 1)} {', '.join(map(str, out))}"
                why = f"{what} left out: too few of the witnesses that judge it have it"
                self._ports.events.emit(event_types.PeerRefused(height=height, seat=seat, why=why))
