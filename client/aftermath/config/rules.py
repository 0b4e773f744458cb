"""The rules about a config and a model, checked before the owner pays for a transaction.

The program also checks the rules of the config, the checkpoint and the schema. Its IDL has their
sentences, and tests compare each rule with the compiled program. Only this module checks the rules
of the training spec.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from aftermath.base.errors import code_of
from aftermath.config.errors import Mistake, Path
from aftermath.programs import COORDINATOR_IDL
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.limits import (
    LOCATION_BYTES,
    MAX_SEQ_LEN,
    MAX_TIME,
    MAX_WARMUP_TOKENS,
    REPO_BYTES,
    REVISION_BYTES,
)
from aftermath.rules.optimizers import optimizers, sentences
from aftermath.rules.run import MAX_WITNESSES
from aftermath.rules.state import CheckpointKind, DataKind, ScheduleKind

_Broken = Iterator[tuple[str, Path, Any]]

TIMES = ("epoch_time", "max_round_train_time", "warmup_time", "cooldown_time", "round_witness_time")
# Non-negative doubles compare like their bits. The bits of negative doubles and NaN are above
# those of infinity.
_INFINITY = 0x7FF0_0000_0000_0000


@cache
def program_errors() -> dict[str, str]:
    """Return the sentence of every error of the coordinator program, by name."""
    return {
        error["name"]: error["msg"] for error in json.loads(COORDINATOR_IDL.read_text())["errors"]
    }


SPEC_SENTENCES = {
    "LocationLength": "The data location needs a path, URL or host of 1 to 192 bytes.",
    "LocationFolderTooLong": "The data location's folder must have at most 192 bytes.",
    "NumFilesZero": "Numbered files need num_files above 0.",
    "LearningRateInvalid": (
        "Learning rates must be finite numbers of at least 0, and base_lr above 0."
    ),
    "AuditsWithoutClipping": (
        "Audits need clip_grad_norm above 0: without it, nothing limits the moments that members claim."
    ),
    "ScheduleTooShort": "A linear or cosine schedule needs total_steps above warmup_steps.",
}
"""The sentence of each rule of a training spec by name, except the rules of optimizers."""


def rule_sentences() -> dict[str, str]:
    """Return the sentence of every rule, of the program and of the training spec, by its name."""
    return program_errors() | SPEC_SENTENCES | sentences()


def broken(config: Mapping[str, Any], model: Mapping[str, Any]) -> list[Mistake]:
    """Return every rule that these parts of an update break; `model` has the spec's values too."""
    return _mistakes([*_config(config), *_model(config, model)], config)


def broken_spec(values: Mapping[str, Any]) -> list[Mistake]:
    """Return every rule that the values of a training spec break."""
    return _mistakes(_spec(values), {})


def _mistakes(faults: Iterable[tuple[str, Path, Any]], config: Mapping[str, Any]) -> list[Mistake]:
    known = rule_sentences()
    return [
        Mistake(
            path,
            f"{path[-1]} = {_shown(value)}: {_with_others(_about(known[name], path), path, config)}",
            code_of(name),
        )
        for name, path, value in faults
    ]


def _about(sentence: str, path: Path) -> str:
    """Return the sentence with the file's key for a directory, which the program calls `repo`."""
    return sentence.replace("'s repo ", "'s path ") if path[-1] == "path" else sentence


def _with_others(sentence: str, path: Path, config: Mapping[str, Any]) -> str:
    """Return the sentence with the values of the other keys that it names."""
    names = dict.fromkeys(re.findall(r"\w+", sentence))
    others = [f"{key} is {config[key]}" for key in names if key in config and key != path[-1]]
    return f"{sentence} Here {' and '.join(others)}." if others else sentence


def _config(config: Mapping[str, Any]) -> _Broken:
    epoch_time = config["epoch_time"]
    rounds = config["rounds_per_epoch"]
    start = config["global_batch_size_start"]
    end = config["global_batch_size_end"]
    rules = [
        ("EpochLengthMissing", "rounds_per_epoch", not epoch_time and not rounds),
        ("WarmupTooLong", "warmup_time", 0 < epoch_time <= config["warmup_time"]),
        ("CooldownTimeZero", "cooldown_time", config["cooldown_time"] == 0),
        ("RoundTrainTimeZero", "max_round_train_time", config["max_round_train_time"] == 0),
        (
            "RoundTrainTimeTooLong",
            "max_round_train_time",
            0 < epoch_time <= config["max_round_train_time"],
        ),
        (
            "MinRoundTimeInvalid",
            "min_round_time",
            0 < config["max_round_train_time"] < config["min_round_time"],
        ),
        ("RoundWitnessTimeZero", "round_witness_time", config["round_witness_time"] == 0),
        (
            "ExtraTimeZero",
            "waiting_for_members_extra_time",
            config["waiting_for_members_extra_time"] == 0,
        ),
        *(("TimeTooLong", key, config[key] > MAX_TIME) for key in TIMES),
        ("MinClientsZero", "min_clients", config["min_clients"] == 0),
        (
            "InitMinClientsOutOfRange",
            "init_min_clients",
            not config["min_clients"] <= config["init_min_clients"] <= MAX_MEMBERS,
        ),
        ("WitnessNodesTooMany", "witness_nodes", config["witness_nodes"] > MAX_WITNESSES),
        (
            "WitnessNodesAboveMinClients",
            "witness_nodes",
            config["witness_nodes"] > config["min_clients"],
        ),
        ("BatchSizeZero", "global_batch_size_start", start == 0),
        ("BatchSizeShrinks", "global_batch_size_end", end < start),
        (
            "BatchWarmupTooLong",
            "global_batch_size_warmup_tokens",
            config["global_batch_size_warmup_tokens"] > MAX_WARMUP_TOKENS,
        ),
        ("TotalStepsZero", "total_steps", config["total_steps"] == 0),
        (
            "VerificationPercentTooLarge",
            "verification_percent",
            config["verification_percent"] > 100,
        ),
        ("OverlapInvalid", "overlap", config["overlap"] > 1),
    ]
    yield from ((name, ("config", key), config[key]) for name, key, is_broken in rules if is_broken)


