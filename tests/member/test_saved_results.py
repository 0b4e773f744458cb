"""Files of applied results, and optimizer metrics, both on request."""

from __future__ import annotations

import errno
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from aftermath.base.errors import Unsuitable
from aftermath.base.files import replacing
from aftermath.base.outputs import MARK
from aftermath.member import saved_results
from aftermath.optim.level_votes import Votes
from aftermath.optim.result_file import GradientFile, read_gradient_file
from aftermath.replica.replica import Replica
from aftermath.rules.schedules import learning_rate
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.train.checkpoint_checks import gradients_directory
from aftermath.train.settings import TrainSettings
from member.short_runs import ALONE, EITHER_OVERLAP, SHORT

STEPS = range(1, SHORT["total_steps"] + 1)


def files_of(sim: SimulatedRun, sim_member: SimMember) -> dict[str, bytes]:
    """Return all files in a member's directory, by name."""
    place = sim.place / "gradients" / sim_member.name
    return {path.name: path.read_bytes() for path in sorted(place.iterdir())}


def results_of(sim: SimulatedRun, sim_member: SimMember) -> dict[int, list[GradientFile]]:
    """Return the files by step, in the order of seats."""
    files_by_step: dict[int, list[GradientFile]] = defaultdict(list)
    for name in files_of(sim, sim_member):
        file = read_gradient_file(sim.place / "gradients" / sim_member.name / name)
        assert file.name == name
        files_by_step[file.origin.step].append(file)
    return {
        step: sorted(files, key=lambda file: file.origin.seat)
        for step, files in sorted(files_by_step.items())
    }


def whole_run(tmp_path: Path, tiers: Sequence[int], **rules: Any) -> SimulatedRun:
    async def scenario(sim: SimulatedRun) -> None:
        sim.writes_gradients = True
        for tier in tiers:
            sim.add(tier)
        await sim.until_finished()

    return play(tmp_path, scenario, **SHORT, **rules)


@pytest.mark.slow
def test_gradient_files_of_one_tier_are_equal(tmp_path: Path) -> None:
    sim = whole_run(tmp_path, (0, 0, 0))
    assert sim.check() > 0
    first, *others = (files_of(sim, sim_member) for sim_member in sim.sim_members)
    assert sorted(first) == [
        f"step-{step:06}-member-{seat}.safetensors" for step in STEPS for seat in range(3)
    ]
    assert others == [first, first]


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_gradient_files_contain_applied_votes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: int
) -> None:
    """Check every level that a member holds, in the order of seats, for any tiers of the others."""
    applied: dict[int, list[tuple[Mapping[int, Sequence[Votes]], float]]] = defaultdict(list)
    apply = Replica.apply

    def note(self: Replica, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        applied[self.tier].append((results, lr))
        apply(self, results, lr)

    monkeypatch.setattr(Replica, "apply", note)
    sim = whole_run(tmp_path, (0, 1, 2), overlap=overlap)
    assert sim.check() > 0
    tiers = {
        event["seat"]: event["tier"]
        for sim_member in sim.sim_members
        for event in sim_member.saw("joined")
    }
    for sim_member in sim.sim_members:
        files_by_step = results_of(sim, sim_member)
        assert [*files_by_step] == [*STEPS]
        for (step, files), (votes, lr) in zip(
            files_by_step.items(), applied[sim_member.tier], strict=True
        ):
            assert {file.origin.seat: file.origin.tier for file in files} == tiers
            assert (
                {file.origin.learning_rate for file in files}
                == {lr}
                == {learning_rate(sim.model.lr_schedule, step)}
            )
            decoded = [file.votes() for file in files]
            for level in range(sim_member.tier, 3):
                expected = votes[level]
                level_votes = [one[level] for one in decoded if level in one]
                assert len(level_votes) == len(expected) > 0
                for one, other in zip(level_votes, expected, strict=True):
                    assert torch.equal(one.positions, other.positions)
                    assert torch.equal(one.values, other.values)


@contextmanager
def _full(target: Path) -> Iterator[BinaryIO]:
    with replacing(target) as stream:
        yield stream
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_is_one_warning_each_time_it_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.writes_gradients = True
        sim.add(0)
        for room, full in (((2, 0), (3, 0)), ((1, 1), (3, 1))):
            await sim.until_round(room[0], epoch=room[1])
            with monkeypatch.context() as patch:
                patch.setattr(saved_results, "replacing", _full)
                await sim.until_round(full[0], epoch=full[1])
        await sim.until_finished()

    sim = play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 4, "total_steps": 8})
    sim.check()
    (sim_member,) = sim.sim_members
    messages = [event["message"] for event in sim_member.saw("warning")]
    assert len(messages) == 2
    for message in messages:
        assert "not all results of step" in message
        assert f"the disk of {sim.place / 'gradients' / sim_member.name} is full" in message
    steps = {int(name.split("-")[1]) for name in files_of(sim, sim_member)}
    assert {4, 8} <= steps < {*range(1, 9)}


