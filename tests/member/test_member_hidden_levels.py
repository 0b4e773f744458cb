"""Where few of a level's holders are witnesses, one of them keeps it from no other holder: all witnesses have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.sim.simulation import Simulation, play
from member.saboteurs import hides, hides_from, sabotage

TIERS = (0, 0, 1, 1, 2, 2, 2)
WITNESSES = 4


def _epoch(place: Path, lie: str, overlap: int) -> Simulation:
    """Member 0 lies from round 1 on; member 1 holds level 0 too, and is a witness in some rounds."""

    async def story(sim: Simulation) -> None:
        liar, holder, *_ = [sim.add(tier) for tier in TIERS]
        await sim.until_round(1)
        sabotage(liar, hides(liar, 0) if lie == "from all" else hides_from(liar, 0, [holder]))
        await sim.until(lambda run: run.epoch == 1)

    rules = {"init_min_clients": len(TIERS), "min_clients": WITNESSES, "witness_nodes": WITNESSES, "overlap": overlap}
    return play(place, story, rounds_per_epoch=10, **rules)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("lie", ["from all", "from the other holder"])
def test_a_level_hidden_where_no_other_holder_is_a_witness_pushes_nobody_out(
    tmp_path: Path, lie: str, overlap: int
) -> None:
    sim = _epoch(tmp_path, lie, overlap)
    liar, *honest = sim.players
    assert sim.compare(honest) > 0
    for player in honest:
        assert [e["epoch"] for e in player.saw("cooldown")] == [0], player.name
        assert not player.saw("warning"), player.name
    assert {sim.members.seats[seat].signer for _, seat in sim.record.dropped} <= {bytes(liar.key.pubkey())}
    assert sim.run.lost_sequences == 0
    heights = {e["height"] for e in honest[0].saw("applied")}
    assert len(heights) == 10, "the other holder applied all rounds"
