"""The router of the WAN benchmark cuts segmented packets so that their checksums hold."""

from __future__ import annotations

import struct

from benchmarks.test_benchmarks_worth import module

network = module("wan_network")

SEGMENT = 1200
SEGMENTED = 5


def packet(payload: bytes) -> bytes:
    """Return a virtio header, IPv4, UDP and `payload` in segments."""
    header = struct.pack("=BBHHHH", 1, SEGMENTED, 28, SEGMENT, 20, 6)
    ip = bytearray(20)
    ip[0] = 0x45
    ip[9] = 17
    ip[12:20] = bytes((10, 77, 0, 1, 10, 77, 0, 2))
    struct.pack_into(">H", ip, 2, 28 + len(payload))
    return header + bytes(ip) + struct.pack(">HHHH", 1, 2, 8 + len(payload), 0) + payload


def test_segments_count_a_short_last_one() -> None:
    whole = packet(bytes(3 * SEGMENT + 5))
    assert network.segments(whole) == 4
    assert network.wire_bytes(whole) == 3 * SEGMENT + 5 + 4 * 28


def test_cut_keeps_segments_and_repairs_headers() -> None:
    payload = b"".join(bytes([index]) * SEGMENT for index in range(4))
    part = network.cut(packet(payload), 1, 3)
    assert part[38:] == payload[SEGMENT : 3 * SEGMENT]
    assert network._sum(part[10:30]) == 0xFFFF
    assert struct.unpack_from(">H", part, 12) == (28 + 2 * SEGMENT,)
    assert struct.unpack_from(">H", part, 34) == (8 + 2 * SEGMENT,)


def test_cut_of_one_segment_is_no_longer_segmented() -> None:
    part = network.cut(packet(bytes(2 * SEGMENT)), 0, 1)
    assert part[1] == 0
    assert network.segments(part) == 1
