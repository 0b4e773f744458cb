"""Test which piece a member asks a peer for, and which members carry a blob."""

from blake3 import blake3

from aftermath.p2p.piece_choice import PieceFetch, PiecePull, strongest
from aftermath.p2p.pieces import PIECE, Pieces, piece_hashes
from p2p.nodes import content, identity

AUTHOR = identity(1)
ME = identity(2)
OTHER = identity(3)
FAST = identity(4)
COUNT = 8
SILENT_S = 1.0
LONG_S = 100.0
MEGABIT = 125_000.0


def fetch_of(*strong: bytes, first: int = 0) -> PieceFetch:
    """Return a fetch of COUNT pieces at time 0, with nothing known about the others."""
    data = content(COUNT * PIECE - 5)
    return PieceFetch(
        digest=blake3(data).digest(),
        author=AUTHOR,
        me=ME,
        pieces=Pieces(len(data), piece_hashes(data), bytearray(len(data))),
        first=first,
        started=0.0,
        expected_s=LONG_S,
        progress_at=0.0,
        strong=frozenset(strong or (AUTHOR, ME, OTHER, FAST)),
        sources={AUTHOR, OTHER, FAST},
    )


def status(held: int, pulled: int = 0) -> bytes:
    """Return what a peer says about COUNT pieces."""
    return bytes([held, pulled])


def test_piece_with_wrong_hash_is_not_stored() -> None:
    data = content(2 * PIECE + 9)
    pieces = Pieces(len(data), piece_hashes(data), bytearray(len(data)))
    assert not pieces.put(0, data[PIECE : 2 * PIECE])
    assert pieces.put(2, data[2 * PIECE :])
    assert pieces.status() == bytes([0b100, 0])
    assert pieces.put(0, data[:PIECE])
    assert pieces.put(1, data[PIECE : 2 * PIECE])
    assert pieces.complete
    assert bytes(pieces.data) == data
    assert Pieces.whole(data).listing == pieces.listing


def test_fetch_starts_at_own_piece_and_wraps() -> None:
    fetch = fetch_of(first=6)
    chosen = []
    for _ in range(COUNT):
        index = fetch.choose(AUTHOR, 0.0, SILENT_S)
        assert index is not None
        fetch.begin(PiecePull(AUTHOR, index, 0.0, 0.0))
        chosen.append(index)
    assert chosen == [6, 7, 0, 1, 2, 3, 4, 5]
    assert fetch.pieces.status() == status(0, 255)


def test_author_is_not_asked_for_pieces_that_others_hold() -> None:
    fetch = fetch_of()
    fetch.note(OTHER, status(0b11, pulled=0b100))
    assert fetch.choose(AUTHOR, 0.0, SILENT_S) == 3
    assert fetch.choose(OTHER, 0.0, SILENT_S) == 0


def test_weak_member_asks_only_the_strong_one() -> None:
    fetch = fetch_of(FAST)
    fetch.note(OTHER, status(1))
    assert fetch.choose(AUTHOR, 0.0, SILENT_S) is None
    assert fetch.choose(OTHER, 0.0, SILENT_S) is None
    fetch.note(FAST, status(0b10))
    assert fetch.choose(FAST, 0.0, SILENT_S) == 1


def test_stalled_fetch_asks_anyone_from_then_on() -> None:
    fetch = fetch_of(FAST)
    fetch.note(OTHER, status(1))
    fetch.note(FAST, status(255, pulled=255))
    assert fetch.choose(AUTHOR, 3.0, SILENT_S) == 0
    fetch.progress_at = 3.0
    assert fetch.choose(OTHER, 3.0, SILENT_S) == 0


def test_silent_sender_frees_its_piece_for_others() -> None:
    fetch = fetch_of()
    fetch.note(OTHER, status(1))
    fetch.note(FAST, status(1))
    fetch.begin(PiecePull(OTHER, 0, 0.0, 0.0))
    assert fetch.choose(FAST, 0.5, SILENT_S) is None
    assert fetch.choose(FAST, 1.5, SILENT_S) == 0
    assert fetch.choose(OTHER, 1.5, SILENT_S) is None


