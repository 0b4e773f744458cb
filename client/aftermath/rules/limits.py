"""The program's limits on a run's numbers.

Clients check them before they pay a fee, and when they read data from others. A test compares each
with the compiled program.
"""

from __future__ import annotations

RUN_ID_BYTES = 32
MAX_LEVELS = 8
REPO_BYTES = 192
REVISION_BYTES = 64
LOCATION_BYTES = 192
SPEC_BYTES = 4096
"""Maximum size of the training spec (`config.spec`)."""
MAX_TIME = 30 * 24 * 60 * 60
"""Longest duration in seconds."""
MAX_SEQ_LEN = 1 << 24
MAX_WARMUP_TOKENS = 1 << 47
MAX_CHUNK = 4096
MAX_INNER_STEPS = 1024
MAX_OUTER_RATE = 64.0
"""Highest rate of the step along a mean, and of the step along its polar factor."""
MAX_OUTER_MOMENTUM = 0.99
"""Highest outer momentum. The bounds in `optim.outer_momentum` depend on it."""
