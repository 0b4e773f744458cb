"""The table of a run's members, as commands and screens show it."""

from __future__ import annotations

from solders.pubkey import Pubkey

from aftermath.events.status import MemberStatus

COLUMNS = ("seat", "wallet", "tier", "standing", "weight", "points", "last seen")


def row_of(member: MemberStatus) -> list[str]:
    """Return a member's cells."""
    status_of = f"{member.standing}, witness" if member.witness else member.standing
    points = f"{member.points:,}" + (f" (-{member.slashed:,})" if member.slashed else "")
    wallet = str(Pubkey.from_bytes(member.signer))
    return [
        str(member.seat),
        wallet,
        str(member.tier),
        status_of,
        f"{member.weight:,}",
        points,
        member.seen,
    ]
