"""Measure how results of eight members spread over home lines.

python benchmarks/wan.py [--json] [--cases small large fast]

Needs root, for network namespaces and TUN devices.
"""

# How it is measured:
# - Each member is a process in a network namespace of its own, with our transport over QUIC. A
#   router thread (wan_network.py) carries the packets at the lines' rates, with delay and loss.
# - Only the transport is measured: training is a wait until a common moment. Then each member
#   publishes a result, announces it, and fetches the others' with the holders that a member of a
#   run would name. Chain, decoding and attestation are left out.
# - The overhead of a round is the time from the common moment until the last member has the
#   last result. The bar of a large result compares with the lines: each member must receive
#   N - 1 results, so the mean upload is N - 1 results, and that takes (N - 1) R / uplink.
# - `uploaded` is a member's bytes of results sent, divided by R.
# - `cores_busy` counts members and router. Near the number of cores, times are the machine's.

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from aftermath.p2p import piece_choice, swarm
from aftermath.p2p.iroh import IrohTransport, open_iroh
from aftermath.p2p.transport import Announcement, TransportError
from wan_network import Line, Router, address, open_device

MEMBERS = 8
UPLINK = 110.0
DOWNLINK = 500.0
FAST = 1000.0
ROUND_TRIP_S = 0.1
LOSS = 0.001
BYTES_PER_MBIT = 125_000
SMALL = 2_000_000
LARGE = 31_000_000
TRAINING_S = 1.0
SLOWEST_BYTES = 200_000  # like a member's deadline of a fetch: 5 s plus the time at this rate


@dataclass(frozen=True)
class Case:
    """One result size on one set of lines. `fast`: the first member has FAST in both directions."""

    size: int
    rounds: int
    fast: bool = False
    warm: bool = False
    """Whether an unmeasured round of this size comes first, in which members learn each other's
    upload rates.
    """


CASES = {
    "small": Case(SMALL, rounds=3),
    "large": Case(LARGE, rounds=1),
    "fast": Case(LARGE, rounds=1, fast=True, warm=True),
}


# --- a member's process ---


async def member(number: int, directory: Path, slower: float) -> None:
    """Take commands, one JSON array on a line, until the input ends."""
    # What is slow depends on the lines.
    piece_choice.STALL_S *= slower
    swarm.LEAST_EXPECTED_S *= slower
    swarm.ABANDON_S *= slower
    transport = await open_iroh(
        hashlib.sha256(b"wan benchmark %d" % number).digest(),
        bind_host=address(number),
        relay="disabled",
        discovery="local",
        discovery_dir=directory,
    )
    say({"id": transport.node_id.hex()})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *values = json.loads(line)
        if name == "join":
            transport.set_members(bytes.fromhex(value) for value in values)
            while len(transport.reachable()) < len(values) - 1:
                await asyncio.sleep(0.02)
            say({})
        elif name == "traffic":
            stats = transport.stats()
            say({"sent": stats.sent["blob"], "received": stats.received["blob"]})
        else:
            say({"seconds": await one_round(transport, number, *values)})
    await transport.close()


async def one_round(
    transport: IrohTransport,
    number: int,
    size: int,
    begin: float,
    in_pieces: bool,
    deadline_s: float,
) -> float:
    """Publish a result at `begin`, fetch all others, and return the seconds that it took."""
    data = hashlib.shake_128(f"{number} {begin}".encode()).digest(size)
    heard = transport.announcements()
    others = transport.reachable()
    await asyncio.sleep(begin - time.monotonic())
    await transport.announce(transport.publish(data))
    arrived: list[float] = []
    async with asyncio.TaskGroup() as tasks:
        for _ in others:
            announcement = await anext(heard)
            tasks.create_task(
                fetch(
                    transport,
                    announcement,
                    size,
                    arrived,
                    in_pieces=in_pieces,
                    deadline_s=deadline_s,
                )
            )
    return max(arrived) - begin