def _model(config: Mapping[str, Any], model: Mapping[str, Any]) -> _Broken:
    llm = ("model", "LLM")
    if not 1 <= model["max_seq_len"] <= MAX_SEQ_LEN:
        yield "MaxSeqLenOutOfRange", (*llm, "max_seq_len"), model["max_seq_len"]
    yield from _spec(model)
    yield from _checkpoint(model["checkpoint"], (*llm, "checkpoint"))
    if model["cold_start_warmup_steps"] > _rounds_in_epoch(config):
        yield (
            "ColdStartTooLong",
            (*llm, "cold_start_warmup_steps"),
            model["cold_start_warmup_steps"],
        )
    optimizer = model["optimizer"]
    if config["verification_percent"] and not optimizer.get("clip_grad_norm", 1):
        table = optimizers()[optimizer["kind"]].TABLE
        yield "AuditsWithoutClipping", (*llm, "optimizer", table, "clip_grad_norm"), 0


def _spec(values: Mapping[str, Any]) -> _Broken:
    llm = ("model", "LLM")
    yield from _data(values["data_location"], (*llm, "data_location"))
    yield from _schedule(values["lr_schedule"], (*llm, "lr_schedule"))
    yield from _optimizer(values["optimizer"], (*llm, "optimizer"))


def _rounds_in_epoch(config: Mapping[str, Any]) -> float:
    limits = [float(config["rounds_per_epoch"])] if config["rounds_per_epoch"] else []
    if config["epoch_time"] and config["max_round_train_time"]:
        limits.append(
            max(config["epoch_time"] - config["warmup_time"], 0) // config["max_round_train_time"]
        )
    return min(limits, default=math.inf)


def _checkpoint(checkpoint: Mapping[str, Any], table: Path) -> _Broken:
    key = "path" if checkpoint["kind"] == CheckpointKind.LOCAL else "repo_id"
    path = (*table, CheckpointKind(checkpoint["kind"]).name.title(), key)
    if not checkpoint["repo"] and checkpoint["kind"] != CheckpointKind.DUMMY:
        yield "RepoMissing", path, checkpoint["repo"]
    if _bytes(checkpoint["repo"]) > REPO_BYTES:
        yield "RepoTooLong", path, checkpoint["repo"]
    if _bytes(checkpoint["revision"]) > REVISION_BYTES:
        yield "RevisionTooLong", (*path[:-1], "revision"), checkpoint["revision"]


def _data(location: Mapping[str, Any], table: Path) -> _Broken:
    if (
        location["kind"] not in (DataKind.DUMMY, DataKind.OTHER)
        and not 1 <= _bytes(location["primary"]) <= LOCATION_BYTES
    ):
        yield "LocationLength", table, location["primary"]
    if _bytes(location["secondary"]) > LOCATION_BYTES:
        yield (
            "LocationFolderTooLong",
            (*table, "Http", "location", "Gcp", "filter_directory"),
            location["secondary"],
        )
    if location["kind"] == DataKind.HTTP_NUMBERED_FILES and location["num_files"] == 0:
        yield "NumFilesZero", (*table, "Http", "location", "NumberedFiles", "num_files"), 0


def _schedule(schedule: Mapping[str, Any], table: Path) -> _Broken:
    variant = {
        ScheduleKind.CONSTANT: "Constant",
        ScheduleKind.LINEAR: "Linear",
        ScheduleKind.COSINE: "Cosine",
        ScheduleKind.WARMUP_STABLE_DECAY: "WarmupStableDecay",
    }[schedule["kind"]]
    for key in ("base_lr", "warmup_init_lr", "final_lr", "cosine_decay_final_lr"):
        bits = schedule[f"{key}_bits"]
        if bits >= _INFINITY or (key == "base_lr" and bits == 0):
            name = (
                "linear_decay_final_lr"
                if (variant, key) == ("WarmupStableDecay", "final_lr")
                else key
            )
            yield "LearningRateInvalid", (*table, variant, name), real(bits)
    too_short = schedule["total_steps"] <= schedule["warmup_steps"]
    if schedule["kind"] in (ScheduleKind.LINEAR, ScheduleKind.COSINE) and too_short:
        yield "ScheduleTooShort", (*table, variant, "total_steps"), schedule["total_steps"]


def _optimizer(values: Mapping[str, Any], table: Path) -> _Broken:
    optimizer = optimizers()[values["kind"]]
    for name, key, value in optimizer.broken(values):
        yield name, (*table, optimizer.TABLE, key), value


def real(bits: int) -> float:
    """Return the IEEE double with these bits."""
    value: float = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
    return value


def _bytes(text: str) -> int:
    return len(text.encode())


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else str(value)
