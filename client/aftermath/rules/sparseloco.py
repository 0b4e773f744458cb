"""SparseLoCo where nobody says otherwise: an empty table of the config file, and the optimizer's own settings.

Decided: few numbers are sent, which any line can carry; docs/experiments.md says what to choose with a faster one.
"""

from __future__ import annotations

from typing import Literal

InnerOptimizer = Literal["adamw", "muon"]
Divisor = Literal["keepers", "all", "root"]
"""By what a sum is divided: `optim.sparseloco` says what each is."""

INNER_STEPS = 4
INNER_OPTIMIZER: InnerOptimizer = "adamw"
TOPK = 32
CHUNK = 64
VALUE_BITS: Literal[1, 2] = 2
DECAY = 0.95
OUTER_LR = 1.0
DIVISOR: Divisor = "keepers"
ORTHOGONAL_LR = 0.0
WEIGHT_DECAY = 0.0
CLIP = 1.0
