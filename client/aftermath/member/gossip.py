"""Receive members' announcements, dispatch them, and control which peers may connect.

An invalid message is dropped or its sender banned. It never ends this member.
"""

from __future__ import annotations

import logging
from typing import NoReturn

import based58

from aftermath.base.errors import BadAnnouncement
from aftermath.events import event_types
from aftermath.member.announced_results import Results
from aftermath.member.ports import Ports, Role
from aftermath.member.readiness import Readiness
from aftermath.p2p.limits import LogLimits
from aftermath.p2p.transport import Announcement, TransportError, short
from aftermath.rules import bitmap
from aftermath.rules.announcements import Commitment, Ready, decode_announcement
from aftermath.rules.members import Members
from aftermath.rules.state import MemberState

_log = logging.getLogger(__name__)


class GossipListener:
    """Receives and dispatches the announcements of other members."""

    def __init__(self, ports: Ports, role: Role, readiness: Readiness, results: Results) -> None:
        self._ports = ports
        self._role = role
        self._readiness = readiness
        self._results = results
        self._log_limits = LogLimits(_log)
        self._members_seq = -1
        self._kicked: dict[bytes, bool] = {}

    async def follow_members(self) -> None:
        """Keep the transport's allow-list equal to the members on chain."""
        while True:
            run = self._ports.feed.run
            if run.members_seq != self._members_seq:
                members = self._ports.feed.members
                # Keep dropped members: one may hold the only copy of a level, and it still fetches
                # the epoch's last results.
                present = members.mask(MemberState.HEALTHY) | members.mask(MemberState.DROPPED)
                allowed = members.pending | present | run.finishers
                self._ports.transport.set_members(
                    members.seats[seat].p2p for seat in bitmap.seats(allowed)
                )
                self._report_kicks(members)
                self._members_seq = run.members_seq
            await self._ports.feed.after(run.seq)

    def _report_kicks(self, members: Members) -> None:
        """Report members that an authority has removed or banned since the last call."""
        kicked = {
            member.signer: member.barred
            for member in members.seats
            if member.removed or member.barred
        }
        for index, member in enumerate(members.seats):
            if (
                member.signer in kicked
                and self._kicked.get(member.signer) is not member.barred
                and member.used
            ):
                wallet = based58.b58encode(member.signer).decode()
                self._ports.events.emit(
                    event_types.Kicked(seat=index, wallet=wallet, barred=member.barred)
                )
        self._kicked = kicked

    async def listen(self) -> NoReturn:
        """Handle members' announcements until cancelled. Raises TransportError if the endpoint
        closes.
        """
        async for message in self._ports.transport.announcements():
            try:
                self._hear(message)
            except Exception as error:  # an invalid message must not end this member
                self._log_limits.failure("reading a message of", message.sender, error)
        raise TransportError(
            "the p2p endpoint has closed", "Restart the member; it rejoins by itself"
        )

    def _hear(self, message: Announcement) -> None:
        try:
            announcement = decode_announcement(message.data)
        except BadAnnouncement as error:
            self._bar(message.sender, str(error))
            return
        if announcement.sender != message.sender or announcement.run_id != self._role.run_id:
            self._bar(message.sender, "it sent an announcement of another member or run")
            return
        if not 0 <= announcement.epoch - self._ports.feed.run.epoch <= 1:
            return
        if isinstance(announcement, Ready):
            self._readiness.hear(announcement)
        elif isinstance(announcement, Commitment):
            self._results.hear(announcement, message.data)
        else:
            self._results.hear_reveal(announcement, message.data)

    def _bar(self, peer: bytes, why: str) -> None:
        """Ban a peer for a while. Report it once."""
        if self._log_limits.is_new("reading an announcement of", peer):
            self._ports.events.emit(event_types.PeerRefused(peer=short(peer), why=why))
        self._ports.transport.bar(peer, why)
