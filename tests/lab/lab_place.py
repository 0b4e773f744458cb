"""A tiny model and token files on disk, and their training in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aftermath.events.event_types import Event
from aftermath.events.stream import plain
from aftermath.lab.lab_events import EVENTS
from aftermath.lab.resolve_recipe import recipe_of
from aftermath.lab.settings import LabSettings, with_options
from aftermath.lab.setup import start
from aftermath.lab.training_loop import TrainingLoop
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.sim.setup import CONFIG
from aftermath.sim.sim_member import EventDict

CPU = torch.device("cpu")
DISTRO = {"optimizer": "distro", "members": 3, "tiers": "0,1,2", "total_batch": 6}
INNER = DISTRO | {"optimizer": "sparseloco", "inner_steps": 2}


def prepare(root: Path) -> Path:
    """Write `model`, `tokens` and `held-out` to a directory. The text has a pattern that can be
    learnt.
    """
    write_checkpoint(root / "model", init_weights(CONFIG, 0), CONFIG, tier=0, companions={})
    for name, seed, tokens in (("tokens", 1, 8192), ("held-out", 2, 1024)):
        (root / name).mkdir()
        steps = np.random.default_rng(seed).integers(1, 4, tokens).cumsum()
        (steps % CONFIG.vocab_size).astype("<u2").tofile(root / name / "tokens-00000.bin")
    return root


def settings(root: Path, **options: Any) -> LabSettings:
    """Return settings for `prepare`'s files, small by default."""
    quick: dict[str, Any] = {
        "seq_len": 16,
        "steps": 8,
        "total_batch": 4,
        "micro_batch": 4,
        "optimizer": "adamw",
        "eval_sequences": 8,
    }
    places = {
        "model": root / "model",
        "data_path": root / "tokens",
        "held_out_path": root / "held-out",
    }
    return with_options(**quick | places | options)


def training_loop(
    root: Path, screen: list[Event] | None = None, on: torch.device = CPU, **options: Any
) -> TrainingLoop:
    """Return a training as the command creates it."""
    torch.set_num_threads(1)
    lab_settings = settings(root, **options)
    recipe = recipe_of(lab_settings)
    return TrainingLoop(
        recipe,
        start(recipe, on, stack_members=lab_settings.stack_members == "on"),
        (screen if screen is not None else []).append,
        lab_settings.out,
        lab_settings.save_every,
    )


def train(root: Path, **options: Any) -> list[EventDict]:
    """Train, and return all events."""
    events: list[Event] = []
    training_loop(root, events, **options).run()
    return [plain(event) for event in events]


def events_without_times(out: Path) -> list[EventDict]:
    """Return the events in a directory, without what depends on the clock."""
    events = [json.loads(line) for line in (out / EVENTS).read_text().splitlines()]
    return [
        {k: v for k, v in event.items() if k not in ("at", "t", "seconds", "done")}
        for event in events
    ]
