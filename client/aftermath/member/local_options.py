"""Optional local features of a member, with no effect on the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aftermath.member.rounds.evaluations import Evaluations
from aftermath.model.text import Prompt


@dataclass(frozen=True)
class LocalOptions:
    """Local options. All are off by default."""

    hash_replicas: bool = False
    """Whether to hash the replica after every apply and report it as an event."""
    gradients_dir: Path | None = None
    """Directory for the applied results."""
    optim_stats_steps: int = 0
    """Steps between reports of optimizer metrics. 0 disables them."""
    optimizer_state_dir: Path | None = None
    """Directory for the optimizer state, for a restart."""
    signed_dir: Path | None = None
    """Directory for the record of signed results. None keeps it in memory only."""
    audit_dir: Path | None = None
    """Directory for large weights and states that audits need, and for fetched states.

    None keeps the former in memory, and the latter in the system's temporary directory.
    """
    downloads: int | None = None
    """Most results of others to fetch at once. None: no limit."""
    share_delay: float = 0.0
    """Seconds to wait instead of training a share, to test without its cost. 0: train."""
    confirms_loss: bool = False
    """Whether a Ctrl-C that would lose trained steps asks for a second one."""
    prompt: Prompt | None = None
    """Prompt to continue while the run does not need this member."""
    evaluations: Evaluations | None = None
    """Evaluations to run while the run does not need this member."""
