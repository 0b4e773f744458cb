"""Seeds that broke a law once: each is a kind of trouble that nobody had thought of, and is played again as it was."""

from __future__ import annotations

import pytest

from aftermath.sim.seed import try_seed


def _holds(seed: int, seconds: float) -> None:
    verdict = try_seed(seed, seconds)
    assert not verdict.broken, verdict.broken


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 40])
def test_an_epoch_that_a_member_did_not_finish_is_not_claimed(seed: int) -> None:
    """It is out of reach from its last rounds until another warm-up has been given up or paused."""
    _holds(seed, 100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 5])
def test_a_level_whose_last_holder_died_before_its_checkpoint_was_named_does_not_hold_up_the_run(seed: int) -> None:
    _holds(seed, 150)


@pytest.mark.slow
def test_attestations_that_take_long_to_read_are_not_those_of_another_round() -> None:
    """An outage of the node spans the read, and the chain has reused the place of that round meanwhile."""
    _holds(18, 75)
