"""What the run cost, read back from the chain itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aftermath.testnet.chain import ask

_PAGE = 1000


@dataclass(frozen=True)
class Costs:
    """All transactions that touched the run's account."""

    transactions: int
    lamports: int


def costs_of(rpc: str, account: str) -> Costs:
    """Count the account's transactions and add up their fees."""
    signatures: list[str] = []
    before: dict[str, Any] = {}
    while True:
        page: Any = ask(rpc, "getSignaturesForAddress", account, {"limit": _PAGE, "commitment": "confirmed", **before})
        signatures += [entry["signature"] for entry in page]
        if len(page) < _PAGE:
            break
        before = {"before": signatures[-1]}
    fees = 0
    for signature in signatures:
        config = {"encoding": "json", "commitment": "confirmed", "maxSupportedTransactionVersion": 0}
        found: Any = ask(rpc, "getTransaction", signature, config)
        fees += found["meta"]["fee"] if found else 0
    return Costs(len(signatures), fees)
