"""A recipe: all values that determine the numbers of a training.

A recipe read back from JSON equals the original, because a saved state is bound to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.rules.assignment import batch_size, cut
from aftermath.rules.model import LrSchedule
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.run import Config
from aftermath.rules.schedules import first_epoch_rate


@dataclass(frozen=True)
class Batch:
    """Sequences per step. The number grows from `start` to `end` over `warmup_tokens` tokens."""

    start: int
    end: int
    warmup_tokens: int = 0


@dataclass(frozen=True)
class Recipe:
    """The model, the data and all settings of a training."""

    model: str
    data: str
    token_bytes: int
    shuffle_seed: str
    """Seed in hex. Empty reads the files in their stored order."""
    seq_len: int
    batch: Batch
    micro_batch: int
    steps: int
    schedule: LrSchedule
    cold_start_steps: int
    optimizer: str
    """The optimizer's kind."""
    settings: Optimizer
    tiers: tuple[int, ...]
    """Tier of each member."""
    levels: int
    """Number of tiers."""
    shares: tuple[int, ...]
    """Each member's share of the work, as a proportion."""
    overlap: int
    """Rounds by which results are applied late."""
    reject: int
    """Percentage of results to reject."""
    seed: int
    held_out: str
    eval_every: int
    """Steps between held-out losses. 0 measures only at the end."""
    eval_sequences: int
    source: str = ""
    """A data location as JSON. Empty if `data` names token files."""
    inner_state: str | None = None
    """`reset` if inner optimizers forget their state at each round, else None."""

    @property
    def agreed(self) -> Optimizer | None:
        """Return the settings that all members share. None for an optimizer of one machine."""
        return self.settings if self.settings.EXCHANGED else None

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, as in the first epoch of a run."""
        return first_epoch_rate(self.schedule, self.cold_start_steps, step)

    def batch_size(self, taken: int) -> int:
        """Return the number of sequences of a step, after `taken` new sequences were used."""
        rules = dict.fromkeys(Config.__slots__, 0) | {
            "max_seq_len": self.seq_len,
            "global_batch_size_start": self.batch.start,
            "global_batch_size_end": self.batch.end,
            "global_batch_size_warmup_tokens": self.batch.warmup_tokens,
        }
        return batch_size(Config(**rules), taken)


def advice(recipe: Recipe) -> list[str]:
    """Return a warning for each unusual choice in a recipe. None of them stops a training."""
    settings = recipe.agreed
    if settings is None:
        return []
    warnings = []
    smallest = min(share.len for share in cut(recipe.batch.start, list(recipe.shares)))
    if smallest < settings.inner_steps:
        warnings.append(
            f"the smallest share has {smallest} of the {recipe.batch.start} sequences of a step, so "
            f"its member takes {smallest} inner steps instead of {settings.inner_steps}. Raise "
            "--total-batch, or lower --inner-steps or --members"
        )
    if settings.LATE and recipe.overlap:
        warnings.append(f"--overlap is {recipe.overlap}: {settings.LATE}. Pass --overlap 0")
    return warnings
