"""Measure signed transfers per second through the HTTP API of the embedded localnet.

python benchmarks/localnet.py [--transactions 20000] [--connections 32] [--json]
"""

# How it is measured:
# - The server is a process of its own. Transactions are signed before the clock starts, one
#   request each (with preflight, as clients send by default), over keep-alive connections.
# - There are two runs: in memory, and with a ledger that writes each answer to the disk.
# - `ratio` is HTTP against LiteSVM, which verifies and executes the same transfers in one loop,
#   in this run on this machine.

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from solders.hash import Hash
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

PAYERS = 16
LAMPORTS = 10**12
FIRST_AMOUNT = 10**6  # above the rent minimum of the receivers


def signed(payers: list[Keypair], blockhash: Hash, count: int) -> list[bytes]:
    """Return `count` distinct signed transfers in wire form, spread over the payers."""
    to = Pubkey.new_unique()
    wires = []
    for number in range(count):
        payer = payers[number % len(payers)]
        move = transfer(
            TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=FIRST_AMOUNT + number)
        )
        message = Message.new_with_blockhash([move], payer.pubkey(), blockhash)
        wires.append(bytes(VersionedTransaction(message, [payer])))
    return wires


def direct(count: int) -> float:
    """Return the transfers per second of LiteSVM alone, with signatures verified."""
    payers = [Keypair() for _ in range(PAYERS)]
    svm = LiteSVM().with_transaction_history(0)
    for payer in payers:
        svm.airdrop(payer.pubkey(), LAMPORTS)
    transactions = [
        VersionedTransaction.from_bytes(wire)
        for wire in signed(payers, svm.latest_blockhash(), count)
    ]
    start = time.perf_counter()
    for transaction in transactions:
        svm.send_transaction(transaction)
    return count / (time.perf_counter() - start)


@contextmanager
def server(*arguments: str) -> Iterator[str]:
    """Start a localnet process and yield its RPC URL."""
    command = [sys.executable, "-m", "aftermath.localnet", "--rpc-port", "0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = re.search(r"rpc=(\S+)", process.stdout.readline())
            if ready is None:
                raise SystemExit(
                    "the localnet did not start; run `python -m aftermath.localnet` to see why"
                )
            yield ready.group(1)
        finally:
            process.terminate()


def call(url: str, method: str, *params: Any) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)["result"]


async def flood(url: str, wires: list[bytes], connections: int) -> float:
    """Send every transaction, and return the seconds until the last answer."""
    place = urlparse(url)
    requests = [_request(place.netloc, wire) for wire in wires]
    start = time.perf_counter()
    await asyncio.gather(
        *(
            _connection(place.hostname, place.port, requests[first::connections])
            for first in range(connections)
        )
    )
    return time.perf_counter() - start


def _request(host: str, wire: bytes) -> bytes:
    params = [base64.b64encode(wire).decode(), {"encoding": "base64"}]
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "sendTransaction", "params": params}
    ).encode()
    head = (
        "POST / HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*head, "", "")).encode() + body


async def _connection(host: str | None, port: int | None, requests: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    for request in requests:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        assert length is not None
        answer = await reader.readexactly(int(length.group(1)))
        if b'"error"' in answer:
            raise SystemExit(f"the localnet refused a transfer: {answer.decode()}")
    writer.close()


def through_http(count: int, connections: int, *arguments: str) -> float:
    """Return the transfers per second of a new localnet, after checking that all have landed."""
    with server(*arguments) as url:
        payers = [Keypair() for _ in range(PAYERS)]
        for payer in payers:
            call(url, "requestAirdrop", str(payer.pubkey()), LAMPORTS)
        before = call(url, "getTransactionCount")
        wires = signed(
            payers, Hash.from_string(call(url, "getLatestBlockhash")["value"]["blockhash"]), count
        )
        seconds = asyncio.run(flood(url, wires, connections))
        landed = call(url, "getTransactionCount") - before
        if landed != count:
            raise SystemExit(f"{landed} of {count} transfers landed")
    return count / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--transactions", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    alone = direct(given.transactions)
    memory = through_http(given.transactions, given.connections)
    with tempfile.TemporaryDirectory() as folder:
        durable = through_http(
            given.transactions, given.connections, "--ledger", str(Path(folder) / "ledger")
        )
    report = {
        "transactions": given.transactions,
        "connections": given.connections,
        "litesvm_per_second": round(alone),
        "http_per_second": round(memory),
        "http_ledger_per_second": round(durable),
        "ratio": round(memory / alone, 3),
        "ratio_ledger": round(durable / alone, 3),
    }
    if given.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
