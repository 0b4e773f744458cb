"""What a member's dealings with the chain have cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChainSpend:
    """Transactions that landed, their fees in lamports, and the largest websocket message that carried a new state."""

    transactions: int
    lamports: int
    push_bytes_max: int
