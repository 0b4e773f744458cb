"""What every command and every member takes where an option about the chain was not given."""

from __future__ import annotations

RPC = "http://127.0.0.1:8899"
PRIORITY_FEE = 10_000
"""The highest, in micro-lamports per compute unit."""
