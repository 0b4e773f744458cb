"""Looking after all links at a steady rate: who is silent is gone, who pours in what nobody asked for is closed.

Decided: whatever one link's counters do, the others stay watched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from aftermath.p2p.contact import Contact
from aftermath.p2p.link import MOST_UNREAD, MOST_UNREAD_OF_ALL, Link
from aftermath.p2p.pace import Pace
from aftermath.p2p.transport import short
from aftermath.p2p.wire import Code, ProtocolViolation, cause

PROBE_S = 2.0
UNREAD_S = 0.5

log = logging.getLogger(__name__)


async def watch_pulse(contacts: Mapping[bytes, Contact], pace: Pace) -> None:
    """Take every link's pulse and drop the silent ones, until cancelled."""
    while True:
        await asyncio.sleep(PROBE_S)
        for peer, contact in list(contacts.items()):
            try:
                if contact.link is not None:
                    pace.peer(peer).rtt = contact.link.rtt()
                    if not contact.link.pulse():
                        contact.link.close(Code.SILENT, "nothing heard for too long")
            except Exception as error:
                log.debug("link to %s: %s", short(peer), cause(error))


async def watch_unread(links: Collection[Link]) -> None:
    """Close links of peers that send far more than we read, and the worst one if all together do,
    until cancelled.
    """
    while True:
        await asyncio.sleep(UNREAD_S)
        for link in list(links):
            try:
                if not link.asked_for():
                    link.violated(ProtocolViolation(f"over {MOST_UNREAD >> 20} MiB that nobody asked for"))
            except Exception as error:
                log.debug("link to %s: %s", short(link.peer), cause(error))
        held = sum(link.unread for link in links)
        for link in sorted(links, key=lambda one: -one.unread):
            if held <= MOST_UNREAD_OF_ALL:
                break
            held -= link.unread
            link.close(Code.STALLED, "peers sent more than could be read")
