"""Deploy or upgrade a program through the RPC, without the Solana CLI.

The bytes are first written to a buffer account. Its key stays in a 0600 file until the deployment
succeeds, so an interrupted deployment continues: it reads the buffer and writes only missing parts.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from solana.rpc.commitment import Processed
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import CreateAccountParams, create_account

from aftermath.base.concurrency import both
from aftermath.base.files import cache_directory
from aftermath.chain import loader
from aftermath.chain.accounts import fetch, rent
from aftermath.chain.confirm import deliver_all
from aftermath.chain.dry_run import PlannedTransaction
from aftermath.chain.funding import transaction_fee
from aftermath.chain.node_client import AccountData
from aftermath.chain.sender import MAX_TRANSACTION, Sender, transaction_size
from aftermath.chain.wallet import load_wallet, write_key_file
from aftermath.coordinator.errors import CoordinatorError, Refused, Unavailable

CACHE = cache_directory("deploy")
MAX_PROGRAM = 10 << 20
WRITE_UNITS = 10_000
LAST_TRANSACTIONS = 4  # maximum transactions after the writes
ROUNDS = 20
SLOT_SECONDS = 60.0
ELF = b"\x7fELF"

Progress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all)."""


@dataclass(frozen=True)
class Deployment:
    """The outcome of a deployment: `action` is "deployed", "upgraded" or "unchanged"."""

    program_id: Pubkey
    action: str
    bytes: int
    signature: Signature | None


async def deploy_program(
    sender: Sender,
    program: Path,
    key: Keypair,
    *,
    cache: Path = CACHE,
    progress: Progress | None = None,
) -> Deployment:
    """Deploy the file `program` at the address of `key`, or upgrade the program there.

    Do nothing if the bytes are unchanged. Raises CoordinatorError if the file is not a program or
    the wallet may not upgrade it, Refused `InsufficientFunds` with the amount, and Unavailable.
    """
    elf = _read_program(program)
    deployed = await _deployed_program(sender, key.pubkey(), elf)
    if _is_deployed(deployed, elf):
        return Deployment(key.pubkey(), "unchanged", len(elf), None)
    path = _buffer_path(cache, key.pubkey(), elf)
    buffer = _buffer_key(path)
    await _fill_buffer(sender, buffer, elf, deployed, progress)
    if deployed is None:
        instructions = await _deploy_instructions(sender, key.pubkey(), buffer.pubkey(), len(elf))
        signature = await sender.send(instructions, signers=[key])
    else:
        signature = await _upgrade(sender, key.pubkey(), buffer.pubkey(), deployed, len(elf))
    path.unlink(missing_ok=True)
    return Deployment(
        key.pubkey(), "deployed" if deployed is None else "upgraded", len(elf), signature
    )


async def deployment_cost(
    sender: Sender, program: Path, key: Keypair, *, cache: Path = CACHE
) -> int:
    """Return the most lamports that `deploy_program` still needs.

    Lamports that an interrupted deployment already paid are not included.
    """
    elf = _read_program(program)
    deployed = await _deployed_program(sender, key.pubkey(), elf)
    if _is_deployed(deployed, elf):
        return 0
    path = _buffer_path(cache, key.pubkey(), elf)
    buffer = load_wallet(path).pubkey if path.exists() else None
    buffered = await _buffer_bytes(sender, buffer, len(elf)) if buffer is not None else None
    chunks = _chunks(sender, key.pubkey(), elf)
    return await _cost(
        sender, len(elf), 1 + len(chunks), deployed, buffer_exists=buffered is not None
    )


async def deployment_steps(
    sender: Sender, program: Path, key: Keypair
) -> tuple[list[PlannedTransaction], dict[Pubkey, int]]:
    """Return the transactions of `deploy_program`, and {address: bytes} of new accounts."""
    elf = _read_program(program)
    wallet = sender.wallet.pubkey
    address = key.pubkey()
    deployed = await _deployed_program(sender, address, elf)
    if _is_deployed(deployed, elf):
        return [], {}
    path = _buffer_path(CACHE, address, elf)
    buffer = load_wallet(path).pubkey if path.exists() else Keypair().pubkey()
    buffered = await _buffer_bytes(sender, buffer, len(elf))
    steps = []
    sizes = {}
    if buffered is None:
        steps.append(PlannedTransaction(await _buffer_start(sender, buffer, len(elf))))
        sizes[buffer] = loader.BUFFER_HEADER + len(elf)
    if missing_chunks := _missing_chunks(_chunks(sender, buffer, elf), buffered or bytes(len(elf))):
        steps.append(
            PlannedTransaction(
                [loader.write(buffer, wallet, *missing_chunks[0])],
                times=len(missing_chunks),
                units=WRITE_UNITS,
            )
        )
    if deployed is None:
        steps.append(
            PlannedTransaction(await _deploy_instructions(sender, address, buffer, len(elf)))
        )
        sizes[address] = loader.PROGRAM_SIZE
        return steps, sizes
    if (extra_bytes := len(elf) - len(deployed.data)) > 0:
        steps.append(
            PlannedTransaction([loader.extend(address, wallet, extra_bytes)], retried=True)
        )
        sizes[loader.programdata_address(address)] = loader.PROGRAMDATA_HEADER + len(elf)
    steps.append(PlannedTransaction([loader.upgrade(address, buffer, wallet, wallet)]))
    return steps, sizes


