"""False Hub checkpoints: a tier-0 member that finished an epoch may name any, with the right
hashes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.model.json_documents import CheckpointError, HubAway
from aftermath.rules.model import Checkpoint
from aftermath.rules.state import CheckpointKind, RunState
from aftermath.sim.setup import RUN_ID
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.repository import Repository
from member.short_runs import ALONE


def _warned(sim_member: SimMember) -> list[str]:
    return [event["message"] for event in sim_member.saw("warning")]


def _name_falsely(sim: SimulatedRun, repo: str) -> None:
    """Record a Hub location on chain for the model that the members attested last."""
    hashes = sim.run.level_hashes
    sim.chain.send(
        [sim.ix.checkpoint(RUN_ID, kind=CheckpointKind.HUB, repo=repo, revision="", hashes=hashes)],
        sim.owner,
    )


@pytest.mark.slow
def test_next_directory_replaces_false_place_and_feeds_restart(tmp_path: Path) -> None:
    """The chain records the honest member's later directories. They stay, and the run restarts from
    them.
    """

    async def scenario(sim: SimulatedRun) -> None:
        honest = sim.add(0)
        directory = sim.place / "kept" / "m0"
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        _name_falsely(sim, "/etc")
        await sim.until(lambda run: run.epoch == 5 and run.state is RunState.ROUND_TRAIN)
        steps = ("sim-step12", "sim-step15", "sim-step6", "sim-step9")
        assert tuple(sorted(path.name for path in directory.iterdir())) == steps
        assert sim.model.checkpoint.repo == str(directory / "sim-step15")
        assert not _warned(honest)
        await sim.kill(honest)
        honest.events.clear()
        sim.start(honest)
        await sim.until(lambda run: bool(honest.saw("model")) and run.state is RunState.ROUND_TRAIN)
        assert [event["source"] for event in honest.saw("model")] == ["the checkpoint"]
        assert not [message for message in _warned(honest) if "cannot get the model" in message]

    play(tmp_path, scenario, **ALONE | {"total_steps": 24})


def test_falsely_named_step_is_taken_from_members(tmp_path: Path) -> None:
    """All members die. The one that kept the step starts from its directory and serves it to the
    other.
    """

    async def scenario(sim: SimulatedRun) -> None:
        keeper = sim.add(0)
        sim.saves_checkpoints = False
        other = sim.add(1)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        _name_falsely(sim, "/etc")
        for sim_member in (keeper, other):
            await sim.kill(sim_member)
            sim_member.events.clear()
        sim.start(other)
        sim.saves_checkpoints = True
        # the other member cannot read the recorded directory, as on another machine
        keeper.name = "moved"
        (sim.place / "kept" / "m0").rename(sim.place / "kept" / "moved")
        sim.start(keeper)
        await sim.until(lambda run: bool(keeper.saw("applied") and other.saw("applied")))
        assert keeper.saw("model")[0]["source"] == "the checkpoint"
        assert other.saw("model")[0]["source"] == "members that have the checkpoint"
        assert min(event["step"] for event in other.saw("applied")) == 4, "no attested step is lost"

    sim = play(
        tmp_path, scenario, rounds_per_epoch=3, total_steps=12, min_clients=2, init_min_clients=2
    )
    assert sim.compare(sim.sim_members) > 0


@pytest.mark.parametrize(
    ("repo", "answer", "directory"),
    [
        ("/etc", None, True),
        (
            "nobody/none",
            CheckpointError("there is no Hub repository nobody/none, or it is private"),
            True,
        ),
        ("nobody/none", RecursionError("deep"), True),
        ("team/model", None, False),
        ("team/model", HubAway("the Hub answered 500 for team/model"), False),
    ],
)
def test_directory_replaces_only_false_place(
    tmp_path: Path, repo: str, answer: Exception | None, directory: bool
) -> None:
    """The member has the owner's wallet, from which the program always accepts a directory."""

    reads = list[Checkpoint]()

    def read(checkpoint: Checkpoint) -> None:
        reads.append(checkpoint)
        if answer is not None:
            raise answer

    async def scenario(sim: SimulatedRun) -> None:
        sim.read_hub = read
        sim.upload_seconds = 1.0
        owner = SimMember("m0", 0, sim.owner, sim.owner, 1.0)
        sim.sim_members.append(owner)
        sim.start(owner)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        _name_falsely(sim, repo)
        await sim.until(
            lambda run: run.epoch == (2 if directory else 3) and run.state is RunState.ROUND_TRAIN
        )
        assert sim.model.checkpoint.kind is (
            CheckpointKind.LOCAL if directory else CheckpointKind.HUB
        )
        assert bool(_warned(owner)) is not directory, "that nobody uploads newer ones"
        assert len(reads) == (repo != "/etc"), (
            "neither a good place nor one without an answer is read in every epoch"
        )

    play(tmp_path, scenario, **ALONE | {"total_steps": 12})


def test_upload_replaces_false_place_in_next_epoch(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.hub = Repository(tmp_path / "hub").hub
        sim.upload_seconds = 1.0
        sim.add(0)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        _name_falsely(sim, "/etc")
        await sim.until_finished()
        assert (sim.model.checkpoint.repo, sim.model.checkpoint.revision) == (
            "team/model",
            "sim-step-6",
        )

    play(tmp_path / "run", scenario, **ALONE)
