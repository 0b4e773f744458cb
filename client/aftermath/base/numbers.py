"""The largest whole numbers that Solana's JSON, accounts and instructions have room for."""

from __future__ import annotations

U32_MAX, U64_MAX = (1 << 32) - 1, (1 << 64) - 1
