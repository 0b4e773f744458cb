"""Ends a member whose training has diverged: several shares in a row have no finite loss."""

from __future__ import annotations

from aftermath.optim.clip import Diverged

MOST_IN_A_ROW = 5
"""Shares without a finite result in a row. One may be a rare batch; five show a broken model."""


class Divergence:
    """Counts a member's shares without a finite result, over all epochs."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def finite(self) -> None:
        """Record a trained share."""
        self._in_a_row = 0

    def not_finite(self, step: int, why: str) -> None:
        """Record a share without a finite result. Raises Diverged after too many in a row."""
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW:
            raise Diverged(
                f"the training has diverged: {self._in_a_row} shares in a row had no finite result, the last at step "
                f"{step} ({why})",
                "Ask the run's owner to pause the run, rewind it and lower base_lr with update-config",
            )
