"""A process that appends to a ledger without end and prints the number of transactions after every
append.

ledger_writer.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from solders.account import Account
from solders.pubkey import Pubkey

from aftermath.localnet.ledger import Entry, Ledger
from aftermath.localnet.records import Chain, Era, Landed

KEY = Pubkey(bytes(range(32)))
OWNER = Pubkey(bytes(32))
META = bytes(10_000)  # the database takes over its write-ahead log every 300 transactions or so


def account(count: int) -> Account:
    """Return the account after this many transactions."""
    return Account(count + 1, bytes(1_000) + count.to_bytes(8, "little"), OWNER, False)


def entry(number: int) -> Entry:
    """Return the transaction with this number."""
    wire = bytes(1) + number.to_bytes(64, "little")
    landed = Landed(number, 0, wire, None, 0, [], [], META, [], [])
    return landed, [(KEY, account(number))]


def chain(count: int) -> Chain:
    """Return where the chain is after this many transactions."""
    return Chain(b"g" * 32, [Era(0, 0.0, 400)], count, count)


def main(folder: str) -> None:
    ledger = Ledger(Path(folder))
    recovered = ledger.recover()
    count = 0 if recovered is None else recovered.chain.transactions
    ledger.start(chain(count), [(KEY, account(count))])
    while True:
        print(count, flush=True)
        count += 1
        ledger.append([entry(count)])


if __name__ == "__main__":
    main(*sys.argv[1:])
