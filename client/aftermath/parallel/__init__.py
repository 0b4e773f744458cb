"""One member on several devices: one process per device, connected by torch.distributed."""

from __future__ import annotations

MOST_RANKS = 64
"""Maximum number of ranks of one member."""
