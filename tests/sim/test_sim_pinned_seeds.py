"""Seeds that broke a law once: each is a kind of trouble that nobody had thought of, and is played again as it was.

A seed is worth its time only while it would still find what it stands for, and any change of what members send or when
may end that. So each is played twice: it breaks the law that is named with its mend taken back, and none with it. All
were found in runs with an overlap of 1.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aftermath.sim.seed import try_seed
from sim import reverted

Revert = Callable[[pytest.MonkeyPatch], None]


def _finds(seed: int, seconds: float, revert: Revert, law: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        revert(patch)
        found = try_seed(seed, seconds, overlap=1).broken
    assert law in found, f"seed {seed} no longer finds it, but {found or 'nothing'}: look for one that does, and pin it"
    verdict = try_seed(seed, seconds, overlap=1)
    assert not verdict.broken, verdict.broken


@pytest.mark.slow
def test_an_epoch_that_a_member_did_not_finish_is_not_claimed() -> None:
    """It is out of reach from its last rounds until another warm-up has been given up or paused.

    Held against: `Rounds._ended` accepting any halt after its epoch. The replica then lacks rounds, and is attested.
    """
    _finds(173, 140, reverted.an_epoch_is_over_when_the_next_has_not_begun, "cooldown step")


@pytest.mark.slow
def test_a_level_whose_last_holder_died_before_its_checkpoint_was_named_does_not_hold_up_the_run() -> None:
    """Held against: the program leaving such a level at a hash that nobody has, so that no tier 0 can ever begin."""
    _finds(37, 150, reverted.lost_levels_stay_lost, "has not taken part")
