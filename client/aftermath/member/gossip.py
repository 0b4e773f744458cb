"""Receive members' announcements: which peers may connect, and which part handles a message.

An invalid message costs that message or that peer, never this member.
"""

from __future__ import annotations

import logging
from typing import NoReturn

import based58

from aftermath.base.errors import BadAnnouncement
from aftermath.events import event_types
from aftermath.member.ports import Ports, Role
from aftermath.member.readiness import Readiness
from aftermath.member.results import Results
from aftermath.p2p.log_limits import LogLimits
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
        self._complaints = LogLimits(_log)
        self._members_seq = -1
        self._unwanted: dict[bytes, bool] = {}

    async def follow_members(self) -> None:
        """Keep the transport's allow-list equal to the members on chain."""
        while True:
            run = self._ports.feed.run
            if run.members_seq != self._members_seq:
                members = self._ports.feed.members
                # A dropped member may hold the only copy of a level. It still fetches the last
                # results of the epoch.
                here = members.mask(MemberState.HEALTHY) | members.mask(MemberState.DROPPED)
                wanted = members.pending | here | run.finishers
                self._ports.transport.set_members(
                    members.seats[seat].p2p for seat in bitmap.seats(wanted)
                )
                self._tell_of_kicks(members)
                self._members_seq = run.members_seq
            await self._ports.feed.after(run.seq)

    def _tell_of_kicks(self, members: Members) -> None:
        """Report members that an authority has removed or barred since the last call."""
        unwanted = {one.signer: one.barred for one in members.seats if one.removed or one.barred}
        for index, one in enumerate(members.seats):
            if (
                one.signer in unwanted
                and self._unwanted.get(one.signer) is not one.barred
                and one.used
            ):
                wallet = based58.b58encode(one.signer).decode()
                self._ports.events.emit(
                    event_types.Kicked(seat=index, wallet=wallet, barred=one.barred)
                )
        self._unwanted = unwanted

    async def listen(self) -> NoReturn:
        """Handle members' announcements until cancelled. Raises TransportError if the endpoint
        closes.
        """
        async for heard in self._ports.transport.announcements():
            try:
                self._hear(heard)
            except Exception as error:  # an invalid message must not end this member
                self._complaints.about("hearing", heard.sender, error)
        raise TransportError(
            "the endpoint for peers has closed", "Start the member again; it rejoins by itself"
        )

    def _hear(self, heard: Announcement) -> None:
        try:
            said = decode_announcement(heard.data)
        except BadAnnouncement as error:
            self._bar(heard.sender, str(error))
            return
        if said.sender != heard.sender or said.run_id != self._role.run_id:
            self._bar(heard.sender, "an announcement of another member or another run")
            return
        if not 0 <= said.epoch - self._ports.feed.run.epoch <= 1:
            return
        if isinstance(said, Ready):
            self._readiness.hear(said)
        elif isinstance(said, Commitment):
            self._results.hear(said, heard.data)
        else:
            self._results.hear_of_opening(said, heard.data)

    def _bar(self, peer: bytes, why: str) -> None:
        """Ban a peer for a while. Report it once."""
        if self._complaints.new("reading an announcement of", peer):
            self._ports.events.emit(event_types.PeerRefused(peer=short(peer), why=why))
        self._ports.transport.bar(peer, why)
