"""Test a training on real tokens: it learns, reports, resumes anywhere, and ends with the same
bits.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from aftermath.lab.lab_events import EVENTS, Step
from aftermath.lab.saved_state import STATE, load_state, only_here
from aftermath.lab.training_loop import CHECKPOINT, PLOT, TrainingLoop
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.checkpoint import load
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import CheckpointError
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.optim.gradient_clip import Diverged
from aftermath.sim.setup import CONFIG
from lab.lab_place import DISTRO, INNER, events_without_times, prepare, train, training_loop

ARMS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw"},
    "muon": {"optimizer": "muon"},
    "distro": DISTRO | {"reject": 20},
    "at once": DISTRO | {"overlap": "0", "shares": "1,2,3"},
    "sparseloco": INNER | {"reject": 20},
    "inner muon, late": INNER
    | {"inner_optimizer": "muon", "overlap": "1", "value_bits": "1", "mean": "root"},
}


FAST_KILLS = [("adamw", 1), ("distro", 4)]
SLOW_KILLS = [("sparseloco", 5), ("muon", 4), ("inner muon, late", 4)]
NIGHTLY_KILLS = sorted(set(itertools.product(ARMS, (1, 4, 5))) - {*FAST_KILLS, *SLOW_KILLS})


def slow(*arms: str) -> list[Any]:
    return [pytest.param(arm, marks=pytest.mark.slow) for arm in arms]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return prepare(tmp_path)


@pytest.mark.parametrize("arm", ["adamw", "distro"])
@pytest.mark.parametrize("steps", [8, 3])
def test_diverging_training_ends_with_error(place: Path, arm: str, steps: int) -> None:
    """With `steps`, it diverges in mid-course, or is detected only at the end."""
    huge = {
        name: tensor * 1e30
        for name, tensor in load_file(place / "model" / "model.safetensors").items()
    }
    save_file(huge, place / "model" / "model.safetensors", metadata={"format": "pt"})
    events: list[Any] = []
    with pytest.raises(Diverged, match="the loss has not been finite since step 1") as raised:
        training_loop(
            place,
            events,
            **ARMS[arm] | {"steps": steps, "warmup_steps": 0, "lr": 0.5},
            out=place / "out",
        ).run()
    assert raised.value.fix is not None
    assert "Lower --lr (the highest rate was 0.5)" in raised.value.fix
    assert "another --out" in raised.value.fix
    assert [event.loss for event in events if isinstance(event, Step)] == [None] * 3
    assert not (place / "out" / CHECKPOINT).exists()


class Killed(Exception):
    """Imitates kill -9: the process does nothing afterwards."""


def killed_after(training: TrainingLoop, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run, and die after `steps` steps of this process, before it does anything else."""
    whole = TrainingLoop._step
    count = itertools.count(1)

    def step(self: TrainingLoop, number: int) -> float | None:
        loss = whole(self, number)
        if next(count) == steps:
            raise Killed
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_step", step)
        with pytest.raises(Killed):
            training.run()


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / CHECKPOINT / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arm", ["adamw", "distro", "muon", "at once", "sparseloco", "inner muon, late"]
)
def test_loss_falls_on_training_and_held_out_text(place: Path, arm: str) -> None:
    events = train(place, **ARMS[arm], steps=24, eval_every=8, lr=0.01)
    losses = [event["loss"] for event in events if event["kind"] == "step"]
    assert losses[-1] < losses[0] - 0.1
    held_out = [event for event in events if event["kind"] == "held_out"]
    tiers = {0, 1, 2} if "members" in ARMS[arm] else {0}
    for tier in tiers:
        (first, _, last) = (event["loss"] for event in held_out if event["tier"] == tier)
        assert last < first
    assert {event["tier"] for event in held_out} == tiers
    assert [event["kind"] for event in (events[0], events[-1])] == ["started", "finished"]
    assert events[-1]["held_out_by_tier"].keys() == {str(tier) for tier in tiers}
    assert all(event["bytes"] > 0 for event in events if event["kind"] == "step") == (
        len(tiers) > 1
    )


