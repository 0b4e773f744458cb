"""Reveal this member's keys once a quorum of witnesses has closed the round.

Payloads stay masked until then, so nobody can announce a copy as its own (`rules.seal`,
`member.closed_rounds`, `member.rounds.witness`).
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import NoReturn

from aftermath.base.concurrency import first_of
from aftermath.member.announced_results import Results
from aftermath.member.ports import Ports, Role
from aftermath.member.round_plan import RoundPlan
from aftermath.member.state_roots import OwnState
from aftermath.p2p.transport import TransportError
from aftermath.rules import bitmap
from aftermath.rules.announcements import encode_announcement
from aftermath.rules.run import STORED_ROUNDS, Run
from aftermath.rules.seal import ResultPlace, Reveal, RoundClosed, key_of


class Reveals:
    """Closes rounds and reveals keys, for one member."""

    # The key follows from the secret and the place. So this object outlives epochs, and a restarted
    # member reveals what it announced before.
    def __init__(self, ports: Ports, role: Role, results: Results, own_state: OwnState) -> None:
        self._ports = ports
        self._role = role
        self._results = results
        self._own_state = own_state
        self._revealed: deque[ResultPlace] = deque(maxlen=STORED_ROUNDS)
        """The newest places whose key was revealed."""

    async def live(self) -> NoReturn:
        """Reveal each key as soon as that is safe, until cancelled."""
        feed = self._ports.feed
        while True:
            run = feed.run
            for height in sorted({run.config.judged(run.current.height), run.current.height}):
                place = self._own_place(run, height)
                if place is not None and place not in self._revealed and self._may_reveal(height):
                    await self._reveal(place)
            await first_of(self._results.closed_rounds.changed.wait(), feed.after(run.seq))

    async def close_round(self, plan: RoundPlan, seat: int) -> None:
        """Announce, as a witness, that it will attest no result announced from now on."""
        self._results.close_round(plan.header.height)
        closing = RoundClosed(
            sender=self._ports.transport.node_id,
            signer=self._ports.coordinator.wallet,
            **plan.place(seat)._asdict(),
        )
        raw = encode_announcement(closing, self._role.p2p_secret)
        await self._ports.transport.announce(raw)
        self._results.closed_rounds.hear(closing, raw)

    async def leave(self) -> None:
        """Reveal, before leaving, the keys of results that nobody can copy any more."""
        # A member that has already announced its result of the round cannot announce a copy of
        # ours.
        for place in self._results.unrevealed():
            if self._all_announced(place.height):
                with contextlib.suppress(TransportError):  # the endpoint may be closed already
                    await self._reveal(place)

    def _may_reveal(self, height: int) -> bool:
        """Return whether a copy of a result of a round can no longer be credited."""
        # If the chain is unreachable, the witnesses are unknown. Then it is enough that as many
        # members as a quorum closed the round and that all members announced their results.
        # Otherwise this member would lose what it delivered.
        closed_rounds = self._results.closed_rounds
        return closed_rounds.by_quorum(height) or (
            closed_rounds.by_number(height) and self._all_announced(height)
        )

    def _all_announced(self, height: int) -> bool:
        """Return whether every member has announced a result, so that a second one is provable."""
        plan = self._results.plan(height)
        return plan is not None and plan.owing <= self._results.announced(height)

    def _own_place(self, run: Run, height: int) -> ResultPlace | None:
        """Return this member's place in a round whose reveals still count, or None."""
        if not run.state.training:
            return None
        header = run.round(height)
        seat = self._ports.feed.members.find(self._ports.coordinator.wallet)
        if (
            header is None
            or seat is None
            or not header.batch
            or not bitmap.contains(header.roster, seat)
        ):
            return None
        return ResultPlace(run.run_id, run.epoch, header.height, header.seed, seat)

    async def _reveal(self, place: ResultPlace) -> None:
        self._revealed.append(place)
        announcement = Reveal(
            sender=self._ports.transport.node_id,
            signer=self._ports.coordinator.wallet,
            **place._asdict(),
            key=key_of(self._role.p2p_secret, place),
        )
        raw = encode_announcement(announcement, self._role.p2p_secret)
        self._results.hear_key(announcement, raw)
        await self._ports.transport.announce(raw)
        self._own_state.reveal(place.epoch, place.height)
