"""Emulate home lines between network namespaces: rates, delay and loss, in one router thread.

Each member runs under `unshare --net` with a TUN device whose descriptor this router holds. A
namespace disappears with its last process, so nothing is left behind, even after SIGKILL. The
kernel needs TUN and network namespaces, but not sch_netem, which small kernels lack.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_TUN_FLAGS = 0x0001 | 0x1000 | 0x4000  # IFF_TUN, IFF_NO_PI, IFF_VNET_HDR
_OFFLOADS = 0x01 | 0x20 | 0x40  # checksums, and UDP segmentation over IPv4 and IPv6
_VNET = struct.Struct("=BBHHHH")
"""virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset."""
_NEEDS_CHECKSUM = 1
_UDP_SEGMENTS = 5
_IP = 20
_HEADERS = _IP + 8  # IPv4 without options, UDP
_NETWORK = bytes((10, 77, 0))
_LARGEST = 1 << 17
_QUEUE_S = 0.1  # a queue holds this much of its line; further packets are dropped
_BURST = 64  # packets read from one device before the due ones are delivered


@dataclass
class Line:
    """One member's line. Rates in bytes per second."""

    up: float
    down: float
    up_free: float = 0.0
    down_free: float = 0.0


def address(number: int) -> str:
    """Return the IPv4 address of member `number`, counted from 0."""
    return ".".join(str(part) for part in (*_NETWORK, number + 1))


def open_device(number: int) -> int:
    """Make this namespace's device, give it the member's address and return its descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"wan0", _TUN_FLAGS))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _OFFLOADS)
    for line in (
        "link set lo up",
        f"addr add {address(number)}/24 dev wan0",
        "link set wan0 up txqueuelen 10000",
    ):
        subprocess.run(["ip", *line.split()], check=True)
    return device


class Router:
    """Carries IP packets between the devices. `round_trip` in seconds, `loss` from 0 to 1."""

    def __init__(
        self, devices: list[int], lines: list[Line], *, round_trip: float, loss: float, seed: int
    ) -> None:
        self._devices = devices
        self._lines = lines
        self._delay = round_trip / 2
        self._loss = loss
        self._random = random.Random(seed)
        self._due: list[tuple[float, int, bool, int, bytes]] = []
        """Due time, number, whether it passed the receiver's line, receiver, packet."""
        self._number = 0
        self._stopped, self._stopping = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="wan router", daemon=True)
        self.lost = 0
        """Packets lost at random."""
        self.overflowed = 0
        """Packets dropped from a full queue."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.send(b"\0")
        self._thread.join()

    def _run(self) -> None:
        """Read and deliver until stopped."""
        poller = select.epoll()
        sources = {device: number for number, device in enumerate(self._devices)}
        for device in self._devices:
            poller.register(device, select.EPOLLIN)
        poller.register(self._stopped, select.EPOLLIN)
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else 1.0
            for descriptor, _ in poller.poll(wait):
                if descriptor == self._stopped.fileno():
                    return
                self._read(sources[descriptor])
            self._deliver()

    def _read(self, source: int) -> None:
        for _ in range(_BURST):
            try:
                packet = os.read(self._devices[source], _LARGEST)
            except BlockingIOError:
                return
            target = self._receiver(packet)
            if target is not None:
                for rest in self._survivors(packet):
                    self._send(source, target, rest)

    def _receiver(self, packet: bytes) -> int | None:
        """Return the member that receives a packet with its virtio header, if any."""
        ip = packet[_VNET.size :]
        known = ip[0] == 0x45 and ip[16:19] == _NETWORK and 0 < ip[19] <= len(self._devices)
        return ip[19] - 1 if known else None

    def _send(self, source: int, target: int, packet: bytes) -> None:
        """Queue a packet on the sender's line."""
        line = self._lines[source]
        now = time.monotonic()
        start = max(now, line.up_free)
        rest = self._fitting(packet, line.up * (_QUEUE_S - (start - now)))
        if rest:
            line.up_free = start + wire_bytes(rest) / line.up
            self._push(line.up_free + self._delay, False, target, rest)

    def _push(self, due: float, passed: bool, target: int, packet: bytes) -> None:
        self._number += 1
        heapq.heappush(self._due, (due, self._number, passed, target, packet))

    def _deliver(self) -> None:
        """Pass packets that are due to the receiver's line, and then to its device."""
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            due, _, passed, target, packet = heapq.heappop(self._due)
            line = self._lines[target]
            if passed:
                self._write(target, packet)
                continue
            start = max(due, line.down_free)
            rest = self._fitting(packet, line.down * (_QUEUE_S - (start - due)))
            if rest:
                line.down_free = start + wire_bytes(rest) / line.down
                self._push(line.down_free, True, target, rest)

    def _fitting(self, packet: bytes, room: float) -> bytes:
        """Return the part of a packet for which a queue has this many bytes of room."""
        count = segments(packet)
        each = wire_bytes(packet) / count
        fitting = min(count, max(0, int(room / each)))
        self.overflowed += count - fitting
        if fitting == count:
            return packet
        return cut(packet, 0, fitting) if fitting else b""

    def _write(self, target: int, packet: bytes) -> None:
        try:
            os.write(self._devices[target], packet)
        except BlockingIOError:
            self.overflowed += 1
        except OSError:  # the member has left
            return

    def _survivors(self, packet: bytes) -> Iterator[bytes]:
        """Yield a packet, or its runs of segments between randomly lost ones."""
        count = segments(packet)
        lost = [index for index in range(count) if self._random.random() < self._loss]
        if not lost:
            yield packet
            return
        self.lost += len(lost)
        begin = 0
        for end in (*lost, count):
            if end > begin:
                yield cut(packet, begin, end)
            begin = end + 1


def segments(packet: bytes) -> int:
    """Return how many datagrams a packet with its virtio header becomes."""
    _, kind, _, size, _, _ = _VNET.unpack_from(packet)
    payload = len(packet) - _VNET.size - _HEADERS
    return -(-payload // size) if kind == _UDP_SEGMENTS and size else 1


def wire_bytes(packet: bytes) -> int:
    """Return the bytes that a packet takes on the line, with each datagram's headers."""
    return len(packet) - _VNET.size + (segments(packet) - 1) * _HEADERS


def cut(packet: bytes, begin: int, end: int) -> bytes:
    """Return the segments [begin, end) of a UDP packet as a packet of its own."""
    flags, kind, headers, size, start, offset = _VNET.unpack_from(packet)
    ip = bytearray(packet[_VNET.size : _VNET.size + _IP])
    udp = bytearray(packet[_VNET.size + _IP : _VNET.size + _HEADERS])
    payload = packet[_VNET.size + _HEADERS :][begin * size : end * size]
    struct.pack_into(">H", ip, 2, _HEADERS + len(payload))
    struct.pack_into(">H", ip, 10, 0)
    struct.pack_into(">H", ip, 10, 0xFFFF ^ _sum(ip))
    struct.pack_into(">H", udp, 4, 8 + len(payload))
    # The kernel completes the checksum, for which the field holds the pseudo header's sum.
    pseudo = bytes(ip[12:20]) + struct.pack(">HH", ip[9], 8 + len(payload))
    struct.pack_into(">H", udp, 6, _sum(pseudo))
    several = len(payload) > size
    header = _VNET.pack(
        flags | _NEEDS_CHECKSUM,
        kind if several else 0,
        headers,
        size if several else 0,
        start,
        offset,
    )
    return header + ip + udp + payload


def _sum(data: bytes | bytearray) -> int:
    """Return the 16-bit one's complement sum of an even number of bytes."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total
