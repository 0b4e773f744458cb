"""One member on several devices: a process each, which the member's own process drives by
torch.distributed.
"""

from __future__ import annotations

MOST_RANKS = 64
"""Of one member."""
