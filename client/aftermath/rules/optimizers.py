"""Names of the optimizers and the numbers that each uses.

Configs, options and errors derive the names from here. `optim.schema` has the settings of
optimizers whose members exchange results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from aftermath.rules.state import OptimizerKind

ExchangedName = Literal["distro", "sparseloco"]
"""Option names of the optimizers whose members exchange results."""
OptimizerName = Literal[ExchangedName, "adamw"]

_EVERY = ("kind", "clip_grad_norm", "weight_decay")
_COMPRESSED = (
    *_EVERY,
    "compression_decay",
    "compression_chunk",
    "compression_topk",
    "compression_topk_embeddings",
)


@dataclass(frozen=True)
class Known:
    """The names and fields of one optimizer."""

    shown: str
    """Name for people."""
    table: str
    """Table below [model.LLM.optimizer] in a config file."""
    option: OptimizerName
    used: tuple[str, ...]
    """Fields of `rules.model.Optimizer` that it uses."""

    @property
    def exchanged(self) -> bool:
        """Return whether members exchange results with it."""
        return self.option in get_args(ExchangedName)


OPTIMIZERS: Mapping[OptimizerKind, Known] = {
    OptimizerKind.ADAMW: Known("AdamW", "AdamW", "adamw", (*_EVERY, "beta1", "beta2", "eps")),
    OptimizerKind.DISTRO: Known("DisTrO", "Distro", "distro", (*_COMPRESSED, "quantize_1bit")),
    OptimizerKind.SPARSELOCO: Known(
        "SparseLoCo",
        "SparseLoCo",
        "sparseloco",
        (
            *_COMPRESSED,
            "value_bits",
            "inner_steps",
            "inner_optimizer",
            "divisor",
            "outer_lr",
            "orthogonal_lr",
        ),
    ),
}
EXCHANGED = {kind: known for kind, known in OPTIMIZERS.items() if known.exchanged}
EXCHANGED_SHOWN = " or ".join(known.shown for known in EXCHANGED.values())
EXCHANGED_TABLES = " or ".join(
    f"[model.LLM.optimizer.{known.table}]" for known in EXCHANGED.values()
)
