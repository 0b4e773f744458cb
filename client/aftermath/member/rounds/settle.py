"""What a round comes to once it is judged: whose results count, in which levels, and all of them here.

Decided: it gives the epoch up rather than apply less than everybody does; whose results count without some of their
levels is said. Levels that all witnesses have are had from whoever attested: a member that missed their round, or saw
others drawn, knows of them only from the chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from aftermath.base.wait import first_of
from aftermath.coordinator.errors import Refused
from aftermath.member.evidence import disputed
from aftermath.member.payloads import Candidate
from aftermath.member.ports import Desync, Ports
from aftermath.member.results import Results
from aftermath.member.rounds.collect import Collector
from aftermath.member.rounds.duties import Duties
from aftermath.member.rounds.epoch import Epoch
from aftermath.optim.votes import Votes
from aftermath.rules.availability import had_by_all, judged_by
from aftermath.rules.consensus import Fingerprint, consensus, vouched
from aftermath.rules.run import Round, Run
from aftermath.watch import kinds


@dataclass(frozen=True)
class Settled:
    """What everybody applies of one round."""

    accepted: Mapping[int, Fingerprint]
    """By seat: what a quorum recorded. Without any the round is no step."""
    results: Sequence[Candidate]
    votes: Mapping[int, list[Votes]]
    """By level held, in seat order."""


class Settling:
    """Settles the rounds of one epoch for one member."""

    def __init__(self, ports: Ports, levels: range, results: Results, epoch: Epoch, duties: Duties) -> None:
        self._ports, self._levels, self._results, self._epoch, self._duties = ports, levels, results, epoch, duties
        self.collector = Collector(ports, levels, results, epoch.number)

    async def settle(self, run: Run, done: Round, attesting: Round) -> Settled:
        """What is applied of the round `done`, by the attestations given in `attesting`. Raises Desync.

        `run` is of any moment from the first round of the epoch on, while its rounds are stored.
        """
        run, members = replace(run, config=self._epoch.rules), self._epoch.members  # it may have other rules since
        try:
            attestations = await self._ports.coordinator.attestations(attesting)
        except Refused as error:
            raise Desync(str(error)) from error
        accepted = consensus(attesting, attestations, done.roster)
        if others := disputed(attestations, done.roster) & self._results.announced(done.height):
            self._duties.start(self.collector.ask(done.height, others, lambda _: False))
        witnesses = {members.seats[one.seat].p2p for one in attestations}
        judged = judged_by(attesting, run, members)
        self._results.payloads.will_be_had(done.height, had_by_all(judged, attesting, run, members), witnesses)
        levels = vouched(accepted, attestations, done.roster, run, members, self._levels, judged)
        results = await self._collect(done.height, attesting.salt, accepted, levels)
        self._tell_what_is_left_out(done.height, results, levels)
        return Settled(accepted, results, self.collector.by_level(results, levels))

    async def _collect(
        self, height: int, salt: int, accepted: Mapping[int, Fingerprint], vouched: Mapping[int, frozenset[int]]
    ) -> list[Candidate]:
        """The accepted results of a round. Desync if they are not here a round's time after the epoch has ended.

        The next epoch may wait for this member, and then the chain never says that it is too late.
        """

        async def give_up() -> NoReturn:
            await self._ports.feed.until(lambda now: now.epoch != self._epoch.number)
            await self._ports.clock.sleep(self._epoch.rules.max_round_train_time)
            raise Desync(f"the epoch is over and results of round {height} could not be had from any peer")

        return await first_of(self.collector.collect(height, salt, accepted, vouched), give_up())

    def _tell_what_is_left_out(
        self, height: int, results: Sequence[Candidate], vouched: Mapping[int, frozenset[int]]
    ) -> None:
        for result in results:
            seat = result.said.seat
            if out := [level for level in vouched if level >= result.said.tier and seat not in vouched[level]]:
                what = f"level{'s' * (len(out) > 1)} {', '.join(map(str, out))}"
                why = f"{what} left out: too few of the witnesses that judge it have it"
                self._ports.events.emit(kinds.Refused(height=height, seat=seat, why=why))
