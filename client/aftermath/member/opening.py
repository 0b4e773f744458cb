"""When results are opened: this member, as a witness, says that it is closed, and tells its own keys once a quorum is.

Decided
- Who waits for others' results to announce them as its own finds them masked until then, and nobody takes its own
  afterwards. What each must do is in `rules.seal`, `member.closings` and `member.rounds.witness`.
- The key follows from the secret and the place. So this lives as long as the member and not as long as its epoch: one
  that restarts opens what it announced before, if it is asked in time.
- A member that does not see the run go on, since its chain is out of reach, opens its result when as many say that they
  are closed as a quorum is, and everybody else has announced: else it would lose what it had delivered.
- Of a round that is over nothing is told any more: what was not opened by then has not been delivered.
- A member that goes opens what everybody else has answered: who owes a result of that round and has announced one can
  take no other.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import NoReturn

from aftermath.base.wait import first_of
from aftermath.member.own_state import OwnState
from aftermath.member.plan import RoundPlan
from aftermath.member.ports import Ports, Role
from aftermath.member.results import Results
from aftermath.p2p.transport import TransportError
from aftermath.rules import bitmap
from aftermath.rules.commitment import encode_announcement
from aftermath.rules.run import STORED_ROUNDS, Run
from aftermath.rules.seal import Closed, Key, ResultPlace, key_of


class Opening:
    """Closes rounds and tells keys, for one member."""

    def __init__(self, ports: Ports, role: Role, results: Results, own: OwnState) -> None:
        self._ports, self._role, self._results, self._own = ports, role, results, own
        self._told: deque[ResultPlace] = deque(maxlen=STORED_ROUNDS)
        """The newest places whose key was told."""

    async def live(self) -> NoReturn:
        """Tell each key when its time has come, for ever."""
        feed = self._ports.feed
        while True:
            run = feed.run
            for height in sorted({run.config.judged(run.current.height), run.current.height}):
                place = self._place(run, height)
                if place is not None and place not in self._told and self._may_open(height):
                    await self._tell(place)
            await first_of(self._results.closings.changed.wait(), feed.after(run.seq))

    async def close_round(self, plan: RoundPlan, seat: int) -> None:
        """As a witness on that seat: say that no result of a round is attested that is not heard of by now."""
        self._results.close_round(plan.header.height)
        said = Closed(
            sender=self._ports.transport.node_id,
            signer=self._ports.coordinator.wallet,
            **plan.place(seat)._asdict(),
        )
        raw = encode_announcement(said, self._role.p2p_secret)
        await self._ports.transport.announce(raw)
        self._results.closings.hear(said, raw)

    async def leave(self) -> None:
        """Tell what nobody can take any more, before this member goes."""
        for place in self._results.unopened():
            if self._all_announced(place.height):
                with contextlib.suppress(TransportError):  # it goes because the endpoint is closed
                    await self._tell(place)

    def _may_open(self, height: int) -> bool:
        """Whether nobody can be credited any more with a copy of a result of a round."""
        closings = self._results.closings
        return closings.by_quorum(height) or (closings.by_number(height) and self._all_announced(height))

    def _all_announced(self, height: int) -> bool:
        """Whether everybody has announced a result of a round, so that another one is provably too many."""
        plan = self._results.plan(height)
        return plan is not None and plan.owing <= self._results.announced(height)

    def _place(self, run: Run, height: int) -> ResultPlace | None:
        """The place of this member in a round that is not over for those who judge it."""
        if not run.state.training:
            return None
        header = run.round(height)
        seat = self._ports.feed.members.find(self._ports.coordinator.wallet)
        if header is None or seat is None or not header.batch or not bitmap.contains(header.roster, seat):
            return None
        return ResultPlace(run.run_id, run.epoch, header.height, header.seed, seat)

    async def _tell(self, place: ResultPlace) -> None:
        self._told.append(place)
        said = Key(
            sender=self._ports.transport.node_id,
            signer=self._ports.coordinator.wallet,
            **place._asdict(),
            key=key_of(self._role.p2p_secret, place),
        )
        raw = encode_announcement(said, self._role.p2p_secret)
        self._results.hear_key(said, raw)
        await self._ports.transport.announce(raw)
        self._own.opened(place.epoch, place.height)