@pytest.mark.slow
def test_removed_gradient_directory_is_recreated_or_warned(tmp_path: Path) -> None:
    """A file replaces one member's directory. The other's directory is only removed."""

    async def scenario(sim: SimulatedRun) -> None:
        sim.writes_gradients = True
        for tier in (0, 2):
            sim.add(tier)
        await sim.until_round(3)
        for sim_member in sim.sim_members:
            shutil.rmtree(sim.place / "gradients" / sim_member.name)
        (sim.place / "gradients" / "m0").write_text("in the way")
        await sim.until_finished()

    sim = play(tmp_path, scenario, init_min_clients=2, rounds_per_epoch=4, total_steps=8)
    assert sim.check() == 10
    (warning,) = sim.sim_members[0].saw("warning")
    assert f"cannot write to {sim.place / 'gradients' / 'm0'}" in warning["message"]
    assert not sim.sim_members[1].saw("warning")
    assert max(results_of(sim, sim.sim_members[1])) == 8


@pytest.mark.slow
def test_slow_gradient_disk_costs_files_but_no_memory(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.writes_gradients = True
        slow = sim.add(0)
        sim.add(2)
        slow.member._workers.write._seconds = 12.0  # type: ignore[union-attr]
        await sim.until(lambda run: run.epoch == 1)
        assert len(slow.member._gradients._writing) <= 4  # type: ignore[union-attr]
        await sim.until_finished()

    sim = play(tmp_path, scenario, init_min_clients=2, rounds_per_epoch=12, total_steps=12)
    assert sim.compare(sim.sim_members) > 0
    messages = [event["message"] for event in sim.sim_members[0].saw("warning")]
    assert any("is slower than the rounds" in message for message in messages)
    assert (
        0
        < len(results_of(sim, sim.sim_members[0]))
        < len(results_of(sim, sim.sim_members[1]))
        == 12
    )


OURS = "0123456789abcdef"
"""The run's identity."""


def test_unwritable_gradient_directory_is_refused_before_join(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = {"run_id": "r", "write_gradients_dir": tmp_path / "file" / "gradients"}
    with pytest.raises(Unsuitable, match=r"--write-gradients-dir .*Not a directory"):
        gradients_directory(TrainSettings(**options), OURS).__enter__()
    with pytest.raises(Unsuitable, match=r"--write-gradients-dir .*/file: it is a file"):
        gradients_directory(
            TrainSettings(**options | {"write_gradients_dir": tmp_path / "file"}), OURS
        ).__enter__()
    ours = TrainSettings(**options | {"write_gradients_dir": tmp_path / "new"})
    with gradients_directory(ours, OURS):
        (tmp_path / "new" / ".step-000001-member-0.safetensors.partial").write_bytes(b"half")
        with pytest.raises(Unsuitable, match="another process on this machine writes there"):
            gradients_directory(ours, OURS).__enter__()
        assert len([*(tmp_path / "new").iterdir()]) == 3, "what is being written is not taken away"
    with gradients_directory(ours, OURS):
        pass
    (tmp_path / "new" / ".lock").unlink()
    (tmp_path / "new" / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unsuitable, match=r"--write-gradients-dir .*symbolic links"):
        gradients_directory(ours, OURS).__enter__()
    assert {path.name for path in (tmp_path / "new").iterdir()} == {".lock", MARK}


def test_gradient_directory_with_other_run_is_refused(tmp_path: Path) -> None:
    settings = TrainSettings(run_id="r", write_gradients_dir=tmp_path)
    with gradients_directory(settings, OURS):
        (tmp_path / "step-000001-member-0.safetensors").write_bytes(b"a result")
    with gradients_directory(settings, OURS):  # as after a restart
        pass
    with pytest.raises(Unsuitable, match="has results of another run"):
        gradients_directory(settings, "fedcba9876543210").__enter__()
    assert (tmp_path / "step-000001-member-0.safetensors").read_bytes() == b"a result"


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_optim_metrics_every_n_steps_change_nothing(tmp_path: Path) -> None:
    def run(place: Path, every: int) -> SimulatedRun:
        async def scenario(sim: SimulatedRun) -> None:
            sim.optim_stats_steps = every
            for tier in (0, 2):
                sim.add(tier)
            await sim.until_finished()

        return play(place, scenario, init_min_clients=2, **SHORT)

    plain = run(tmp_path / "plain", 0)
    with_metrics = run(tmp_path / "asked", 2)
    assert with_metrics.check() == 8
    for one, other in zip(plain.sim_members, with_metrics.sim_members, strict=True):
        hashes = [
            [event["hashes"] for event in sim_member.saw("applied")] for sim_member in (one, other)
        ]
        assert hashes[0] == hashes[1]
        assert not one.saw("optimizer")
        metrics = other.saw("optimizer")
        assert [event["step"] for event in metrics] == [2, 4, 6]
        for event in metrics:
            assert [*event["levels"]] == [str(level) for level in range(other.tier, 3)]
            for level in event["levels"].values():
                assert level["gradient_norm"] > 0
                assert level["residual_norm"] > 0
                assert 0 < level["carried"] < 1
            assert event["seconds"] >= 0
