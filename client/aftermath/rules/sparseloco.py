"""SparseLoCo where nobody says otherwise: an empty table of the config file, and the optimizer's own settings.

Decided
- Few numbers are sent, which any line can carry; docs/experiments.md says what to choose with a faster one.
- The words of files, options and schemas are these; the program's numbers have their names (`rules.state`).
"""

from __future__ import annotations

from typing import Literal

InnerOptimizerName = Literal["adamw", "muon"]
DivisorName = Literal["keepers", "all", "root"]
"""By what the sum of a coefficient's values is divided: the number of members that kept the coefficient, that of all
results of its level, or the square root of both numbers' product.
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
