"""Invariants of a simulated run, checked while it runs and at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aftermath.coordinator.errors import Unavailable
from aftermath.member.announced_results import CLOSED_ON
from aftermath.model.checkpoint import load
from aftermath.model.json_documents import CheckpointError
from aftermath.model.momentum_file import read_momentum
from aftermath.model.segments import level_hash
from aftermath.rules.state import CheckpointKind, RunState
from aftermath.sim.chain_invariants import InvariantBroken, state_of
from aftermath.sim.faults import Faults
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun

PACE = 0.5


class Invariants:
    """Watches one run.

    Safety: all replicas are equal after every step. A member ends only if its chain was
    unreachable. Members without a fault are not dropped, and witnesses without a fault do not miss
    their results. The checkpoint on chain can be loaded and has the hashes on chain.

    Liveness: after `patience` seconds without faults, the run makes at least `PACE` of its
    undisturbed pace, and every member takes part.
    """

    def __init__(self, sim: SimulatedRun, faults: Faults) -> None:
        self._sim = sim
        self._faults = faults
        self._dropped = 0
        self._unjust: list[str] = []
        self._loaded: tuple[str, int, bytes] | None = None
        self._compared = dict.fromkeys((sim_member.name for sim_member in sim.sim_members), 0)
        self._replicas: dict[tuple[Any, ...], tuple[str, str]] = {}
        sim.chain.observers.append(self._note_drops)

    def _note_drops(self) -> None:
        for epoch, seat in self._sim.record.dropped[self._dropped :]:
            signer = self._sim.members.seats[seat].signer
            name = next(
                sim_member.name
                for sim_member in self._sim.sim_members
                if sim_member.wallet == signer
            )
            if not self._faults.absences(name, self._sim.now):
                self._unjust.append(f"{name} was dropped from epoch {epoch} without a reason")
        self._dropped = len(self._sim.record.dropped)

    def check_now(self) -> None:
        """Check the invariants that hold at any time. Raises InvariantBroken."""
        if self._unjust:
            raise InvariantBroken(self._unjust[0])
        for sim_member in self._sim.sim_members:
            if (
                not sim_member.alive
                and sim_member.task is not None
                and not sim_member.task.cancelled()
            ):
                self._check_end(sim_member, sim_member.task.exception())
        for sim_member in self._sim.sim_members:
            self._check_closed_on(sim_member)
            self._check_replica(sim_member)
        self._check_checkpoint()

    def _check_closed_on(self, sim_member: SimMember) -> None:
        """Check the results that arrived too late for a member since the last call."""
        for event in sim_member.events[self._compared[sim_member.name] :]:
            if (
                event["kind"] != "refused"
                or event["why"] != CLOSED_ON
                or self._faults.absences(sim_member.name, event["t"])
            ):
                continue
            signer = self._sim.members.seats[event["seat"]].signer
            name = next((one.name for one in self._sim.sim_members if one.wallet == signer), "")
            if name and not self._faults.absences(name, event["t"]):
                raise InvariantBroken(
                    f"{sim_member.name} got the result of {name} after it had closed round {event['height']}"
                )

    def _check_replica(self, sim_member: SimMember) -> None:
        """Compare the hashes that holders of each level reported since the last call."""
        for event in sim_member.events[self._compared[sim_member.name] :]:
            for level, digest in event.get("hashes", {}).items():
                key = *state_of(event), level
                first, expected = self._replicas.setdefault(key, (sim_member.name, digest))
                if digest != expected:
                    raise InvariantBroken(
                        f"{event['kind']} step {key[1]}: {sim_member.name} and {first} differ in level {level}"
                    )
        self._compared[sim_member.name] = len(sim_member.events)

    def _check_end(self, sim_member: SimMember, error: BaseException | None) -> None:
        if error is None and self._sim.run.state is not RunState.FINISHED:
            raise InvariantBroken(f"{sim_member.name} ended before the run was finished")
        excused = isinstance(error, Unavailable) and self._faults.absences(
            sim_member.name, self._sim.now
        )
        if error is not None and not excused:
            raise InvariantBroken(
                f"{sim_member.name} ended with {type(error).__name__}: {error}"
            ) from error

    def _check_checkpoint(self) -> None:
        model = self._sim.model
        if model.checkpoint_step == 0 or model.checkpoint.kind is not CheckpointKind.LOCAL:
            return
        path = Path(model.checkpoint.repo)
        description = f"the checkpoint of step {model.checkpoint_step} on chain"
        try:
            identity = (
                str(path),
                (path / "model.safetensors").stat().st_ino,
                b"".join(model.checkpoint_hashes),
            )
            if identity == self._loaded:
                return
            shared = self._sim.schema.shared
            tensors = load(path, 0, "auto")
            tensors |= read_momentum(path, shared.config, shared.momentum_shapes(0))
        except (OSError, CheckpointError) as error:
            raise InvariantBroken(f"{description} cannot be loaded: {error}") from error
        for level in range(shared.levels):
            if level_hash(tensors, shared, level) != model.checkpoint_hashes[level]:
                raise InvariantBroken(
                    f"{description} has another level {level} than the one on chain"
                )
        self._loaded = identity

    def check_presence(self, start: float) -> None:
        """Check that every member has made a step since `start`. Raises InvariantBroken."""
        for sim_member in self._sim.sim_members:
            if not any(
                event["kind"] == "applied" and event["t"] >= start for event in sim_member.events
            ):
                seconds = self._sim.now - start
                raise InvariantBroken(
                    f"{sim_member.name} has not taken part for {seconds:.0f} s, although nothing prevents it"
                )


def check_pace(steps: float, undisturbed: float) -> None:
    """Compare steps per second with the undisturbed run. Raises InvariantBroken."""
    if steps < PACE * undisturbed:
        raise InvariantBroken(
            f"{3600 * steps:.0f} steps per hour, where the undisturbed run makes {3600 * undisturbed:.0f}"
        )
