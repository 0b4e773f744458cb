"""People with unequal computers training one language model together, on Solana."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("aftermath")
