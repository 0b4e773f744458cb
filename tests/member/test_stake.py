"""Test which members report that a finished run's model is lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aftermath.base.outputs import write_mark
from aftermath.coordinator.ports import View
from aftermath.events.stream import Events
from aftermath.member.stake import ModelLost, SavedCopy, Stake, UnsavedSteps, find_loss
from aftermath.model.saved_checkpoints import maker_name
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, ModelSource, RunState
from aftermath.train.session import _emit_finished
from aftermath.train.settings import TrainSettings
from rules import builders

LAST_STEP = 16


@dataclass(frozen=True)
class Case:
    """A run of up to three members that finished at step 16. Seat 0 returns to it."""

    tiers: tuple[int, ...] = (0,)
    finishers: int = 0b1
    established: int = 0
    saved_on_chain: int = 0
    saved_here: int | None = None
    lost: bool = True

    def view(self) -> View:
        """Return the run, its members and its model."""
        seats = {
            index: builders.seat(
                index, tier=tier, p2p=bytes([index + 1]) * 32, state=MemberState.IDLE
            )
            for index, tier in enumerate(self.tiers)
        }
        members = builders.members(seats, established=self.established)
        model = builders.model(checkpoint_step=self.saved_on_chain + 1)
        return View(self.run(), members, model)

    def run(self) -> Run:
        """Return the run."""
        return builders.run(RunState.FINISHED, step=LAST_STEP + 1, finishers=self.finishers)


CASES = {
    "sole finisher": Case(),
    "sole finisher of level 0": Case(tiers=(0, 1), finishers=0b11),
    "fell out of the last epoch, and nobody else ended it": Case(finishers=0, established=0b1),
    "only an older step is here": Case(saved_here=8),
    "saved on chain": Case(saved_on_chain=LAST_STEP, lost=False),
    "saved here": Case(saved_here=LAST_STEP, lost=False),
    "another finisher may hold all": Case(tiers=(0, 0), finishers=0b11, lost=False),
    "joined late, and another finished": Case(tiers=(0, 0), finishers=0b10, lost=False),
    "joined late, and nobody finished": Case(finishers=0, lost=False),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_find_loss_reports_only_sole_holder_without_copy(case: Case, tmp_path: Path) -> None:
    if case.saved_here is not None:
        place = tmp_path / f"test-step{case.saved_here}"
        place.mkdir()
        write_mark(place, maker_name(case.run().identity))
    view = case.view()
    wallet = view.members.seats[0].signer
    lost = find_loss(view, wallet, tmp_path)
    assert (lost is not None) is case.lost
    if lost is not None:
        assert lost.message.startswith("16 trained steps are lost: no checkpoint has them")
    elsewhere = find_loss(view, wallet, None)
    assert elsewhere is None or "start it with the same --checkpoint-dir" in (elsewhere.fix or "")
    assert find_loss(view, b"?" * 32, tmp_path) is None, "a wallet without a seat knows nothing"


def test_train_on_finished_run_raises_loss(tmp_path: Path) -> None:
    view = Case().view()
    settings = TrainSettings(run_id="test", checkpoint_dir=tmp_path)
    with pytest.raises(ModelLost) as raised:
        _emit_finished(view, Events(lambda: 0.0, []), view.members.seats[0].signer, settings)
    assert raised.value.code == "model-lost"


@pytest.mark.parametrize(
    ("stake", "fix"),
    [
        (Stake(6, [0], saves=True), "Give the next start a --checkpoint-dir that it can write"),
        (Stake(6, [1], saves=False), "Let a tier-0 member with --checkpoint-dir DIR take part"),
        (Stake(6, [0], saves=True, is_finished=True), "In the next run"),
        (Stake(6, [0], saves=False, is_finished=True), "In the next run"),
        (
            Stake(6, [0], saves=False, reason="only 1 of 3 holders are left"),
            "Next time stay until the epoch ends, or let the owner pause the run first",
        ),
        (
            Stake(6, [1], saves=False, has_full_peer=True),
            "Next time stay until the epoch ends, or let the owner pause the run first. Tier-0 "
            "members with a --checkpoint-dir may have saved a copy",
        ),
        (
            Stake(6, [1], saves=False, has_full_peer=True, is_between_epochs=True),
            "Let a tier-0 member with --checkpoint-dir DIR take part, and stop it last. Tier-0 ",
        ),
    ],
)
def test_fix_of_lost_steps_fits_member_and_run(stake: Stake, fix: str) -> None:
    assert (stake.lost().fix or "").startswith(fix)


@pytest.mark.parametrize(
    ("levels", "step", "copied", "words", "ends"),
    [
        (
            [0],
            5,
            2,
            "level 0 of the model goes back to the checkpoint of step 5 in the next epoch",
            "2 trained steps are only in the copy that this member saved",
        ),
        (
            [0, 1],
            0,
            1,
            "levels 0, 1 of the model go back to the initial model in the next epoch",
            "2 trained steps are lost, and the copy that this member saved has 1 of them",
        ),
    ],
)
def test_copy_of_levels_that_go_back_is_named(
    levels: list[int], step: int, copied: int, words: str, ends: str
) -> None:
    stake = Stake(
        2,
        levels,
        saves=True,
        goes_back=True,
        others_continue=True,
        checkpoint_step=step,
        copy=SavedCopy(Path("kept/r-step7"), 7),
        copied=copied,
    )
    lost = stake.lost()
    assert lost.message.startswith(words)
    assert lost.message.endswith(ends)
    assert "kept/r-step7" in (lost.fix or "")


@pytest.mark.parametrize("state", [RunState.WAITING_FOR_MEMBERS, RunState.PAUSED])
def test_steps_of_undone_epoch_are_not_at_stake(state: RunState) -> None:
    """The next epoch begins from the checkpoint, so no member's model is needed."""
    model = builders.model(checkpoint_step=6)
    run = builders.run(state, step=12, model_source=ModelSource.CHECKPOINT)
    assert UnsavedSteps().count(run, model) == 0
    kept = builders.run(state, step=12, model_source=ModelSource.PEERS)
    assert UnsavedSteps().count(kept, model) == 6


@pytest.mark.parametrize("reason", ["", "only 1 of 3 holders are left"])
def test_member_of_run_that_pauses_is_told_to_stay_until_then(reason: str) -> None:
    stake = Stake(6, [0], saves=False, reason=reason, is_pausing=True)
    stay = ". The owner pauses the run at the end of this epoch, so stay until then"
    assert stake.sentence().endswith(stay)
    assert "let the owner pause" not in stake.sentence()
    told = replace(stake, has_full_peer=True).lost().fix or ""
    assert told.startswith("Next time stay until the owner's pause has begun")
