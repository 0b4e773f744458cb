"""The digest of a run: SHA-256 over what every member told and what happened on chain, in canonical JSON.

Decided: directories are named relative to the simulation's own, since the same seed may be played anywhere.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from aftermath.sim.simulation import Simulation


class Chronicle:
    """Notes every transaction of a run, and at its end sums up."""

    def __init__(self, sim: Simulation) -> None:
        self._sim, self._digest = sim, hashlib.sha256()
        sim.chain.observers.append(self._note)

    def _note(self) -> None:
        run = self._sim.run
        self._take([self._sim.now, self._sim.chain.last_signer.hex(), run.seq, run.state, run.epoch, run.step])

    def _take(self, what: Any) -> None:
        text = json.dumps(what, sort_keys=True, separators=(",", ":"), default=_plain)
        self._digest.update(text.replace(str(self._sim.place), "").encode() + b"\n")

    def sum_up(self) -> str:
        """The digest; nothing is noted afterwards."""
        sim = self._sim
        for player in sim.players:
            for event in player.events:
                self._take([player.name, event])
        self._take([sorted(sim.record.settled.items()), sorted(sim.record.steps.items()), sim.record.dropped])
        self._take([list(sim.run.level_hashes), sim.run.step, sim.run.data_index, sim.model.checkpoint_step])
        return self._digest.hexdigest()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else repr(value)
