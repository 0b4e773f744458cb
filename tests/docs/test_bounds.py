"""Test that the limits in docs/security.md equal the constants in the code."""

from __future__ import annotations

import re
from pathlib import Path

from aftermath.member import announced_results
from aftermath.member.rounds import collect
from aftermath.optim.state_merkle import BLOCK
from aftermath.p2p import announce, blobs, lanes, limits, requests, swarm
from aftermath.p2p import connection_table as links
from aftermath.p2p import incoming_connections as incoming
from aftermath.p2p import peer_connection as link
from aftermath.p2p.transport import MAX_ANNOUNCEMENT, MAX_REQUEST
from aftermath.replica import mapped_tensors
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.run import STORED_ROUNDS
from p2p.nodes import QUIC_SENDS

PAGE = Path(__file__).parents[2] / "docs/security.md"
OTHERS = MAX_MEMBERS - 1
SERVED = OTHERS * link.STREAMS_SERVED
SENT = blobs.LARGE_PIECES * blobs.PIECE + (SERVED - blobs.LARGE_PIECES) * blobs.SMALL_PIECE
STORED = announced_results._MAX_PER_MEMBER
ROWS = {
    "handshakes": (
        f"{incoming.MAX_HANDSHAKES_OF_ADDRESS} at a time, {incoming.ADDRESS_RATE:.0f} a second "
        f"after the first {incoming.ADDRESS_BURST:.0f}, per address (IPv6: per /64)",
        f"{incoming.MAX_HANDSHAKES}; from {incoming.MAX_HANDSHAKES // 2} on, addresses must be proven first",
    ),
    "bytes before the greeting ends": (
        f"{link.MOST_BEFORE_GREETING >> 10} KiB; {link.MOST_BEFORE_ANSWER >> 20} MiB if we dialled",
        "as handshakes",
    ),
    "connections": (
        f"1, for {links.LINGER_S:.0f} seconds 2, and up to {lanes.MOST_LANES} lanes; "
        f"{limits.CONNECTION_BURST:.0f} at once, then one every "
        f"{1 / limits.CONNECTION_RATE:.0f} seconds",
        f"{OTHERS}",
    ),
    "requests": (
        f"{link.STREAMS_OPEN} open, {link.LANE_STREAMS_OPEN} per lane, "
        f"{link.STREAMS_SERVED} served; {limits.REQUEST_RATE:.0f} a second after the first "
        f"{limits.REQUEST_BURST:.0f}",
        f"{SERVED:,} served; {limits.ALL_REQUEST_RATE:.0f} a second after the first {limits.ALL_REQUEST_BURST:,.0f}",
    ),
    "unread bytes in QUIC": (
        f"{link.MOST_UNREAD >> 20} MiB, and {link._MOST_GIVEN_UP >> 20} MiB of cancelled requests",
        f"{link.MOST_UNREAD_OF_ALL >> 20} MiB",
    ),
    "announcements": (
        f"{MAX_ANNOUNCEMENT:,} bytes each; {limits.ANNOUNCEMENT_RATE:.0f} a second after the first "
        f"{limits.ANNOUNCEMENT_BURST:.0f}",
        f"{limits.ALL_ANNOUNCEMENT_RATE:.0f} a second after the first "
        f"{limits.ALL_ANNOUNCEMENT_BURST:,.0f}; {announce.INBOX:,} queued",
    ),
    "answers about announcements": (
        f"{announced_results.MOST_PER_SEAT} per seat asked for, {collect._MAX_REPLY >> 20} MiB in all",
        f"{collect._ASKED_AT_ONCE * collect._MAX_REPLY >> 20} MiB",
    ),
    "size of a request": (
        f"{MAX_REQUEST >> 10} KiB, {requests.HEADER_S:.0f} seconds to arrive, "
        f"{requests.LONGEST_HANDLER_S:.0f} seconds to be answered",
        f"{-(-SERVED * MAX_REQUEST // 2**20)} MiB",
    ),
    "questions about pieces": (f"{swarm.MOST_ASKED} blobs each", "as requests"),
    "blobs being sent": (
        f"{link.STREAMS_SERVED} pieces of {blobs.PIECE >> 20} MiB, {blobs.PIECE_S:.0f} seconds each",
        f"{SENT >> 20} MiB",
    ),
    "answers that were not read": (
        f"{requests.ANSWERS >> 20} MiB, or one larger answer",
        f"{requests.ALL_ANSWERS >> 20} MiB, and one each",
    ),
    "unacknowledged bytes in QUIC": (
        f"{QUIC_SENDS // 10**6} MB per connection",
        f"{OTHERS * QUIC_SENDS // 10**6:,} MB",
    ),
    "stored results and announcements": (
        f"{STORED} for each of {STORED_ROUNDS} rounds",
        f"{OTHERS} times that",
    ),
    "copies of our private state": (
        f"blocks of {BLOCK >> 10} KiB",
        f"{mapped_tensors.MEMORY >> 20} MiB, more on disk",
    ),
    "log lines": ("one for each kind of fault", f"{limits.MOST_LOGGED:,} per component"),
}


def test_table_of_bounds_matches_code() -> None:
    after = PAGE.read_text(encoding="utf-8").split("**Peers.**")[1].split("**Server")[0]
    rows = [
        tuple(row.strip("| ").split(" | ")) for row in after.splitlines() if row.startswith("| ")
    ][1:]
    assert {name: bounds for name, *bounds in rows} == {
        name: [*bounds] for name, bounds in ROWS.items()
    }
    prose = re.sub(r"\s+", " ", after)
    assert f"silent for {link.SILENT_PROBES * links.PROBE_S:.0f} seconds and frees" in prose
    assert f"all {OTHERS} peers together" in prose


def test_quotas_outlast_replacement_of_all_members() -> None:
    assert limits.REMEMBERED_PEERS >= 2 * MAX_MEMBERS
    assert announce.REMEMBERED >= 2 * announce.REPLAY
    assert limits.ANNOUNCEMENT_BURST >= 2 * announce.REPLAY
    assert limits.ALL_ANNOUNCEMENT_BURST >= MAX_MEMBERS * announce.REPLAY
