"""Test that a result counts only if a quorum of witnesses recorded the same one.

The old rule had an exploit: a member announced another result to each peer. All witnesses said that
it had delivered, no member could apply any of it, and its sequences were lost.
"""

import pytest

from aftermath.rules import assignment, bitmap
from programs.scenario import Scenario

EVERYBODY = range(4)


def result(seat: int, variant: int = 0) -> bytes:
    return bytes([seat + 1, variant]) * 16


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("variants", [(0, 0, 1, 1), (0, 1, 2, 3), (0, 0, 0, 1)])
def test_equivocated_result_returns_to_backlog(
    run: Scenario, overlap: int, variants: tuple[int, ...]
) -> None:
    """A share returns to the backlog if no quorum of witnesses recorded the same result for it."""
    run.owner("set_paused", True).ok()
    run.configure(overlap=overlap, init_min_clients=4).ok()
    run.owner("set_paused", False).ok()
    run.train(EVERYBODY)
    if overlap:
        run.witness_round(EVERYBODY, participation=0)
    attesting = run.run.current.height
    judged = run.run.round(run.run.config.judged(attesting))
    assert judged is not None
    liar = run.seat_of(3)
    honest = {seat: result(seat) for seat in bitmap.seats(judged.roster) if seat != liar}
    for index, variant in zip(EVERYBODY, variants, strict=True):
        run.witness(index, results=honest | {liar: result(liar, variant)}).ok()
    closed = run.run.round(attesting)
    assert closed is not None
    assert closed.attestations == 4
    attested_bits = run.world.record("Witnesses", run.run_id)["rounds"][0, run.run.ring(attesting)][
        "attestations"
    ]["participation"][:4]
    assert {bytes(one)[0] for one in attested_bits} == {0b1111}  # all witnesses recorded a delivery
    share = assignment.assign(judged, run.members)[liar]
    again = [*run.backlog, *run.run.current.redo]
    waiting = {index for interval in again for index in range(interval.start, interval.stop)}
    lost = {index for span in assignment.sequences(judged, share) for index in span}
    assert lost
    if variants.count(0) >= 3:
        assert bitmap.contains(closed.attested, liar)
        assert not waiting & lost
    else:
        assert closed.attested == judged.roster & ~(1 << liar)
        assert waiting >= lost
