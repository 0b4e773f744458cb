"""Tests of `train-local`: a run's config, its output, kills and interrupts, and errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from aftermath.lab import training_loop
from aftermath.lab.training_loop import TrainingLoop
from cli.cli_runs import CONSOLE, Outcome, invoke

CHOSEN = ("--device", "cpu", "--threads", 1)


def quick(run_dir: Path, *more: str | Path | int) -> list[str]:
    """Return a command line of a training that takes a second."""
    line = (
        "train-local",
        "--config-path",
        run_dir / "config.toml",
        "--steps",
        6,
        "--total-batch",
        6,
        "--lr",
        4e-3,
    )
    return [str(word) for word in (*line, "--warmup-steps", 2, *CHOSEN, *more)]


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


UNSAVED = (
    "this training is not saved; to save it, pass --out DIR",
    "nothing was saved, because --out was not given",
)


def test_train_local_without_out_says_that_nothing_is_saved(run_dir: Path, tmp_path: Path) -> None:
    for more, sentences in (((), UNSAVED), (("--out", tmp_path / "out"), ())):
        outcome = invoke(*quick(run_dir, *more))
        assert outcome.code == 0, outcome.err
        assert tuple(line for line in outcome.err.splitlines() if "save" in line) == sentences


@pytest.mark.slow
def test_train_local_without_out_says_so_at_interrupt(run_dir: Path) -> None:
    line = [str(CONSOLE), *quick(run_dir, "--json")]
    line[line.index("--steps") + 1] = "1000000"
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout is not None
        next(event for event in training.stdout if '"kind":"step"' in event)
        training.send_signal(signal.SIGINT)
        _, err = training.communicate(timeout=120)
    assert training.returncode == 130
    assert err.endswith(f"{UNSAVED[1]}\ninterrupted\n")


@pytest.mark.slow
def test_train_local_config_of_run_trains_its_tiers(run_dir: Path, tmp_path: Path) -> None:
    outcome = invoke(*quick(run_dir, "--tiers", "0,1,2", "--out", tmp_path / "out", "--json"))
    assert (outcome.code, outcome.err) == (0, "")
    output_events = events(outcome.out)
    assert [event["kind"] for event in output_events] == ["started", *["step"] * 6, "finished"]
    file_events = events((tmp_path / "out" / "events.jsonl").read_text())
    assert [event | {"at": 0} for event in output_events] == [
        event | {"at": 0} for event in file_events
    ]
    steps = output_events[1:-1]
    assert [event["step"] for event in steps] == list(range(1, 7))
    assert all(
        event["tokens"] == 6 * 64 and event["seconds"] > 0 and len(event["losses"]) == 3
        for event in steps
    )
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert (tmp_path / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "distro", "sparseloco"])
def test_train_local_prints_readable_lines(run_dir: Path, tmp_path: Path, optimizer: str) -> None:
    held_out = tmp_path / "held-out"
    held_out.mkdir()
    text = (run_dir / "tokens" / "tokens-00000.bin").read_bytes()
    (held_out / "tokens-00000.bin").write_bytes(text[: 64 * 2 * 5])
    outcome = invoke(*quick(run_dir, "--optimizer", optimizer, "--held-out-path", held_out))
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].startswith(f"{optimizer}, 1 member (tier 0), ")
    assert lines[1].startswith("step 1 of 6  loss 5.")
    assert "tokens/s" in lines[1]
    assert lines[-2].startswith("step 6  held out, tier 0: ")
    assert lines[-1] == f"finished: 6 steps, {6 * 6 * 64:,} tokens"


class Killed(BaseException):
    """End a training within a step without saving, as `kill -9` does."""


@pytest.mark.slow
def test_train_local_interrupted_ends_with_same_weights(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in step 2, a closed terminal in step 3 and SIGTERM in step 4 lose no step. The kill in
    step 7 loses the steps since step 5.
    """
    monkeypatch.setattr(training_loop, "step_plot", lambda *_: None)
    options = ("--tiers", "0,1", "--steps", 8, "--save-every", 5, "--json")
    whole, cut = (quick(run_dir, *options, "--out", tmp_path / name) for name in ("whole", "cut"))
    assert invoke(*whole).code == 0
    train = TrainingLoop._step

    def run(step_of_end: int, end: Callable[[], None]) -> Outcome:
        def step(self: TrainingLoop, number: int) -> float | None:
            if number == step_of_end:
                end()
            return train(self, number)

        monkeypatch.setattr(TrainingLoop, "_step", step)
        return invoke(*cut)

    def kill() -> None:
        raise Killed

    for number, last in ((signal.SIGINT, 2), (signal.SIGHUP, 3), (signal.SIGTERM, 4)):
        ended = run(last, partial(signal.raise_signal, number))
        assert ended.code == 130
        assert "continues from the last state saved" in ended.err
        assert events(ended.out)[-1]["step"] == last
    with pytest.raises(Killed):
        run(7, kill)
    outcome = run(0, kill)
    assert outcome.code == 0, outcome.err
    assert events(outcome.out)[0]["done"] == 5
    ours, theirs = (
        load_file(tmp_path / name / "checkpoint" / "model.safetensors") for name in ("whole", "cut")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())
    events_read = events((tmp_path / "cut" / "events.jsonl").read_text())
    assert [event["step"] for event in events_read if event["kind"] == "step"] == list(range(1, 9))