@pytest.mark.parametrize(
    ("arm", "after"),
    FAST_KILLS
    + [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_KILLS]
    + [pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY_KILLS],
)
def test_killed_training_resumes_to_same_end(
    place: Path, monkeypatch: pytest.MonkeyPatch, arm: str, after: int
) -> None:
    """Kill it before, at or after a saved state, and again in the second attempt."""
    options = ARMS[arm] | {"save_every": 2, "eval_every": 3}
    train(place, **options, out=place / "whole")
    killed_after(training_loop(place, **options, out=place / "cut"), after, monkeypatch)
    killed_after(training_loop(place, **options, out=place / "cut"), 3, monkeypatch)
    train(place, **options, out=place / "cut")
    whole = weights(place / "whole")
    cut = weights(place / "cut")
    assert whole.keys() == cut.keys()
    assert all(torch.equal(cut[name], tensor) for name, tensor in whole.items())
    (state, counters), (other, others) = (
        load_state(place / name) or pytest.fail(name) for name in ("whole", "cut")
    )
    assert state.keys() == other.keys()
    assert all(torch.equal(other[name], tensor) for name, tensor in state.items())
    assert (counters.step, counters.new_sequences, counters.retry_queue) == (
        others.step,
        others.new_sequences,
        others.retry_queue,
    )
    steps = [
        event
        for event in events_without_times(place / "cut")
        if event["kind"] in ("step", "held_out")
    ]
    assert steps == [
        event
        for event in events_without_times(place / "whole")
        if event["kind"] in ("step", "held_out")
    ]
    assert (place / "cut" / PLOT).stat().st_size == pytest.approx(
        (place / "whole" / PLOT).stat().st_size, rel=0.05
    )


@pytest.mark.parametrize(
    "arm", ["muon", *slow("adamw", "distro", "at once", "sparseloco", "inner muon, late")]
)
def test_training_resumed_without_state_gets_other_weights(
    place: Path, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    """Resuming with weights alone gives other results, so the rest of the state is needed."""
    options = ARMS[arm] | {"save_every": 2}
    train(place, **options, out=place / "whole")
    training = training_loop(place, **options, out=place / "cut")
    killed_after(training, 5, monkeypatch)
    restored = training_loop(place, **options, out=place / "cut")
    trainer = restored._begun.trainer
    # the last sent values must be a valid result
    taken = trainer.restore
    sent = re.compile(r"\b(indices|values)\.")

    def forgetful(state: dict[str, torch.Tensor]) -> None:
        taken(
            {
                name: tensor * 0
                if ("optimizer" in name or "residual" in name) and not sent.search(name)
                else tensor
                for name, tensor in state.items()
            }
        )

    monkeypatch.setattr(trainer, "restore", forgetful)
    restored.run()
    whole = weights(place / "whole")
    cut = weights(place / "cut")
    assert any(not torch.equal(cut[name], tensor) for name, tensor in whole.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "optimizer"),
    [
        ({"model_type": "qwen3", "head_dim": 8}, DISTRO),
        ({"attention_bias": True, "mlp_bias": True}, INNER),
    ],
    ids=["norms", "biases"],
)
def test_biases_and_norms_of_heads_are_trained_in_every_tier(
    place: Path, change: dict[str, Any], optimizer: dict[str, Any]
) -> None:
    config = LlamaConfig.from_hf(CONFIG.to_hf() | change)
    started = init_weights(config, 0)
    write_checkpoint(place / "kin", started, config, tier=0, companions={})
    train(place, **optimizer, model=place / "kin", steps=3, lr=0.05, out=place / "out")
    ended = weights(place / "out")
    assert ended.keys() == started.keys()
    still = [name for name, tensor in ended.items() if torch.equal(tensor, started[name])]
    # it shifts all keys equally, which does not change attention
    assert all(name.endswith("k_proj.bias") for name in still)


def test_rejected_sequences_are_trained_again(place: Path) -> None:
    events = train(place, **DISTRO, reject=50, steps=15)
    steps = [event for event in events if event["kind"] == "step"]
    accepted = sum(event["accepted"] for event in steps)
    assert 10 < accepted < 35  # of 45
    training = training_loop(place, **DISTRO, reject=50, steps=15)
    sequences: list[int] = []
    for step in range(1, 16):
        shares = training._data_split.shares(step)
        for member, share in enumerate(shares):
            if training._data_split.accepted(step, member):
                sequences += share
            else:
                training._data_split.requeue(step, share)
    fresh, again = training._data_split.state()
    assert sorted(sequences + [index for _, indices in again for index in indices]) == list(
        range(fresh)
    )
    assert fresh < 15 * 6


def test_finished_training_is_reported_and_not_repeated(place: Path) -> None:
    first = train(place, out=place / "out")
    before = (place / "out" / EVENTS).read_bytes()
    again = train(place, out=place / "out")
    assert [event["kind"] for event in again] == ["finished"]
    assert {**first[-1], "t": 0} == {**again[0], "t": 0}
    assert (place / "out" / EVENTS).read_bytes() == before


def test_partial_checkpoint_of_killed_process_is_removed(place: Path) -> None:
    left = place / "out" / f".partial-{2**22 + 1}-x"  # higher than any process id
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    train(place, out=place / "out")
    assert not left.exists()


def test_checkpoint_of_training_can_be_trained_on(place: Path) -> None:
    train(place, out=place / "out")
    assert load(place / "out" / CHECKPOINT, 1).keys() == load(place / "model", 1).keys()
    train(place, model=place / "out" / CHECKPOINT)
    # of tier 1, the largest tier here
    train(place, **DISTRO | {"tiers": "1,2", "members": 2}, out=place / "small")
    assert load(place / "small" / CHECKPOINT, 1)
    with pytest.raises(CheckpointError, match="slice of tier 1"):
        load(place / "small" / CHECKPOINT, 0)


