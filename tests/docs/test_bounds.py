"""The bounds on peers in docs/security.md are those of the code: each row is built from the
constants.
"""

from __future__ import annotations

import re
from pathlib import Path

from aftermath.member import lineage, results
from aftermath.member.rounds import collect
from aftermath.optim.private_blocks import BLOCK
from aftermath.p2p import (
    accept_limits,
    announce,
    blobs,
    incoming,
    limits,
    link,
    links,
    log_limits,
    peer_stats,
    requests,
)
from aftermath.p2p.transport import MAX_ANNOUNCEMENT, MAX_REQUEST
from aftermath.replica import stateshare
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.run import STORED_ROUNDS
from p2p.nodes import QUIC_SENDS, QUIC_STREAMS, QUIC_WINDOW

PAGE = Path(__file__).parents[2] / "docs/security.md"
OTHERS = MAX_MEMBERS - 1
SERVED = OTHERS * requests.STREAMS
SMALL = SERVED - blobs.LARGE_PIECES
ROWS = [
    f"handshakes | {accept_limits.MAX_HANDSHAKES_OF_ADDRESS} at a time and "
    f"{accept_limits.ADDRESS_RATE:.0f} a second, after the first "
    f"{accept_limits.ADDRESS_BURST:.0f}, of one address (of IPv6: of one /64), of one member's key "
    f"by way of a relay, or of all "
    f"others who come by relays; "
    f"{incoming.HANDSHAKE_S:.0f} seconds each | {accept_limits.MAX_HANDSHAKES}; while "
    f"{accept_limits.MAX_HANDSHAKES // 2} are under way, "
    f"addresses have to be proven first; {accept_limits.LOOKED_AT_RATE:.0f} connections a second "
    f"are looked at after the first "
    f"{accept_limits.LOOKED_AT_BURST:.0f}, in addition to those from a place where a member was "
    f"connected last, as often as one "
    f"may connect; {accept_limits.LEFT_RATE:.0f} are turned away, others wait in QUIC; where all "
    f"are taken, the oldest of the "
    "address that has most gives way to another's, and at once to one from where a member was connected last",
    f"greetings | one at a time, and {link.MOST_BEFORE_GREETING >> 10} KiB until it is done, looked at every "
    f"{link.GREETING_LOOK_S} seconds; {link.MOST_BEFORE_ANSWER >> 20} MiB of whom we dial | as handshakes",
    f"connections | one, for {links.LINGER_S:.0f} seconds two; {limits.ARRIVALS_BURST:.0f} at once, then one in "
    f"{ {2: 'two'}[round(1 / limits.ARRIVALS_RATE)] } seconds; who tries "
    f"{limits.EXCESS_BURST:.0f} times more is kept out | {OTHERS}",
    f"streams | one of announcements (a second one breaks the protocol); {link.STREAMS_OPEN} of requests open "
    f"({QUIC_STREAMS // 2} of a new connection), {requests.STREAMS} of them served; {limits.ASKED_RATE:.0f} a second "
    f"after the first {limits.ASKED_BURST:.0f} | {SERVED:,} served; {limits.ALL_ASKED_RATE:.0f} a "
    f"second after the first "
    f"{limits.ALL_ASKED_BURST:,.0f}",
    f"bytes that QUIC holds unread | {link.MOST_UNREAD >> 20} MiB, and {link._MOST_GIVEN_UP >> 20} MiB of what was "
    f"asked for and given up, looked at every {links.UNREAD_S} seconds; who pours in more is closed and kept out. "
    f"{QUIC_STREAMS * QUIC_WINDOW // 10**6} MB in between | {link.MOST_UNREAD_OF_ALL >> 20} MiB; beyond that, "
    "the peer with most is closed",
    f"announcements | {MAX_ANNOUNCEMENT:,} bytes each, {limits.TOLD_RATE:.0f} a second after the first "
    f"{limits.TOLD_BURST:.0f}; who says {limits.EXCESS_BURST:.0f} more is closed and kept out; {announce.REMEMBERED} "
    f"hashes are remembered, and {announce.OUTBOX} wait for a peer that reads slowly | {limits.ALL_TOLD_RATE:.0f} a "
    f"second after the first {limits.ALL_TOLD_BURST:,.0f}; {announce.INBOX:,} wait to be heard",
    f"an answer to a question about announcements | {results.MOST_PER_SEAT} announcements of {MAX_ANNOUNCEMENT:,} "
    f"bytes for each seat that was asked about, {collect._MAX_REPLY >> 20} MiB in all; a peer whose answer has more "
    f"values, or cannot be read, is closed and kept out | {collect._ASKED_AT_ONCE * collect._MAX_REPLY >> 20} MiB: "
    f"{collect._ASKED_AT_ONCE} peers are asked at a time",
    f"a request | {MAX_REQUEST >> 10} KiB, {requests.HEADER_S:.0f} seconds to arrive, "
    f"{requests.LONGEST_HANDLER_S:.0f} seconds to be answered | {-(-SERVED * MAX_REQUEST // 2**20)} MiB",
    f"what is being sent of blobs | {requests.STREAMS} pieces of {blobs.PIECE >> 20} MiB, each for {blobs.PIECE_S:.0f} "
    f"seconds | {blobs.LARGE_PIECES} pieces of {blobs.PIECE >> 20} MiB and {SMALL:,} of {blobs.SMALL_PIECE >> 10} KiB: "
    f"{blobs.LARGE_PIECES * blobs.PIECE + SMALL * blobs.SMALL_PIECE >> 20} MiB",
    f"answers that were not taken | {requests.ANSWERS >> 20} MiB, or one larger answer; for "
    f"{requests.HEADER_S + peer_stats.PATIENCE_S:.0f} to "
    f"{requests.HEADER_S + peer_stats.LONGEST_PATIENCE_S:.0f} seconds | "
    f"{requests.ALL_ANSWERS >> 20} MiB, plus one for each",
    f"what QUIC keeps until it is acknowledged | {QUIC_SENDS // 10**6} MB | {OTHERS * QUIC_SENDS // 10**6:,} MB",
    f"what is kept of it | { {2: 'two'}[results._MAX_PER_MEMBER] } results for each of {STORED_ROUNDS} rounds, "
    f"{ {2: 'two'}[results._MAX_PER_MEMBER] } announcements for each of {STORED_ROUNDS} rounds to come, a key "
    f"and that it is closed for each of {STORED_ROUNDS} rounds, and the roots of {lineage._PLACES} rounds | as many "
    f"times {OTHERS}",
    f"a block of our private state | {BLOCK >> 10} KiB and its proof, from copies that are there anyway; where there "
    f"are none, one is read at a time | {stateshare.COPIES >> 20} MiB",
    f"lines in the log | one for each kind of thing it does | {log_limits.MOST:,} of each part of a member",
]


def test_the_table_of_bounds_is_that_of_the_code() -> None:
    after = PAGE.read_text(encoding="utf-8").split("**What peers can take of us**")[1].split("**From files")[0]
    assert [row.strip("| ") for row in after.splitlines() if row.startswith("| ")][1:] == ROWS
    prose = re.sub(r"\s+", " ", after)
    assert f"nothing is heard for {link.SILENT_PROBES * links.PROBE_S:.0f} seconds is closed" in prose
    assert (
        f"what {limits.ALL_ASKED_RATE:.0f} requests, {limits.ALL_TOLD_RATE:.0f} announcements, "
        f"{accept_limits.LOOKED_AT_RATE:.0f} handshakes and {accept_limits.LEFT_RATE:.0f} turned away"
    ) in prose
    assert f"all {OTHERS} others together" in prose


def test_what_is_remembered_of_members_outlasts_a_run_that_changes_all_of_them() -> None:
    assert limits.REMEMBERED_PEERS >= 2 * MAX_MEMBERS
    assert announce.REMEMBERED >= 2 * announce.REPLAY
    assert limits.TOLD_BURST >= 2 * announce.REPLAY
    assert limits.ALL_TOLD_BURST >= MAX_MEMBERS * announce.REPLAY
