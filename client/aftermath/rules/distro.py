"""Default settings of DisTrO in the laboratory. The config file of a run states all of them."""

from __future__ import annotations

TOPK = 8
DECAY = 0.999
