"""Default values of the options that name a cluster."""

from __future__ import annotations

RPC = "http://127.0.0.1:8899"
PRIORITY_FEE = 10_000
"""Default of --max-priority-fee, in micro-lamports per compute unit."""
