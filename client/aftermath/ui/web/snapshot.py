"""What the page is sent of one moment of a run: one form, whether it was read from the chain or retold from events.

Decided
- What is not known is absent: events do not say what a run waits for, and the chain not what a member sent to peers.
- Sentences and the names of states come from `watch`, as everywhere; the page only counts the seconds that pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from solders.pubkey import Pubkey

from aftermath.events.progress import state_words
from aftermath.events.status import MemberStanding, Standing
from aftermath.rules.state import RunState

STATES = {state.name.lower(): state_words(state.name) for state in RunState}
"""The states of a run, and what people call them."""


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of how a member trains: its newest share, and bytes to and from peers."""

    step: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    sent: int | None = None
    received: int | None = None
    bytes_per_second: int | None = None
    """Sent to peers, as it states on chain; of members without events."""


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member; as `MemberStanding`."""

    wallet: str
    tier: int
    standing: str
    takes_part: bool = False
    seat: int | None = None
    weight: int | None = None
    points: int | None = None
    slashed: int = 0
    seen: str = ""
    witness: bool = False
    figures: Figures = Figures()


class Level(msgspec.Struct, frozen=True):
    """One level of the model; as `LevelStanding`."""

    level: int
    holders: tuple[int, ...]
    attested: bool
    lost: bool


class Moment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run at a moment: `at` in milliseconds of unix time, everything else as in `Standing`."""

    at: int
    source: str
    """`chain` or `events`."""
    run_id: str
    state: str
    epoch: int
    step: int
    total_steps: int
    name: str = ""
    description: str = ""
    since: int | None = None
    round: int | None = None
    left: int | None = None
    deadline: int | None = None
    waits: tuple[str, ...] = ()
    tokens_per_second: int | None = None
    members: tuple[Member, ...] = ()
    levels: tuple[Level, ...] = ()


def moment_of(found: Standing, at: int, figures: Mapping[str, Figures]) -> Moment:
    """The moment that a standing describes, with what is known of its members by wallet."""
    return Moment(
        at=at,
        source="chain",
        run_id=found.run_id,
        name=found.name,
        description=found.description,
        state=found.state.name.lower(),
        since=found.since,
        epoch=found.epoch,
        round=found.round,
        step=found.step,
        total_steps=found.total_steps,
        left=found.left,
        deadline=found.deadline,
        waits=found.waits,
        tokens_per_second=found.tokens_per_second,
        members=tuple(_member(member, figures) for member in found.members),
        levels=tuple(Level(one.level, one.holders, one.attested, one.lost) for one in found.levels),
    )


def _member(member: MemberStanding, figures: Mapping[str, Figures]) -> Member:
    wallet = str(Pubkey.from_bytes(member.signer))
    return Member(
        wallet=wallet,
        tier=member.tier,
        standing=member.standing,
        takes_part=member.takes_part,
        seat=member.seat,
        weight=member.weight,
        points=member.points,
        slashed=member.slashed,
        seen=member.seen,
        witness=member.witness,
        figures=figures.get(wallet, Figures()),
    )
