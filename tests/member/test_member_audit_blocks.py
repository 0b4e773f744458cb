"""Test an audit of a member that falsifies a block of its state, which no juror draws itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.audit.claim import RESIDUAL
from aftermath.member.rounds import judge
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.state_merkle import StateOutline
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.test_member_audits import RULES, SPARSELOCO, seat_of, verdicts

FALSE = f"{RESIDUAL}0.0"
TRUE = f"{RESIDUAL}2.0"
"""Tensors of one block each: of the feed-forward layer, and of the embedding."""


def falsify(sim_member: SimMember) -> None:
    """Make a member double the pseudo-gradient of the feed-forward layer."""
    assert sim_member.member is not None
    replica = sim_member.member._replica
    assert replica is not None
    honest = replica.optimizer.encode

    def encode(made: PseudoGradient) -> dict[int, bytes]:
        tensors = {
            name: 2 * tensor if "mlp" in name else tensor for name, tensor in made.tensors.items()
        }
        return honest(PseudoGradient(tensors, made.factor, made.loss, made.losses))

    replica.optimizer.encode = encode  # type: ignore[method-assign]


@pytest.mark.slow
def test_block_that_only_auditor_drew_convicts_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members: list[SimMember] = []

    def drawn(state_outline: StateOutline, seed: bytes) -> list[int]:
        """Draw the false block for auditors, and another one for jurors."""
        del seed
        is_disputed = any(one.saw("case_opened") for one in members)
        name = TRUE if is_disputed else FALSE
        return [
            index for index in range(state_outline.count) if state_outline.place(index).name == name
        ]

    monkeypatch.setattr(judge, "drawn_residual_blocks", drawn)

    async def story(sim: SimulatedRun) -> None:
        members.extend(sim.add(0) for _ in range(5))
        await sim.until_round(1)
        falsify(members[-1])

        def is_decided(run: Run) -> bool:
            return bool(sim.members.mask(MemberState.EJECTED)) or run.state is RunState.FINISHED

        await sim.until(is_decided)

    sim = play(tmp_path, story, optimizer=SPARSELOCO, **RULES)
    seat = seat_of(sim, sim.sim_members[-1])
    assert {event["seat"] for event in verdicts(sim, verdict="mismatch")} == {seat}
    assert sim.members.mask(MemberState.EJECTED) == 1 << seat
