"""The cost of a transaction: 5,000 lamports per signature plus its priority fee.

The sum follows agave's fee calculation with the defaults of SIMD-0170. LiteSVM charges signatures
only, so the runtime adds the priority fee from here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from solders.message import Message, MessageV0
from solders.pubkey import Pubkey

LAMPORTS_PER_SIGNATURE = 5000
MAX_COMPUTE_UNITS = 1_400_000
DEFAULT_UNITS = 200_000
BUILTIN_UNITS = 3_000
RECENT_FEE_SLOTS = 150

COMPUTE_BUDGET_ID = Pubkey.from_string("ComputeBudget111111111111111111111111111111")
_BUILTINS = frozenset(
    Pubkey.from_string(text)
    for text in (
        "11111111111111111111111111111111",
        "ComputeBudget111111111111111111111111111111",
        "BPFLoader1111111111111111111111111111111111",
        "BPFLoader2111111111111111111111111111111111",
        "BPFLoaderUpgradeab1e11111111111111111111111",
        "Vote111111111111111111111111111111111111111",
        "Stake11111111111111111111111111111111111111",
        "AddressLookupTab1e1111111111111111111111111",
    )
)
_SET_LIMIT = 2
_SET_PRICE = 3


@dataclass(frozen=True)
class Fee:
    """Lamports for signatures and for priority; `price` is micro-lamports per compute unit."""

    signatures: int
    priority: int
    price: int

    @property
    def total(self) -> int:
        return self.signatures + self.priority


def fee_of(message: Message | MessageV0) -> Fee:
    """Return the fee of a message; priority = ceil(price x compute limit / 10^6) lamports."""
    signatures = LAMPORTS_PER_SIGNATURE * message.header.num_required_signatures
    keys = message.account_keys
    if COMPUTE_BUDGET_ID not in keys:
        return Fee(signatures, 0, 0)
    limit: int | None = None
    price = default = 0
    for instruction in message.instructions:
        index = instruction.program_id_index
        program = keys[index] if index < len(keys) else None
        default += BUILTIN_UNITS if program in _BUILTINS else DEFAULT_UNITS
        if program != COMPUTE_BUDGET_ID or not instruction.data:
            continue
        value = int.from_bytes(instruction.data[1:9], "little")
        if instruction.data[0] == _SET_LIMIT:
            limit = value
        elif instruction.data[0] == _SET_PRICE:
            price = value
    units = min(default if limit is None else limit, MAX_COMPUTE_UNITS)
    return Fee(signatures, -(-price * units // 1_000_000), price)


class RecentFees:
    """The lowest landed priority price of each of the last 150 slots, in all and per locked
    account.
    """

    def __init__(self) -> None:
        self._slots: deque[tuple[int, dict[Pubkey, int]]] = deque(maxlen=RECENT_FEE_SLOTS)

    def note(self, slot: int, price: int, writable: list[Pubkey]) -> None:
        if not self._slots or self._slots[-1][0] != slot:
            self._slots.append((slot, {}))
        lowest = self._slots[-1][1]
        for key in writable:
            if price < lowest.get(key, price + 1):
                lowest[key] = price

    def at(self, current: int, accounts: list[Pubkey]) -> list[tuple[int, int]]:
        """Return (slot, micro-lamports per compute unit), oldest first.

        With accounts, the price is the one that locked all of them.
        """
        slots_with_fees = dict(self._slots)
        listed = []
        for slot in range(max(1, current - RECENT_FEE_SLOTS), current):
            lowest = slots_with_fees.get(slot, {})
            if accounts:
                price = max((lowest.get(key, 0) for key in accounts), default=0)
            else:
                price = min(lowest.values(), default=0)
            listed.append((slot, price))
        return listed
