"""Default settings of SparseLoCo, for empty config tables and the optimizer itself.

The defaults send few numbers, for slow connections. docs/experiments.md says what to choose for
faster ones.
"""

from __future__ import annotations

from typing import Literal

InnerOptimizerName = Literal["adamw", "muon"]
DivisorName = Literal["keepers", "all", "root"]
"""Divisor of the sum of a coefficient's values.

`keepers`: members that sent the coefficient. `all`: all results of its level. `root`: the geometric
mean of both.
"""

INNER_STEPS = 4
INNER_OPTIMIZER: InnerOptimizerName = "adamw"
TOPK = 32
CHUNK = 64
VALUE_BITS: Literal[1, 2] = 2
DECAY = 0.95
OUTER_LR = 1.0
DIVISOR: DivisorName = "keepers"
ORTHOGONAL_LR = 0.0
WEIGHT_DECAY = 0.0
CLIP = 1.0
