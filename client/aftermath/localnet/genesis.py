"""The start of a chain: a new one, or the one in a ledger.

A new chain has a random genesis hash, so that transactions of an older network are not valid on
it. Programs given at the start replace those in the ledger, except one that was deployed with an
upgrade authority.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.localnet.bank import Bank
from aftermath.localnet.ledger import MARK_SLOTS, Ledger, Recovered
from aftermath.localnet.preloaded_programs import (
    elf_of,
    is_upgradeable,
    preloaded,
    program_data_address,
    read_program,
)
from aftermath.localnet.records import Era, History
from aftermath.localnet.runtime import SYSTEM_ID, minimum_balance
from aftermath.localnet.slots import Slots, TimeSource, time_of

log = logging.getLogger(__name__)

FAUCET_LAMPORTS = 500_000_000 * 10**9
FIRST_SLOT = 1


def faucet_of(genesis: Hash) -> Keypair:
    """Return the faucet's key. It need not be secret, because its lamports are worth nothing."""
    return Keypair.from_seed(hashlib.sha256(b"aftermath localnet faucet" + bytes(genesis)).digest())


def open_chain(
    directory: Path | None, time: TimeSource, slot_ms: int, programs: Sequence[tuple[Pubkey, Path]]
) -> tuple[Bank, Ledger | None]:
    """Return the bank and, if there is a directory, its ledger. Raises `LocalnetError`."""
    elves = [(key, read_program(path)) for key, path in programs]
    ledger = None if directory is None else Ledger(directory)
    try:
        recovered = None if ledger is None else ledger.recover()
        bank = _new(time, slot_ms) if recovered is None else _continued(recovered, time, slot_ms)
        for key, elf in elves:
            _load(bank, key, elf)
        if ledger is not None:
            ledger.start(bank.chain(), bank.accounts())
    except BaseException:
        if ledger is not None:
            ledger.close()
        raise
    return bank, ledger


def _new(time: TimeSource, slot_ms: int) -> Bank:
    genesis = Hash(os.urandom(32))
    now = time.now()
    bank = Bank(time, Slots(genesis, [Era(FIRST_SLOT, now, slot_ms)], now), History())
    bank.store([(faucet_of(genesis).pubkey(), Account(FAUCET_LAMPORTS, b"", SYSTEM_ID, False))])
    return bank


def _continued(recovered: Recovered, time: TimeSource, slot_ms: int) -> Bank:
    """Continue after the last slot that a client can have seen, at that slot's time or later."""
    chain = recovered.chain
    now = time.now()
    first = chain.slot + MARK_SLOTS + 1
    eras = [*chain.eras, Era(first, max(time_of(chain.eras, first) or 0.0, now), slot_ms)]
    bank = Bank(time, Slots(Hash(chain.genesis), eras, now), History(), chain.transactions)
    bank.store(recovered.accounts)
    bank.recall(recovered.history)
    log.info("ledger: slot %d, %d accounts", bank.slot, len(recovered.accounts))
    return bank


def _load(bank: Bank, program_id: Pubkey, elf: bytes) -> None:
    present = bank.account(program_data_address(program_id))
    if present is not None and (is_upgradeable(present) or elf_of(present) == elf):
        return
    if present is not None:
        log.info("program %s replaced by the given file", program_id)
    bank.store(preloaded(program_id, elf, minimum_balance))
