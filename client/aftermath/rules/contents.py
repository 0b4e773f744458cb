"""The contents of each level at the start of an epoch: attested ones, else the checkpoint's.

They follow from the chain alone, so every member gets the same answer. Messages of members are not
used, because a member may tell each peer something different. While a level is not attested, the
program accepts no checkpoint, so the durable one stays the same until the epoch ends.
"""

from __future__ import annotations

from aftermath.rules import bitmap
from aftermath.rules.model import Model
from aftermath.rules.run import Run
from aftermath.rules.state import ModelSource

UNATTESTED = b"\xff" * 32
"""Hash of a level that was trained and on which its committee did not agree."""
_NO_HASH = bytes(32)


def attested(run: Run) -> dict[int, bytes]:
    """Return the hashes of the levels that are attested on chain."""
    hashes = enumerate(run.level_hashes)
    return {
        level: digest
        for level, digest in hashes
        if run.levels_attested >> level & 1 and digest != _NO_HASH
    }


def expected(run: Run, model: Model, level: int) -> bytes | None:
    """Return the hash of the contents that the epoch begins with, if the chain has it.

    The first checkpoint of a run may have no hash.
    """
    durable = model.checkpoint_hashes[level]
    return attested(run).get(level, durable if durable != _NO_HASH else None)


def unsaved_levels(run: Run, model: Model) -> int:
    """Return the levels that would be lost without their holders, as a bitmap.

    They are attested, and not in the checkpoint. All members begin an unattested level from the
    checkpoint, even if one holds a newer copy.
    """
    return bitmap.from_seats(
        level
        for level in range(run.levels)
        if run.levels_attested >> level & 1
        and run.level_hashes[level] != model.checkpoint_hashes[level]
    )


def unattested(run: Run) -> list[int]:
    """Return the levels that were trained but not attested, and begin with older contents."""
    if run.model_source is not ModelSource.PEERS:
        return []
    known = attested(run)
    return [
        level
        for level, digest in enumerate(run.level_hashes)
        if digest == UNATTESTED and level not in known
    ]