def _is_deployed(deployed: loader.StoredProgram | None, elf: bytes) -> bool:
    """Return whether the deployed program has the bytes of `elf`."""
    return (
        deployed is not None
        and deployed.data[: len(elf)] == elf
        and not any(deployed.data[len(elf) :])
    )


def _read_program(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_PROGRAM:
            raise CoordinatorError(
                f"{path} is larger than a program's limit of {MAX_PROGRAM} bytes"
            )
        elf = path.read_bytes()
    except OSError as error:
        raise CoordinatorError(f"cannot read the program {path}: {error.strerror}") from error
    if not elf.startswith(ELF):
        raise CoordinatorError(f"{path} is not a compiled program (.so)", "Build it: make programs")
    return elf


async def _deployed_program(
    sender: Sender, program: Pubkey, elf: bytes
) -> loader.StoredProgram | None:
    """Return the deployed program, or None. Raises CoordinatorError if we may not upgrade it."""
    _, account = await fetch(sender.pool, program)
    if account is None:
        return None
    if account.owner != loader.LOADER:
        return _built_in_program(account, program, elf)
    _, data = await fetch(sender.pool, loader.programdata_address(program))
    if data is None:
        raise CoordinatorError(
            f"program {program} was closed; its address cannot be used again",
            "Use a new program key",
        )
    stored = loader.parse_programdata(data)
    if stored.authority != sender.wallet.pubkey and not _is_deployed(stored, elf):
        raise CoordinatorError(
            f"program {program} can be upgraded by {stored.authority or 'nobody'} only, not by {sender.wallet.pubkey}",
            "Sign with that wallet (-w), or deploy under a new program key",
        )
    return stored


def _built_in_program(account: AccountData, program: Pubkey, elf: bytes) -> loader.StoredProgram:
    """Return a program whose loader has no upgrades, such as a local network's built-in one.

    Raises CoordinatorError if its bytes differ from `elf`.
    """
    if account.executable and account.data == elf:
        return loader.StoredProgram(None, elf)
    raise CoordinatorError(
        f"the account {program} of {account.owner} is not an upgradeable program",
        "Deploy under a new program key; a local network has the packaged programs built in",
    )


def _buffer_path(cache: Path, program: Pubkey, elf: bytes) -> Path:
    return cache / f"{program}-{hashlib.sha256(elf).hexdigest()[:16]}.json"


def _buffer_key(path: Path) -> Keypair:
    if not path.exists():
        write_key_file(path, Keypair())
    return load_wallet(path).keypair


async def _deploy_instructions(
    sender: Sender, program: Pubkey, buffer: Pubkey, size: int
) -> list[Instruction]:
    wallet = sender.wallet.pubkey
    account = CreateAccountParams(
        from_pubkey=wallet,
        to_pubkey=program,
        lamports=await rent(sender.pool, loader.PROGRAM_SIZE),
        space=loader.PROGRAM_SIZE,
        owner=loader.LOADER,
    )
    return [create_account(account), loader.deploy(wallet, program, buffer, wallet, size)]


async def _upgrade(
    sender: Sender, program: Pubkey, buffer: Pubkey, deployed: loader.StoredProgram, size: int
) -> Signature:
    """Swap the program for the buffer. The loader allows one change of a program per slot,
    extending included.
    """
    wallet = sender.wallet.pubkey
    changed_slot = deployed.slot
    if (extra_bytes := size - len(deployed.data)) > 0:
        await _wait_past_slot(sender, changed_slot)
        try:
            await sender.send([loader.extend(program, wallet, extra_bytes)])
        except Refused as refusal:
            if refusal.name != "InvalidInstructionData":
                raise
            await sender.send([loader.extend_unchecked(program, wallet, extra_bytes)])
        changed_slot = sender.slot
    await _wait_past_slot(sender, changed_slot)
    return await sender.send([loader.upgrade(program, buffer, wallet, wallet)])


async def _wait_past_slot(sender: Sender, slot: int) -> None:
    """Wait until the cluster is past `slot`. Raises Unavailable when it does not advance."""
    try:
        async with asyncio.timeout(SLOT_SECONDS):
            while (await sender.pool.call(lambda node: node.get_slot(Processed))).value <= slot:
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise Unavailable(
            f"the cluster did not advance past slot {slot} in {SLOT_SECONDS:.0f} s"
        ) from error


async def _fill_buffer(
    sender: Sender,
    buffer: Keypair,
    elf: bytes,
    deployed: loader.StoredProgram | None,
    progress: Progress | None,
) -> None:
    """Create the buffer if it is missing, and write to it until it holds `elf`."""
    chunks = _chunks(sender, buffer.pubkey(), elf)
    buffered = await _buffer_bytes(sender, buffer.pubkey(), len(elf))
    await sender.ensure_funds(
        await _cost(sender, len(elf), 1 + len(chunks), deployed, buffer_exists=buffered is not None)
    )
    if buffered is None:
        await sender.send(await _buffer_start(sender, buffer.pubkey(), len(elf)), signers=[buffer])
    for _ in range(ROUNDS):
        buffered = await _buffer_bytes(sender, buffer.pubkey(), len(elf)) or bytes(len(elf))
        missing_chunks = _missing_chunks(chunks, buffered)
        if progress is not None:
            progress(len(elf) - sum(len(chunk) for _, chunk in missing_chunks), len(elf))
        if not missing_chunks:
            return
        await sender.ensure_funds(
            await _cost(sender, len(elf), len(missing_chunks), deployed, buffer_exists=True)
        )
        await _write(sender, buffer.pubkey(), missing_chunks)
    raise Unavailable(
        f"{len(missing_chunks)} of {len(chunks)} writes did not land in {ROUNDS} rounds",
        "Run the command again to continue; a priority fee may help (--max-priority-fee)",
    )


async def _buffer_start(sender: Sender, buffer: Pubkey, length: int) -> list[Instruction]:
    wallet = sender.wallet.pubkey
    size = loader.BUFFER_HEADER + length
    lamports = await rent(sender.pool, size)
    account = CreateAccountParams(
        from_pubkey=wallet, to_pubkey=buffer, lamports=lamports, space=size, owner=loader.LOADER
    )
    return [create_account(account), loader.initialize_buffer(buffer, wallet)]


def _chunks(sender: Sender, buffer: Pubkey, elf: bytes) -> list[tuple[int, bytes]]:
    """Return (offset, bytes) parts of the program that fit one transaction each.

    Two bytes stay free for longer length prefixes.
    """
    empty = loader.write(buffer, sender.wallet.pubkey, 0, b"")
    length = MAX_TRANSACTION - transaction_size(sender.wallet, [empty]) - 2
    return [(at, elf[at : at + length]) for at in range(0, len(elf), length)]


def _missing_chunks(
    chunks: Sequence[tuple[int, bytes]], buffered: bytes
) -> list[tuple[int, bytes]]:
    return [
        (offset, chunk)
        for offset, chunk in chunks
        if buffered[offset : offset + len(chunk)] != chunk
    ]


async def _write(
    sender: Sender, buffer: Pubkey, missing_chunks: Sequence[tuple[int, bytes]]
) -> None:
    """Write missing parts under one blockhash. The next round retries those that do not land."""
    wallet = sender.wallet.pubkey
    instructions = [loader.write(buffer, wallet, offset, chunk) for offset, chunk in missing_chunks]
    (blockhash, height), price = await both(sender.blockhash(), sender.price(instructions[:1]))
    transactions = [
        sender.transaction([i], (), WRITE_UNITS, price, blockhash) for i in instructions
    ]
    for _ in range(await deliver_all(sender.pool, transactions, height)):
        sender.paid(1, WRITE_UNITS, price)


async def _buffer_bytes(sender: Sender, buffer: Pubkey, size: int) -> bytes | None:
    """Return the buffer's bytes, or None if there is no buffer yet.

    Raises CoordinatorError if the buffer belongs to another wallet.
    """
    _, account = await fetch(sender.pool, buffer, min_slot=sender.slot or None)
    if account is None:
        return None
    stored = loader.parse_buffer(account)
    if stored.authority != sender.wallet.pubkey or len(stored.data) != size:
        raise CoordinatorError(
            f"the buffer {buffer} of an earlier deployment belongs to {stored.authority}",
            f"Sign with that wallet, or delete the buffer's key file in {CACHE}",
        )
    return stored.data


async def _cost(
    sender: Sender,
    size: int,
    writes: int,
    deployed: loader.StoredProgram | None,
    *,
    buffer_exists: bool,
) -> int:
    """Return the lamports that the rest of a deployment needs.

    They cover the fees of `writes` and the last transactions, and the rent of new or larger
    accounts.
    """
    price = await sender.price([loader.write(sender.wallet.pubkey, sender.wallet.pubkey, 0, b"")])
    needed = (writes + LAST_TRANSACTIONS) * transaction_fee(2, WRITE_UNITS, price)
    if not buffer_exists:
        needed += await rent(sender.pool, loader.BUFFER_HEADER + size)
    if deployed is None:
        return needed + await rent(sender.pool, loader.PROGRAM_SIZE)
    longer = max(0, size - len(deployed.data))
    return needed + await rent(sender.pool, longer) - await rent(sender.pool, 0)
