"""A member ends with an error when its training has diverged."""

from __future__ import annotations

import pytest

from aftermath.member.rounds.epoch import MOST_IN_A_ROW, Divergence
from aftermath.optim.gradient_clip import Diverged


def test_consecutive_nonfinite_shares_end_member() -> None:
    divergence = Divergence()
    for step in range(1, 2 * MOST_IN_A_ROW):
        if step == MOST_IN_A_ROW:
            divergence.finite()
        else:
            divergence.not_finite(step, "the loss is nan")
    with pytest.raises(
        Diverged, match="5 shares in a row had no finite result, the last at step 10"
    ) as raised:
        divergence.not_finite(2 * MOST_IN_A_ROW, "the loss is nan")
    assert "base_lr" in str(raised.value.fix)