def test_training_with_another_recipe_does_not_resume(place: Path) -> None:
    train(place, out=place / "out")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"lr": 0.5}, r"--lr was 0\.\d+"),
        ({"lr_schedule": "cosine"}, "--lr-schedule differed"),
        ({"warmup_steps": 3}, r"--warmup-steps was \d+"),
        ({"optimizer": "muon"}, "--optimizer was adamw"),
        ({"seed": 3}, "--seed was 0"),
    ]
    for options, difference in cases:
        with pytest.raises(
            CheckpointError, match=rf"other options: {difference}\nPass the same options"
        ):
            train(place, **options, out=place / "out")


def test_differing_shared_settings_are_named_one_by_one(place: Path) -> None:
    agreed = INNER | {"steps": 2}
    train(place, **agreed, out=place / "out")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"inner_steps": 1}, "--inner-steps was 2"),
        ({"mean": "all", "seed": 3}, "--seed was 0, --mean was keepers"),
    ]
    for options, difference in cases:
        with pytest.raises(CheckpointError, match=rf"other options: {difference}\n"):
            train(place, **agreed | options, out=place / "out")


def test_unsaved_steps_are_reported_for_repetition(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after(training_loop(place, out=place / "early", save_every=6), 3, monkeypatch)
    (warning,) = [
        event
        for event in train(place, out=place / "early", save_every=6)
        if event["kind"] == "warning"
    ]
    assert "starts again" in warning["message"]
    killed_after(training_loop(place, out=place / "late", save_every=2), 3, monkeypatch)
    begun = train(place, out=place / "late", save_every=2)
    assert begun[0]["done"] == 2
    assert not [event for event in begun if event["kind"] == "warning"]


def test_training_state_is_bound_to_its_files(place: Path) -> None:
    train(place, out=place / "out")
    file = place / "tokens" / "tokens-00000.bin"
    file.write_bytes(file.read_bytes()[:4096])
    with pytest.raises(CheckpointError, match=r"other options: the contents of its files differed"):
        train(place, out=place / "out")


def test_damaged_training_state_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Path:
        killed_after(training_loop(place, out=place / name, save_every=2), 5, monkeypatch)
        return place / name

    state = broken("short") / STATE
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        train(place, out=place / "short", save_every=2)
    out = broken("missing")
    tensors, _ = load_state(out) or pytest.fail("no state")
    with safe_open(out / STATE, framework="pt") as file:
        header = file.metadata()
    save_file(
        {name: t for name, t in tensors.items() if "embed" not in name},
        out / STATE,
        metadata=header,
    )
    with pytest.raises(CheckpointError, match="does not fit this model"):
        train(place, out=out, save_every=2)
    optimizer = "optimizer/exp_avg_sq/model.norm.weight"
    save_file(
        {name: t for name, t in tensors.items() if name != optimizer}, out / STATE, metadata=header
    )
    with pytest.raises(
        CheckpointError, match=r"does not match .* missing .* exp_avg_sq/model\.norm\.weight"
    ):
        train(place, out=out, save_every=2)
    out = broken("events")
    for text in ("no json\n", "5\n", '{"kind": "step"}\n'):
        (out / EVENTS).write_text(text)
        with pytest.raises(CheckpointError, match=r"events\.jsonl is damaged"):
            train(place, out=out, save_every=2)
    (place / "strange").mkdir()
    (place / "strange" / EVENTS).write_text("mine")
    with pytest.raises(CheckpointError, match="but no saved state"):
        train(place, out=place / "strange")
    assert (place / "strange" / EVENTS).read_text() == "mine"


def test_training_directory_is_exclusive(place: Path) -> None:
    with (
        only_here(place / "out"),
        pytest.raises(CheckpointError, match="another process is training in"),
    ):
        train(place, out=place / "out")
    train(place, out=place / "out")


@contextlib.contextmanager
def largest_file(limit: int) -> Iterator[None]:
    """Let the system refuse to write beyond `limit` bytes of any file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_without_room_for_first_state_leaves_nothing(place: Path) -> None:
    (place / "there").mkdir()
    for out in (place / "new" / "lab", place / "there"):
        with (
            largest_file(1000),
            pytest.raises(CheckpointError, match=r"cannot write to .*File too large"),
        ):
            train(place, out=out)
    assert not (place / "new").exists()
    assert [*(place / "there").iterdir()] == []
    train(place, out=place / "there", steps=2)
    before = {
        path.name: path.read_bytes() for path in (place / "there").iterdir() if path.is_file()
    }
    with pytest.raises(CheckpointError, match="with other options"):
        train(place, out=place / "there", steps=4)
    assert {
        path.name: path.read_bytes() for path in (place / "there").iterdir() if path.is_file()
    } == before