async def fetch(
    transport: IrohTransport,
    announcement: Announcement,
    size: int,
    arrived: list[float],
    *,
    in_pieces: bool,
    deadline_s: float,
) -> None:
    """Fetch one result as a member does: from its author, or from others that may have it."""
    author = announcement.sender
    while True:
        others = sorted(transport.reachable() - {author})
        try:
            await transport.fetch(
                announcement.data,
                size,
                [author, *others],
                deadline_s,
                keep=True,
                author=author if in_pieces else None,
            )
        except TransportError as failure:
            print(f"fetching again: {str(failure)[:90]}", file=sys.stderr)
            await asyncio.sleep(0.2)
            continue
        arrived.append(time.monotonic())
        return


def say(answer: dict[str, Any]) -> None:
    """Answer a command."""
    print(json.dumps(answer), flush=True)


# --- the measuring process ---


class Member:
    """One child in its own namespace."""

    def __init__(self, number: int, directory: Path, slower: float) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # The child ends with its standard input, and its namespace with the child.
            self.process = subprocess.Popen(
                [
                    *("unshare", "--net", sys.executable, __file__, "--member"),
                    *(str(number), str(theirs.fileno()), str(directory), str(slower)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        if not descriptors:
            raise SystemExit("error: a member could not make its network; see above")
        self.device = descriptors[0]

    def ask(self, *command: object) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("error: a member ended; see above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the child."""
        self.process.kill()
        self.process.wait()
        os.close(self.device)


@contextmanager
def network(case: Case, *, loss: float, slower: float) -> Iterator[tuple[list[Member], Router]]:
    """Connect the members and yield them with their router."""
    unit = BYTES_PER_MBIT / slower
    lines = [Line(UPLINK * unit, DOWNLINK * unit) for _ in range(MEMBERS)]
    if case.fast:
        lines[0] = Line(FAST * unit, FAST * unit)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="aftermath-wan-"))
        members = []
        for number in range(MEMBERS):
            members.append(Member(number, Path(folder) / "run", slower))
            stack.callback(members[-1].close)
        router = Router(
            [one.device for one in members], lines, round_trip=ROUND_TRIP_S, loss=loss, seed=1
        )
        router.start()
        stack.callback(router.stop)
        ids = [one.answer()["id"] for one in members]
        for one in members:
            one.ask("join", *ids)
        for one in members:
            one.answer()
        yield members, router


def measure(
    case: Case, size: int, *, loss: float, slower: float, in_pieces: bool
) -> dict[str, Any]:
    """Return the figures of a case. Medians over its rounds, after one to warm up."""
    rounds = []
    with network(case, loss=loss, slower=slower) as (members, router):
        ask_round(members, size if case.warm else 100_000, in_pieces=in_pieces, slower=slower)
        for _ in range(case.rounds):
            rounds.append(ask_round(members, size, in_pieces=in_pieces, slower=slower))
        dropped = {"packets_lost": router.lost, "packets_overflowed": router.overflowed}
    uploads = [
        round(statistics.median(values), 2)
        for values in zip(*(one.uploaded for one in rounds), strict=True)
    ]
    slow = uploads[1:] if case.fast else uploads
    return {
        "bytes": size,
        "seconds": round(statistics.median(one.seconds for one in rounds), 2),
        "uploaded": uploads,
        "most_uploaded_by_slow": max(slow),
        "mean_uploaded_by_slow": round(statistics.mean(slow), 2),
        "downloaded": round(statistics.mean(one.downloaded for one in rounds), 2),
        "cores_busy": round(max(one.cores_busy for one in rounds), 2),
        **dropped,
    }


@dataclass(frozen=True)
class Round:
    """The figures of one round. Traffic is in results."""

    seconds: float
    """Until the last member had the last result."""
    uploaded: list[float]
    """Results that each member sent."""
    downloaded: float
    """Mean over the members."""
    cores_busy: float


def ask_round(members: list[Member], size: int, *, in_pieces: bool, slower: float) -> Round:
    """Run one round."""
    processes = [psutil.Process(), *(psutil.Process(one.process.pid) for one in members)]
    before = ask_all(members, "traffic")
    begin = time.monotonic() + TRAINING_S
    deadline_s = slower * (5.0 + size / SLOWEST_BYTES)
    for one in members:
        one.ask("round", size, begin, in_pieces, deadline_s)
    time.sleep(TRAINING_S)
    idle = cpu_seconds(processes)
    seconds = max(one.answer()["seconds"] for one in members)
    busy = (cpu_seconds(processes) - idle) / (time.monotonic() - begin)
    after = ask_all(members, "traffic")
    pairs = list(zip(before, after, strict=True))
    return Round(
        seconds=seconds,
        uploaded=[(new["sent"] - old["sent"]) / size for old, new in pairs],
        downloaded=statistics.mean(
            (new["received"] - old["received"]) / size for old, new in pairs
        ),
        cores_busy=busy,
    )


def ask_all(members: list[Member], *command: object) -> list[dict[str, Any]]:
    """Send a command to all members, and return their answers."""
    for one in members:
        one.ask(*command)
    return [one.answer() for one in members]


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Return the CPU seconds of these processes so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def bars(figures: dict[str, dict[str, Any]], *, slower: float) -> dict[str, dict[str, Any]]:
    """Return the bar, the value and whether it is met, for each measured case."""
    size = figures["large"]["bytes"] if "large" in figures else LARGE
    lines_s = (MEMBERS - 1) * size * slower / (UPLINK * BYTES_PER_MBIT)
    known = {
        "small": ("round overhead of 2 MB in seconds", "seconds", 2.5),
        "large": ("31 MB in seconds, 1.3 (N - 1) R / uplink", "seconds", 1.3 * lines_s),
        "fast": (
            "upload of a slow member in results, mean, one member with 1 Gb/s",
            "mean_uploaded_by_slow",
            1.5,
        ),
    }
    return {
        name: {
            "what": what,
            "value": figures[name][key],
            "bar": round(bar, 2),
            "met": figures[name][key] <= bar,
        }
        for name, (what, key, bar) in known.items()
        if name in figures
    }


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--slower",
        type=float,
        default=1.0,
        help="divide the line rates for large results, for machines with few cores",
    )
    parser.add_argument(
        "--whole", action="store_true", help="send results whole instead of in pieces, to compare"
    )
    parser.add_argument("--bytes", type=int, help="size of a result; default: each case's own")
    parser.add_argument("--loss", type=float, default=LOSS, help="fraction of lost packets, 0 to 1")
    parser.add_argument(
        "--member", nargs=4, metavar=("NUMBER", "FD", "DIR", "SLOWER"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.member:
        number, descriptor, directory, slower = arguments.member
        with socket.socket(fileno=int(descriptor)) as channel:
            socket.send_fds(channel, [b"\0"], [open_device(int(number))])
        asyncio.run(member(int(number), Path(directory), float(slower)))
        return
    if os.geteuid() != 0:
        parser.error("network namespaces and TUN devices need root: run it with sudo")
    if missing := [tool for tool in ("ip", "unshare") if shutil.which(tool) is None]:
        parser.error(f"there is no command {missing[0]}: install iproute2 and util-linux")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the members end too
    figures = {
        name: measure(
            CASES[name],
            arguments.bytes or CASES[name].size,
            loss=arguments.loss,
            slower=1.0 if name == "small" else arguments.slower,
            in_pieces=not arguments.whole,
        )
        for name in arguments.cases
    }
    judged = bars(figures, slower=arguments.slower)
    if arguments.json:
        lines = {"up_mbit": UPLINK, "down_mbit": DOWNLINK, "round_trip_s": ROUND_TRIP_S}
        print(json.dumps({"lines": {**lines, "loss": arguments.loss}, **figures, "bars": judged}))
        return
    for name, values in figures.items():
        print(f"{name}: {values}")
    for bar in judged.values():
        state = "met" if bar["met"] else "missed"
        print(f"{bar['what']}: {bar['value']} (at most {bar['bar']}): {state}")


if __name__ == "__main__":
    main()
