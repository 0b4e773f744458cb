"""Members that lie to their peers: refused by every honest one, dropped by the chain, and no replica is harmed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from xprocess import XProcess

from aftermath.p2p.transport import short
from aftermath.rules.accounts import Run
from aftermath.rules.bitmap import slots
from aftermath.rules.state import MemberState, RunState
from e2e.company import Company, Player
from e2e.material import Material
from e2e.processes import Running

pytestmark = pytest.mark.slow
ROUNDS = 6
# Lie -> the epoch in which it is told, and what an honest member says of it.
LIES: dict[str, tuple[int, str]] = {
    "wrong_hash": (0, "sent bytes with another"),
    "oversized": (0, "not what it was assigned"),
    "not_a_number": (1, "zero, too small or not finite"),
    "out_of_range": (1, "no set of at most"),
    "another_share": (2, "not what it was assigned"),
    "nested": (2, "not signed by the key it names"),
}
EPOCHS = 3


def cast(company: Company, xprocess: XProcess) -> dict[str, Player]:
    """A process with a member of tier 0 for every lie."""
    liars = {lie: company.player(0) for lie in LIES}
    parts = [part(company, lie, player) for lie, player in liars.items()]
    script = company.place / "cast.json"
    script.write_text(json.dumps(parts))
    process = Running(xprocess, "hostile", [sys.executable, Path(__file__).with_name("hostile.py"), script])
    for player in liars.values():
        player.processes.append(process)
    return liars


def part(company: Company, lie: str, player: Player) -> dict[str, Any]:
    """The settings of `train` of a liar, as its command line would give them."""
    words = [str(word) for word in company.line(player)[1:]]
    pairs = zip(words[::2], words[1::2], strict=True)
    settings = {name.lstrip("-").replace("-", "_"): value for name, value in pairs}
    settings["wallet_private_key_path"] = settings.pop("w")
    settings.pop("checkpoint_dir")  # only the honest member's is kept
    return {"lie": lie, "epoch": LIES[lie][0], "settings": settings}


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_lies_are_refused_and_the_liars_dropped(company: Company, material: Material, xprocess: XProcess) -> None:
    batch = {"global_batch_size_start": 32, "global_batch_size_end": 32}
    rules = {"init_min_clients": 3 + len(LIES), "rounds_per_epoch": ROUNDS, "total_steps": ROUNDS * EPOCHS}
    config = material.config(company.place, one_bit=False, max_round_train_time=12, **rules, **batch)
    company.configure(config)
    liars = cast(company, xprocess)
    honest = company.start_three()
    dropped: set[int] = set()

    def finished(run: Run) -> bool:
        dropped.update(slots(company.members.mask(MemberState.DROPPED)))
        return run.state is RunState.FINISHED

    company.until_run(finished, "the run finishes in spite of them")
    assert [player.process.wait() for player in honest] == [0, 0, 0]

    place = {player.name: player.diary.saw("joined")[0]["slot"] for player in company.players}
    for lie, liar in liars.items():
        slot, why = place[liar.name], LIES[lie][1]
        peer = short(company.members.slots[slot].p2p)
        for player in honest:
            heard = player.diary.saw("refused", slot=slot) + player.diary.saw("fetch_failed", slot=slot)
            heard += player.diary.saw("refused", peer=peer)
            assert any(why in event["why"] for event in heard), (lie, player.name, heard)
        assert slot in dropped, f"{lie} was not dropped"
    assert not dropped & {place[player.name] for player in honest}
    trained = [len(player.diary.saw("applied")) for player in honest]
    assert trained == [ROUNDS * EPOCHS] * 3
    company.players = honest
    assert company.compare_replicas() == 3 * (ROUNDS * EPOCHS + EPOCHS)
    assert company.run.lost_sequences == 0
