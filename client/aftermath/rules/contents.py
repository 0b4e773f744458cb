"""What an epoch begins with: of every level the contents that its members attested, else the durable checkpoint's.

Decided: the chain alone says so, and says the same to everybody. A level that was trained and that too few attested, or
of which they said different things, is no new truth, whoever holds it and however many agree: what members tell each
other cannot decide it, since one of them may tell each something else. While a level is not attested no checkpoint can
be named, so the durable one is the same to the end of the epoch.
"""

from __future__ import annotations

from aftermath.rules.model import Model
from aftermath.rules.run import Run
from aftermath.rules.state import ModelSource

UNATTESTED = b"\xff" * 32
"""Stands for the contents of a level that was trained and not attested since."""
_NO_HASH = bytes(32)


def attested(run: Run) -> dict[int, bytes]:
    """The levels for which the chain vouches, with their hashes."""
    hashes = enumerate(run.level_hashes)
    return {level: digest for level, digest in hashes if run.levels_attested >> level & 1 and digest != _NO_HASH}


def expected(run: Run, model: Model, level: int) -> bytes | None:
    """The hash of what the epoch begins with, if the chain has it: a run's first checkpoint may have none."""
    durable = model.checkpoint_hashes[level]
    return attested(run).get(level, durable if durable != _NO_HASH else None)


def unattested(run: Run) -> list[int]:
    """The levels that were trained since they were attested, so that an epoch begins with older ones."""
    if run.model_source is not ModelSource.PEERS:
        return []
    known = attested(run)
    return [level for level, digest in enumerate(run.level_hashes) if digest == UNATTESTED and level not in known]
