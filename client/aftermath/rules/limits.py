"""The program's limits on what a run may be, for whoever checks before a fee is paid, and whoever reads what others
wrote. The tests put each before the compiled program.
"""

from __future__ import annotations

RUN_ID_BYTES = 32
MAX_LEVELS = 8
REPO_BYTES = 192
REVISION_BYTES = 64
LOCATION_BYTES = 192
MAX_TIME = 30 * 24 * 60 * 60
"""Seconds."""
MAX_SEQ_LEN = 1 << 24
MAX_WARMUP_TOKENS = 1 << 47
MAX_CHUNK = 4096
MAX_INNER_STEPS = 1024
MAX_OUTER_RATE = 64.0
"""Of the step along a mean, and of that along its polar factor."""
