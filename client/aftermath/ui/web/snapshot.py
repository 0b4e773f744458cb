"""A run at one moment as the page receives it, read from the chain or rebuilt from events.

Unknown values are absent: events do not contain what a run waits for, and the chain does not
contain a member's traffic. `events` makes the texts, as everywhere. The page only counts seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from solders.pubkey import Pubkey

from aftermath.events.progress import state_text
from aftermath.events.status import MemberStatus, RunStatus
from aftermath.rules.state import RunState

STATES = {state.name.lower(): state_text(state.name) for state in RunState}
"""The states of a run, and their names for people."""


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member's newest share, and its bytes to and from peers."""

    step: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    sent: int | None = None
    received: int | None = None
    bytes_per_second: int | None = None
    """Bytes sent to peers per second, as attested on chain. Only for members without events."""


class MemberSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member, as `MemberStatus`."""

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


class LevelSnapshot(msgspec.Struct, frozen=True):
    """One level of the model, as `LevelStatus`."""

    level: int
    holders: tuple[int, ...]
    attested: bool
    lost: bool


class RunSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run at one moment. `at` is unix time in milliseconds; all else is as in `RunStatus`."""

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
    members: tuple[MemberSnapshot, ...] = ()
    levels: tuple[LevelSnapshot, ...] = ()


def snapshot_of(status: RunStatus, at: int, figures: Mapping[str, Figures]) -> RunSnapshot:
    """Return the snapshot of a status, with the members' figures by wallet."""
    return RunSnapshot(
        at=at,
        source="chain",
        run_id=status.run_id,
        name=status.name,
        description=status.description,
        state=status.state.name.lower(),
        since=status.since,
        epoch=status.epoch,
        round=status.round,
        step=status.step,
        total_steps=status.total_steps,
        left=status.left,
        deadline=status.deadline,
        waits=status.waits,
        tokens_per_second=status.tokens_per_second,
        members=tuple(_member(member, figures) for member in status.members),
        levels=tuple(
            LevelSnapshot(one.level, one.holders, one.attested, one.lost) for one in status.levels
        ),
    )


def _member(member: MemberStatus, figures: Mapping[str, Figures]) -> MemberSnapshot:
    wallet = str(Pubkey.from_bytes(member.signer))
    return MemberSnapshot(
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
