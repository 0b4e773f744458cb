"""Writes a ledger with many compactions and kills itself with SIGKILL at the system call of a given number, once for
every number until one run ends by itself. Says for each run what was acknowledged.

compaction_crash.py FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aftermath.localnet import ledger
from aftermath.localnet.records import FORMAT, Chain, Entry, Era, Landed, Stored

CALLS = ("open", "write", "fdatasync", "fsync", "replace", "close", "unlink")
ROUNDS = 5
ACCOUNT = bytes(400)
KEY = bytes(32)


def entry(number: int) -> Entry:
    """The transaction of this number: it writes it into one byte of the account."""
    landed = Landed(number, 0, bytes(1) + number.to_bytes(64, "little"), None, 0, [], [], bytes(200), [], [])
    return Entry(landed, [(KEY, [(number, bytes([number]))])])


def account(count: int) -> bytes:
    """The account after that many transactions."""
    held = bytearray(ACCOUNT)
    held[1 : count + 1] = bytes(range(1, count + 1))
    return bytes(held)


def chain(count: int) -> Chain:
    return Chain(FORMAT, b"g" * 32, [Era(0, 0.0, 400)], count, count)


def write(folder: Path, acknowledge: Callable[[int], None]) -> None:
    """One compaction after every second transaction, each journal but the newest dropped."""
    kept = ledger.Ledger(folder)
    kept.recover()
    kept.start(chain(0), [Stored(KEY, ACCOUNT)])
    acknowledge(0)
    for number in range(1, ROUNDS + 1):
        kept.append([entry(number)])
        acknowledge(number)
        if number % 2 == 0:
            kept.compact(chain(number), [Stored(KEY, account(number))])
    kept.close()


def dying_at(point: int) -> None:
    """From now on the system call of that number ends this process, before or (odd numbers) after it is made."""
    made = 0

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal made
            made += 1
            if made == point // 2 and point % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*arguments, **named)
            finally:  # also a call that fails, as to unlink what is not there
                if made == point // 2:
                    os.kill(os.getpid(), signal.SIGKILL)

        return counted

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))


def live_until(point: int, folder: Path, writing: int) -> None:
    """Write the ledger, telling through the pipe `writing` what was acknowledged."""
    tell = os.write
    dying_at(point)

    def told(number: int) -> None:
        tell(writing, bytes([number]))

    write(folder, told)
    os._exit(0)


def main(folder: str) -> None:
    ledger.HISTORY_BYTES = 1
    ledger.MAX_PROCESSING_AGE = 0  # type: ignore[attr-defined]
    point = 1
    while True:
        point += 1
        place, (reading, writing) = Path(folder) / f"{point:04d}", os.pipe()
        child = os.fork()
        if child == 0:
            live_until(point, place, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            acknowledged = said.read()
        ended = os.waitpid(child, 0)[1] == 0
        print(place, acknowledged[-1] if acknowledged else -1, flush=True)
        if ended:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
