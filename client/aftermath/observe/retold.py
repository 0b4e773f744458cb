"""A run as its members' events tell it: moments, curves, marks, and what is known of each member.

Decided: a moment begins with every state and round, when the first member tells of it; members are known by what they
last told. Files come from strangers: members, epochs and marks are counted, and texts cut.
"""

from __future__ import annotations

from collections import deque

import msgspec

from aftermath.observe.curves import Losses, Sent
from aftermath.observe.moment import Figures, Member, Moment
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.state import RunState
from aftermath.watch import kinds
from aftermath.watch.comings import Comings
from aftermath.watch.reader import EventRecord

MOST_EPOCHS = 400
MOST_MARKS = 200
_MOST_MEMBERS = 4 * MAX_MEMBERS  # of all times; a run has fewer at once
_MOST_TEXT = 64
_TAKES_PART = (kinds.Round, kinds.Trained, kinds.Applied, kinds.Model)
_STANDINGS: dict[type[kinds.Event], str] = {
    kinds.Started: "starting",
    kinds.Joined: "joins the next epoch",
    kinds.Waiting: "waiting for the next epoch",
    kinds.Leaving: "leaving",
    kinds.Left: "left",
    kinds.Finished: "finished",
    kinds.Error: "failed",
}


class Retold:
    """Takes the events of one run in the order in which they are read."""

    def __init__(self, run_id: str, losses: Losses) -> None:
        self._run_id, self._losses = run_id, losses
        self.sent = Sent()
        self.epochs: dict[int, int] = {}
        """The first step of each epoch that was told of, of the newest MOST_EPOCHS."""
        self.members: dict[str, Member] = {}
        """By wallet, as each last told of itself."""
        self.told = 0
        """How many events."""
        self._comings = Comings()
        self._total_steps = 0
        self._since = 0
        self._of_that_second: set[tuple[int, str]] = set()

    @property
    def marks(self) -> list[tuple[int, str]]:
        """The newest of what happened to members, each at its step."""
        return list(deque(self._comings.marks, MOST_MARKS))

    def take(self, told: EventRecord) -> Moment | None:
        """Learn from an event; the moment that begins with it, if one does."""
        wallet = told.about.wallet[:_MOST_TEXT]
        if wallet not in self.members and len(self.members) >= _MOST_MEMBERS:
            return None
        if wallet != told.about.wallet:
            told = msgspec.structs.replace(told, about=msgspec.structs.replace(told.about, wallet=wallet))
        self.told += 1
        self._comings.take(told)
        self._know(wallet, told)
        match told.event:
            case kinds.State() as state if self._is_new(state.since, state.epoch, state.state):
                self._total_steps = state.total_steps
                return self._moment(told, state.state, state.epoch, None, state.step)
            case kinds.Round() as begun if self._is_new(begun.since, begun.epoch, str(begun.height)):
                self._epoch(begun)
                return self._moment(told, RunState.ROUND_TRAIN.name, begun.epoch, begun.height, max(0, begun.step - 1))
        return None

    def _is_new(self, since: int, epoch: int, what: str) -> bool:
        """Whether no other member has told of it, or of what came after, in the chain's time."""
        if since < self._since or ((epoch, what) in self._of_that_second and since == self._since):
            return False
        if since > self._since:
            self._since = since
            self._of_that_second.clear()
        self._of_that_second.add((epoch, what))
        return True

    def _epoch(self, begun: kinds.Round) -> None:
        if begun.epoch not in self.epochs:
            self.epochs[begun.epoch] = begun.step
            if len(self.epochs) > MOST_EPOCHS:
                del self.epochs[min(self.epochs)]

    def _know(self, wallet: str, told: EventRecord) -> None:
        event, before = told.event, self.members.get(wallet)
        member = before or Member(wallet, told.about.tier, "")
        if isinstance(event, _TAKES_PART):
            member = msgspec.structs.replace(member, standing="takes part", takes_part=True)
        elif (words := _STANDINGS.get(type(event))) is not None:
            member = msgspec.structs.replace(member, standing=words, takes_part=False)
        figures = member.figures
        match event:
            case kinds.Started():
                figures = Figures()
                member = msgspec.structs.replace(member, tier=told.about.tier, seat=None)
            case kinds.Joined():
                member = msgspec.structs.replace(member, seat=event.seat, weight=event.weight)
            case kinds.Trained():
                member = msgspec.structs.replace(member, seen=f"epoch {event.epoch}, round {event.height}")
                figures = msgspec.structs.replace(
                    figures, step=event.step, loss=event.loss, tokens_per_second=event.tokens_per_sec
                )
                if event.loss is not None:
                    self._losses.told(told.about.tier, event.step, event.loss, event.tokens)
            case kinds.Traffic():
                self.sent.add(told.about.tier, self._comings.step_of(wallet), event.sent - (figures.sent or 0))
                figures = msgspec.structs.replace(figures, sent=event.sent, received=event.received)
            case kinds.Dropped():
                self._lost(event.seats, "dropped")
            case kinds.Ejected():
                self._lost([event.seat], "ejected")
        self.members[wallet] = msgspec.structs.replace(member, figures=figures)

    def _lost(self, seats: list[int], how: str) -> None:
        for wallet, member in self.members.items():
            if member.seat in seats:
                self.members[wallet] = msgspec.structs.replace(member, standing=how, takes_part=False)

    def _moment(self, told: EventRecord, state: str, epoch: int, height: int | None, step: int) -> Moment:
        return Moment(
            at=round(told.at.timestamp() * 1000),
            source="events",
            run_id=self._run_id,
            state=state.lower()[:_MOST_TEXT],
            epoch=epoch,
            round=height,
            step=step,
            total_steps=self._total_steps,
            members=tuple(list(self.members.values())[:MAX_MEMBERS]),
        )