def test_late_fetch_asks_author_for_what_a_relay_trickles() -> None:
    """The relay sends just enough that the fetch does not stall."""
    fetch = fetch_of(FAST)
    fetch.note(FAST, status(255))
    trickle = [PiecePull(FAST, index, 0.0, 0.0) for index in (0, 1)]
    for pull in trickle:
        fetch.begin(pull)
    fetch.pieces.held = 0b0111_1100
    for now, expected in ((49.0, None), (62.0, None), (63.0, 7)):
        for pull in trickle:
            pull.last_byte_at = now
        fetch.progress_at = now
        assert fetch.choose(AUTHOR, now, SILENT_S) == expected
    indices = []
    while (index := fetch.choose(AUTHOR, 63.0, SILENT_S)) is not None:
        fetch.begin(PiecePull(AUTHOR, index, 63.0, 63.0))
        indices.append(index)
    assert indices == [7, 0, 1]


def test_late_fetch_asks_two_relays_at_most_for_one_piece() -> None:
    fetch = fetch_of()
    fetch.pieces.held = 0b1111_1110
    fetch.open_to_all = True
    for peer in (OTHER, FAST, AUTHOR):
        fetch.note(peer, status(1))
    fetch.begin(PiecePull(FAST, 0, 0.0, 0.0))
    assert fetch.choose(FAST, 0.0, SILENT_S) is None
    assert fetch.choose(OTHER, 0.0, SILENT_S) == 0
    fetch.begin(PiecePull(OTHER, 0, 0.0, 0.0))
    fetch.sources.add(ME)
    fetch.note(ME, status(1))
    assert fetch.choose(ME, 0.0, SILENT_S) is None
    assert fetch.choose(AUTHOR, 0.0, SILENT_S) == 0


def test_relay_is_unreliable_if_a_late_fetch_got_little_from_it() -> None:
    fetch = fetch_of(AUTHOR, OTHER, FAST)
    fetch.delivered |= {OTHER: 2, FAST: 1}
    assert fetch.unreliable() == frozenset()
    fetch.open_to_all = True
    assert fetch.unreliable() == {FAST}


def test_peer_that_lacks_claimed_pieces_is_dropped() -> None:
    fetch = fetch_of()
    fetch.note(OTHER, status(255))
    for index in range(3):
        assert fetch.choose(OTHER, 0.0, SILENT_S) == index
        fetch.strike(OTHER, index)
    assert OTHER not in fetch.sources
    assert fetch.choose(AUTHOR, 0.0, SILENT_S) == 0


def test_status_of_wrong_length_means_no_pieces() -> None:
    fetch = fetch_of()
    for answer in (b"", b"\xff", b"\xff" * 64):
        fetch.note(OTHER, answer)
        assert fetch.choose(OTHER, 0.0, SILENT_S) is None


def test_strongest_is_one_member_with_half_of_total_rate() -> None:
    slow = [(identity(10 + number), 110 * MEGABIT) for number in range(7)]
    assert strongest([(FAST, 1000 * MEGABIT), *slow]) == {FAST}


def test_strongest_is_everyone_with_equal_lines() -> None:
    lines = [(identity(number), (100 + number) * MEGABIT) for number in range(8)]
    assert strongest(lines) == {peer for peer, _ in lines}
    assert strongest([(peer, 0.0) for peer, _ in lines]) == {peer for peer, _ in lines}


def test_strongest_adds_others_until_half_of_total_rate() -> None:
    slow = [(identity(10 + number), 110 * MEGABIT) for number in range(7)]
    chosen = strongest([(FAST, 250 * MEGABIT), *slow])
    assert FAST in chosen
    assert len(chosen) == 4
