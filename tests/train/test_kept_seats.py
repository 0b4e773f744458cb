"""Test that a start which would lose the steps of a kept seat is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from aftermath.base.errors import Unsuitable
from aftermath.coordinator.ports import View
from aftermath.member.unsaved_work import UnsavedWork, mark_path, write_mark
from aftermath.rules.state import MemberState, RunState
from aftermath.train.kept_seats import SeatRecord, SeatRecords, check_kept_seat
from aftermath.train.tier import AUTO_TIER
from rules import builders

_SEAT = 2
_WALLET = _SEAT.to_bytes(32, "big")


def _view(*, step: int = 7, others: tuple[int, ...] = (), tier: int = 0) -> View:
    """Return a run in epoch 0 that began with step 1, whose checkpoint is the initial model."""
    seats = {index: builders.seat(index) for index in others}
    seats[_SEAT] = builders.seat(_SEAT, tier=tier)
    run = builders.run(
        RunState.ROUND_TRAIN, step=step, start_step=1, rounds=(builders.header(0b11100),)
    )
    return View(run, builders.members(seats), builders.model(checkpoint_step=1))


def _save(directory: Path, view: View, step: int = 7) -> UnsavedWork:
    """Save a model like a last member that is stopped, and return its mark."""
    model = directory / f"test-step{step}"
    model.mkdir(parents=True)
    work = UnsavedWork(view.run.epoch, view.run.epoch_started_at, step, str(model))
    write_mark(mark_path(directory, view.run, _WALLET), work)
    return work


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SeatRecords:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return SeatRecords(cluster="genesis", program="program")


def _check(
    records: SeatRecords, view: View, directory: Path | None, tier: int | None = 0
) -> UnsavedWork | None:
    record = records.read(view.run, _WALLET)
    return check_kept_seat(view, _WALLET, record, directory=directory, tier=tier)


def test_start_without_saved_copy_names_directory_and_tier(
    records: SeatRecords, tmp_path: Path
) -> None:
    view = _view()
    checkpoint_dir = tmp_path / "kept"
    records.update(view.run, _WALLET, checkpoint_dir)
    work = _save(checkpoint_dir, view)
    records.update(view.run, _WALLET, checkpoint_dir)
    for tier in (0, AUTO_TIER, None):
        assert _check(records, view, checkpoint_dir, tier) == work
    for directory, tier in (
        (None, 0),
        (tmp_path / "other", 0),
        (checkpoint_dir, 1),
        (None, AUTO_TIER),
    ):
        with pytest.raises(Unsuitable) as refused:
            _check(records, view, directory, tier)
        assert refused.value.message == (
            f"this wallet keeps its seat with 7 trained steps, saved in {checkpoint_dir}"
        )
        assert refused.value.fix == (
            f"Add --checkpoint-dir {checkpoint_dir} --matformer-tier 0, or run "
            "aftermath-solana tick --run-id test first to give these steps up"
        )


def test_start_whose_saved_copy_is_gone_is_refused(records: SeatRecords, tmp_path: Path) -> None:
    view = _view()
    directory = tmp_path / "kept"
    work = _save(directory, view)
    records.update(view.run, _WALLET, directory)
    shutil.rmtree(directory)
    with pytest.raises(Unsuitable, match=f"the saved model {work.directory} is gone"):
        _check(records, view, directory)


def test_start_on_machine_without_record_is_refused(records: SeatRecords, tmp_path: Path) -> None:
    view = _view()
    with pytest.raises(Unsuitable, match="6 trained steps, of which this machine has no record"):
        _check(records, view, tmp_path)
    work = _save(tmp_path, view)
    assert _check(records, view, tmp_path) == work, "the directory came from another machine"


def test_killed_member_that_saved_nothing_may_start_again(
    records: SeatRecords, tmp_path: Path
) -> None:
    view = _view()
    records.update(view.run, _WALLET, tmp_path)
    assert _check(records, view, tmp_path) is None
    assert _check(records, view, None) is None


def test_saved_step_of_first_round_keeps_seat(records: SeatRecords, tmp_path: Path) -> None:
    """The chain counts that step only after the next round."""
    view = _view(step=1)
    work = _save(tmp_path, view, step=1)
    records.update(view.run, _WALLET, tmp_path)
    assert _check(records, view, tmp_path) == work
    with pytest.raises(Unsuitable, match="with 1 trained step, saved in"):
        _check(records, view, None)


def test_start_is_free_when_no_steps_wait_for_wallet(records: SeatRecords, tmp_path: Path) -> None:
    view = _view()
    _save(tmp_path, view)
    records.update(view.run, _WALLET, tmp_path)
    over = replace(view, run=replace(view.run, epoch=1))
    assert _check(records, replace(over, members=_view(others=(3,)).members), None) is None
    left = builders.members({_SEAT: builders.seat(_SEAT, state=MemberState.WITHDRAWN)})
    assert _check(records, replace(view, members=left), None) is None
    assert check_kept_seat(view, b"?" * 32, None, directory=None, tier=0) is None


def test_damaged_record_counts_as_missing(records: SeatRecords, tmp_path: Path) -> None:
    view = _view()
    records.update(view.run, _WALLET, tmp_path)
    assert records.read(view.run, _WALLET) == SeatRecord(directory=str(tmp_path), kept=None)
    (file,) = (tmp_path / "state").rglob("seats/*.json")
    file.write_text("{")
    assert records.read(view.run, _WALLET) is None
