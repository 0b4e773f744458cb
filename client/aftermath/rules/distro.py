"""DisTrO where the laboratory is told nothing else; a run's config file says all of it."""

from __future__ import annotations

TOPK = 8
DECAY = 0.999
