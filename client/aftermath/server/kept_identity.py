"""Keep identities for members of servers that are started without one.

A member that starts again needs its previous identity, because the run may wait for the member that
has the model. Members of one run on one machine need different identities: each tier and checkpoint
directory has its own, and a process locks its identity until it ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from itertools import count
from pathlib import Path

from solders.keypair import Keypair

from aftermath.base.files import state_directory
from aftermath.base.locks import hold
from aftermath.chain.wallet import Wallet, WalletError, create_identity, identity_secret

log = logging.getLogger(__name__)
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_locks: list[contextlib.ExitStack] = []
"""Locks that this process holds. The system releases them when it ends."""


def kept_identity(address: str, run_id: str, tier: int, checkpoint_dir: Path | None) -> Wallet:
    """Return the member's first kept identity that no other process uses.

    If all are in use, make and keep another one. If the directory is not writable, return a
    temporary identity after a warning. Raises WalletError if a file is not an identity.
    """
    # Each server has its own keys, so that no server sees a key that another one knows.
    host, _, port = address.rpartition(":")
    server = f"127.0.0.1:{port}" if host in _LOOPBACK else address
    checkpoints = checkpoint_dir.expanduser().absolute() if checkpoint_dir is not None else ""
    member = f"{server}\n{run_id}\n{tier}\n{checkpoints}"
    name = hashlib.sha256(member.encode()).hexdigest()[:16]
    directory = state_directory() / "identities" / name
    for number in count(1):
        path = directory / f"{number}.key"
        try:
            if not path.exists():
                create_identity(path)
            lock = hold(path.with_suffix(".lock"))
        except BlockingIOError:
            continue
        except (WalletError, OSError) as error:
            if path.exists():
                continue  # another process has just made it
            log.warning("this member gets a new identity at every start: %s", error)
            return Wallet(Keypair(), "made for this process")
        _locks.append(lock)
        return Wallet(Keypair.from_seed(identity_secret("", Wallet(Keypair()), path)), str(path))
    raise AssertionError("unreachable")
