"""Train the arms that are compared, as a file like `arms.toml` names them, and keep their results.

An arm at one number of steps, one rate and one seed is a training. Its result is a line of a file
in `measured/runs`.
"""

# How it is measured:
# - The laboratory of `train-local` trains an arm, so the members' own code does.
# - A line counts only while its arm is unchanged: it contains all settings of the laboratory.
# - Seconds are the process's CPU time, so other work on the machine does not count. A line names
#   its processor, because seconds of two machines do not compare. Older lines name none; all of
#   them are of one machine.
# - A stopped training continues from its last save, as `train-local` does. The large ones take
#   hours.
# - A size may be for a GPU: it trains in bf16 as members there do, saves nothing on the way, and
#   has seconds by the clock. They count only if nothing else used the GPU.

from __future__ import annotations

import hashlib
import json
import math
import platform
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from aftermath.data.bytelevel import VOCAB_SIZE, byte_tokenizer
from aftermath.data.tokenise import hold_out, standard_library, standard_library_root, tokenise
from aftermath.demo.commands import model_config
from aftermath.events.event_types import Event
from aftermath.lab import lab_events
from aftermath.lab.resolve_recipe import recipe_of
from aftermath.lab.settings import LabSettings, with_options
from aftermath.lab.setup import start
from aftermath.lab.training_loop import TrainingLoop
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.optim.schema import build_schema
from aftermath.replica.exactness import exact_device
from aftermath.replica.passes import arithmetic_of
from aftermath.rules.optimizers import optimizers

ARMS = Path(__file__).with_name("arms.toml")
RUNS = Path(__file__).with_name("measured") / "runs"
CORPUS_BYTES = 16_000_000
HELD_OUT_PERCENT = 20
SEQ_LEN = 128
MICRO_BATCH = 8
HELD_OUT = 256
SAVES = 16
"""Number of times that a training is saved before its end."""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5 % point of Student's t with 1, 2, ... degrees of freedom."""
_OF_A_STEP = ("batch", "seq_len", "micro_batch", "device", "recommended")
"""The keys of a size's table that are not the model's."""
_OWN = ("name", "question", "expected", "sizes", "steps", "lr", "seeds", "times", "against")


@dataclass(frozen=True)
class Training:
    """One arm at one number of steps, one rate and one seed."""

    arm: str
    size: str
    steps: int
    lr: float
    seed: int
    said: dict[str, Any]
    """Settings of `train-local`, without paths."""

    @property
    def members(self) -> int:
        """Machines that train together."""
        return int(self.said.get("members", 1))

    @property
    def inner_steps(self) -> int:
        """Steps of a machine in a round."""
        return int(self.said.get("inner_steps", 1))

    @property
    def overlap(self) -> bool:
        """Whether results are applied a round late."""
        own = optimizers()[self.said["optimizer"]]
        default = own.OVERLAP if own.EXCHANGED else 0
        return str(self.said.get("overlap", default)) == "1"

    @property
    def key(self) -> str:
        """Return the training's key."""
        return json.dumps(
            [self.arm, self.size, self.steps, self.lr, self.seed, self.said], sort_keys=True
        )


@dataclass(frozen=True)
class Arm:
    """An arm: settings to compare, and the expected result."""

    name: str
    question: str
    expected: Mapping[str, str]
    """The expected result by size, as named before the training."""
    trainings: tuple[Training, ...]


def _document(source: Path = ARMS) -> dict[str, Any]:
    return tomllib.loads(source.read_text())


def arms(source: Path = ARMS) -> tuple[Arm, ...]:
    """Return the arms of a file in order. Sizes come from arms.toml. Names may repeat."""
    sizes = _document()["size"]
    tables: dict[str, dict[str, Any]] = {}
    found: dict[str, Arm] = {}
    for said in _document(source)["arm"]:
        table = tables[said["name"]] = tables.get(said["name"], {}) | said
        given = {name: value for name, value in table.items() if name not in _OWN}
        trainings = tuple(
            _training(table, size, sizes[size]["batch"], steps, lr, seed, given)
            for size in table["sizes"]
            for steps in table["steps"]
            for lr in table["lr"]
            for seed in table.get("seeds", [0])
        )
        before = found.get(table["name"], Arm(table["name"], table["question"], {}, ()))
        expected = dict.fromkeys(table["sizes"], table["expected"]) | dict(before.expected)
        found[table["name"]] = replace(
            before, expected=expected, trainings=before.trainings + trainings
        )
    return tuple(found.values())