@pytest.mark.slow
def test_train_local_interrupted_resumes_to_same_end(run_dir: Path, tmp_path: Path) -> None:
    """End the training first with Ctrl-C, which loses no step, then with kill -9."""
    steps = 20  # a busy test reads four of them twice before the training ends
    options = ("--tiers", "0,1,2", "--steps", steps, "--save-every", 7, "--json")
    whole, cut = (quick(run_dir, *options, "--out", tmp_path / name) for name in ("whole", "cut"))
    assert invoke(*whole).code == 0
    reached = 0
    for number, ending in enumerate((signal.SIGINT, signal.SIGKILL), start=1):
        process = subprocess.Popen(
            [CONSOLE, *cut], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        begun, *first_events = (json.loads(process.stdout.readline()) for _ in range(5))
        assert begun["done"] == reached
        time.sleep(0.02 * number)  # somewhere in a step, or while saving after it
        process.send_signal(ending)
        out, stderr = process.communicate(timeout=240)
        reached = [
            event["step"] for event in first_events + events(out) if event["kind"] == "step"
        ][-1]
        assert process.returncode == (-signal.SIGKILL if ending is signal.SIGKILL else 130), stderr
        assert ("continues from the last state saved" in stderr) == (ending is not signal.SIGKILL)
    outcome = invoke(*cut)
    assert outcome.code == 0, outcome.err
    first = events(outcome.out)[0]
    resumed = begun["done"]
    saved = [resumed, *(step for step in range(7, steps, 7) if resumed < step <= reached)]
    assert first["done"] in saved[-2:], "the kill may come while a state is saved"
    ours, theirs = (
        load_file(tmp_path / name / "checkpoint" / "model.safetensors") for name in ("whole", "cut")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())
    events_read = events((tmp_path / "cut" / "events.jsonl").read_text())
    assert [event["step"] for event in events_read if event["kind"] == "step"] == list(
        range(1, steps + 1)
    )


MISTAKES = [
    (
        ("--optimizer", "sgd"),
        "--optimizer must be one of distro, sparseloco, adamw, muon",
        "train-local --help",
    ),
    (
        ("--lr-schedule", "linear"),
        "--lr-schedule must be one of constant, cosine, stable",
        "train-local --help",
    ),
    (("--steps", 0), "--steps must be a whole number from 1", "train-local --help"),
    (("--reject", 100), "--reject must be a whole number from 0 to 99", "train-local --help"),
    (
        ("--optimizer", "sparseloco", "--mean", "median"),
        "--mean must be one of keepers, all, root",
        "--help",
    ),
    (
        ("--optimizer", "sparseloco", "--value-bits", 3),
        "--value-bits must be one of 1, 2",
        "--help",
    ),
    (
        ("--optimizer", "sparseloco", "--inner-steps", 0),
        "--inner-steps must be a whole number from 1",
        "--help",
    ),
    (("--topk", 70_000), "--topk must be a whole number from 1 to 65535", "--help"),
    (("--overlap", 2), "--overlap must be one of 0, 1", "train-local --help"),
    (("--lr", "nan"), "--lr nan must be above 0", "--lr 1e-3"),
    (("--lr", "fast"), "--lr must be a number", "train-local --help"),
    (
        ("--optimizer", "adamw", "--members", 2),
        "--members 2 does not work with adamw",
        "--total-batch",
    ),
    (("--tiers", "0,3"), "--tiers 0,3: the config has only tiers 0 to 2", "matformer"),
    (("--shares", "1,2"), "2 shares for 1 member", "one share per member"),
    (("--device", "abacus"), "--device 'abacus' is not a valid device", "auto, cpu"),
    (("--seq-len", 4096), "max_position_embeddings in its config.json is 2048", "--seq-len 2048"),
    (
        ("--held-out-path", ""),
        "the path for --held-out-path is empty",
        "leave the option out",
    ),
]


@pytest.mark.parametrize(("more", "sentence", "fix"), MISTAKES, ids=str)
def test_train_local_invalid_option_exits_2(
    run_dir: Path, more: tuple[str | int, ...], sentence: str, fix: str
) -> None:
    result = invoke(*quick(run_dir, *more), "--json").mistake
    assert sentence in result["error"]
    assert fix in result["fix"]


def test_train_local_missing_file_exits_1(run_dir: Path, tmp_path: Path) -> None:
    for more, sentence in (
        (("--model", tmp_path / "none"), "config.json"),
        (("--data-path", tmp_path / "none"), "there is no token data"),
        (("--held-out-path", tmp_path / "none"), "there is no token data"),
        (("--config-path", tmp_path / "none.toml"), "cannot read the config file"),
        (("--out", run_dir / "config.toml"), "cannot write to"),
        (("--token-bytes", 4), "is not a multiple of the 4 bytes of a token"),
    ):
        result = invoke(*quick(run_dir, *more), "--json").error
        assert sentence in result["error"], result
        assert result["fix"] or "config.json" in sentence or "write" in sentence


def test_train_local_with_other_options_does_not_resume(run_dir: Path, tmp_path: Path) -> None:
    assert invoke(*quick(run_dir, "--out", tmp_path / "out")).code == 0
    result = invoke(*quick(run_dir, "--out", tmp_path / "out", "--seed", 1), "--json").error
    assert "holds a training with other options: --seed was " in result["error"]
    assert "name another --out" in result["fix"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_read_only_output_directory_is_refused_before_training(
    run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir(mode=0o500)
    assert (
        "cannot write to"
        in invoke(*quick(run_dir, "--out", tmp_path / "out"), "--json").error["error"]
    )
