"""What the user of a member asked for that changes nothing for anybody else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aftermath.member.rounds.evaluations import Evaluations
from aftermath.model.text import Prompt


@dataclass(frozen=True)
class Wishes:
    """Nothing of it, unless it is asked for."""

    hash_replicas: bool = False
    """Whether to hash the replica after every apply and report it as an event."""
    gradients_dir: Path | None = None
    """Where to keep the results that are applied."""
    optim_stats_steps: int = 0
    """After how many steps to report what the optimizer keeps and sends; 0: never."""
    optimizer_state_dir: Path | None = None
    """Where to keep what the optimizer knows, for a restart."""
    signed_dir: Path | None = None
    """Where to record which results are signed. None: a restarted member does not know."""
    downloads: int | None = None
    """How many results of others to fetch at once; None: all that there are."""
    share_delay: float = 0.0
    """Seconds to wait before each share, as a slower machine would take longer."""
    prompt: Prompt | None = None
    """What to continue while the run does not need this member."""
    evaluations: Evaluations | None = None
    """What to ask the model in that time."""