def _training(
    table: dict[str, Any],
    size: str,
    batch: int,
    steps: int,
    lr: float,
    seed: int,
    given: dict[str, Any],
) -> Training:
    inner = given.get("inner_steps", 1)
    said = given | {
        "total_batch": int(batch * inner * given.get("members", 1) * table.get("times", 1))
    }
    return Training(table["name"], size, steps, lr, seed, said | {"steps": steps // inner})


def model_of(size: str) -> dict[str, object]:
    """Return the config.json of a model size: the demo's with this size's values."""
    own = {
        name: value for name, value in _document()["size"][size].items() if name not in _OF_A_STEP
    }
    return model_config(VOCAB_SIZE) | own


def prepare(root: Path, size: str, seed: int) -> dict[str, Path]:
    """Create the model and both parts of the corpus, and return their paths. Existing files are
    reused.
    """
    places = {
        "data_path": root / "tokens",
        "held_out_path": root / "held-out",
        "model": root / f"{size}-{seed}",
    }
    if not places["held_out_path"].exists():
        sides = hold_out(standard_library(CORPUS_BYTES), standard_library_root(), HELD_OUT_PERCENT)
        for side, name in zip(sides, ("data_path", "held_out_path"), strict=True):
            tokenise(side, places[name], byte_tokenizer(), token_bytes=2)
    if not places["model"].exists():
        config = config_of(model_of(size))
        write_checkpoint(places["model"], init_weights(config, seed), config, tier=0, companions={})
    return places


def settings_of(training: Training, places: dict[str, Path]) -> LabSettings:
    """Return the training's `LabSettings`. Raises pydantic's ValidationError for an unknown
    setting.
    """
    size = _document()["size"][training.size]
    return with_options(
        **places,
        **training.said,
        lr=training.lr,
        seed=training.seed,
        seq_len=size.get("seq_len", SEQ_LEN),
        micro_batch=size.get("micro_batch", MICRO_BATCH),
        eval_sequences=HELD_OUT,
    )


def result_bytes(training: Training) -> tuple[int, int]:
    """Bytes of a member's result, 0 without members; and the parameters of the model."""
    nowhere = {name: Path(name) for name in ("model", "data_path")}
    agreed = recipe_of(settings_of(training, nowhere)).agreed
    config = model_of(training.size)
    parameters = sum(math.prod(shape) for shape in config_of(config).parameter_shapes(0).values())
    return (build_schema(config, 1, agreed).results.result_bytes() if agreed else 0), parameters


def train(training: Training, root: Path) -> dict[str, Any]:
    """Train in this process, and return the result line. Continue a stopped training."""
    device = exact_device(_document()["size"][training.size].get("device", "cpu"))
    recipe = recipe_of(settings_of(training, prepare(root, training.size, training.seed)))
    begun = start(recipe, device, arithmetic_of(device, "auto", "off"))
    out = None
    every = recipe.steps
    seconds = time.perf_counter
    if device.type == "cpu":
        out = root / "under-way" / hashlib.sha256(training.key.encode()).hexdigest()[:16]
        every = max(2, recipe.steps // SAVES)
        seconds = time.process_time
    clock = _Clock(every, seconds)
    TrainingLoop(recipe, begun, clock.take, out, every).run()
    if out is not None:
        shutil.rmtree(out)
    if not clock.rounds:  # it was stopped after its last step, and nobody knows how long they took
        return train(training, root)
    assert isinstance(clock.last, lab_events.Finished)
    by_tier = {
        tier: round(loss, 4)
        for tier, loss in clock.last.held_out_by_tier.items()
        if loss is not None
    }
    return {
        **{name: getattr(training, name) for name in ("arm", "steps", "lr", "seed", "said")},
        "held_out": by_tier[min(by_tier)],
        **({"held_out_by_tier": by_tier} if "tiers" in training.said else {}),
        "tokens": clock.last.tokens,
        "machine": processor() if device.type == "cpu" else torch.cuda.get_device_name(device),
        "cpu_seconds_per_step": round(clock.seconds / clock.rounds / training.inner_steps, 5),
    }


def processor() -> str:
    """Return the processor's name: Linux's, or Python's on other systems."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


class _Clock:
    """Times rounds, except the first after each save, which includes the save. Keeps the last
    event.
    """

    def __init__(self, save_every: int, seconds: Callable[[], float]) -> None:
        self.seconds = 0.0
        self.rounds = 0
        self._save_every = save_every
        self._read = seconds
        self.last: Event | None = None
        self._since = seconds()

    def take(self, event: Event) -> None:
        """Count an event of the training."""
        now = self._read()
        if isinstance(event, lab_events.Step) and event.step % self._save_every != 1:
            self.seconds += now - self._since
            self.rounds += 1
        self.last = event
        self._since = now


def runs_of(size: str, source: Path = ARMS) -> Path:
    """Return the results file of a size."""
    return RUNS / (f"{size}.jsonl" if source == ARMS else f"{source.stem}-{size}.jsonl")


def kept(size: str, source: Path = ARMS) -> dict[str, dict[str, Any]]:
    """Return the results of a size by training key."""
    path = runs_of(size, source)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {
        Training(line["arm"], size, line["steps"], line["lr"], line["seed"], line["said"]).key: line
        for line in lines
    }


def keep(size: str, line: dict[str, Any], source: Path = ARMS) -> None:
    """Append a result."""
    RUNS.mkdir(parents=True, exist_ok=True)
    with runs_of(size, source).open("a") as file:
        file.write(json.dumps(line) + "\n")


def winner(members: int) -> str | None:
    """Return the default arm with this number of members."""
    named: str | None = _document()["winner"].get(str(members))
    return named


def recommended(size: str) -> dict[str, str]:
    """Return the recommended arms of a size (docs/experiments.md) by number of members."""
    named: dict[str, str] = _document()["size"][size].get("recommended", {})
    return named


def step_tokens(size: str) -> int:
    """Return one machine's tokens per step."""
    table = _document()["size"][size]
    return int(table["batch"] * table.get("seq_len", SEQ_LEN))


def missing(size: str, names: set[str] | None = None, source: Path = ARMS) -> Iterator[Training]:
    """Yield the trainings without a result, in the order of the file."""
    done = kept(size, source)
    for arm in arms(source):
        if names is None or arm.name in names:
            yield from (one for one in arm.trainings if one.size == size and one.key not in done)


def interval(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of the 95 % interval, which is infinite for a single number."""
    if len(numbers) < 2:
        return fmean(numbers), math.inf
    return fmean(numbers), STUDENT[len(numbers) - 2] * stdev(numbers) / math.sqrt(len(numbers))
