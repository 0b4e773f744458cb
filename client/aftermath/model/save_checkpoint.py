"""Write checkpoints: a directory appears under its name only when all its bytes are on disk.

A checkpoint is an ordinary Hugging Face directory of the full model, so only a tier-0 replica can
write one. A crash or a full disk leaves earlier checkpoints unchanged.
"""

from __future__ import annotations

import errno
import filecmp
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from aftermath.base.files import parents_made, sync
from aftermath.base.locks import alone_in
from aftermath.base.outputs import check_directory, replace_directory, write_mark
from aftermath.base.text import shortage
from aftermath.model.config import ModelConfig
from aftermath.model.json_documents import (
    COMPANIONS,
    INDEX_FILE,
    MOMENTUM_FILE,
    CheckpointError,
    is_file,
    read_limited,
)
from aftermath.model.levels import MOMENTUM
from aftermath.model.momentum_file import write_momentum
from aftermath.model.saved_checkpoints import (
    among,
    maker_name,
    move_aside,
    stem_of_run,
    step_directory,
)

T = TypeVar("T")

MAX_COMPANION_BYTES = 64 << 20
RESERVE = 1 << 20  # bytes that must stay free in addition to a checkpoint's tensors and tokenizer
# Weights above this size go into several files with an index, as the Hub does. Only one file is
# prepared at a time.
SHARD_BYTES = 5 * 10**9
"""Maximum size of one file of weights, unless a single tensor is larger."""
_NAME_ONE = "Name a directory that you may write to"
_FREE = "Free some space, or name a directory on another disk"
# followed by the process's id
_PARTIAL = ".partial-"
_SCRATCH = "aftermath-checkpoint-"


@dataclass(frozen=True)
class Saved:
    """A step's directory, and the new path of another model of that step, if there was one."""

    place: Path
    replaced: Path | None


# A step's directory is never overwritten, because the chain may name it and the run may return to
# it. Saving the same model again changes nothing. Another model is moved aside if the caller knows
# that nothing needs it; otherwise saving fails.
def save(
    directory: Path,
    params: Mapping[str, Tensor],
    config: ModelConfig,
    *,
    run_id: str,
    identity: str = "",
    step: int,
    companions: Mapping[str, bytes],
    momentum: Mapping[str, Tensor] | None = None,
    needed: Collection[Path] | None = None,
) -> Saved:
    """Write the full model's checkpoint of one step.

    `identity` (see `Run.identity`) tells apart runs that share a run id. `companions` are the
    tokenizer's files (see `read_companions`). `momentum` has the tensors of the outer momentum,
    which go into a file of their own (`model.momentum_file`). Another model of that step is moved
    aside, unless it is in `needed` or `needed` is None. Raises CheckpointError, and leaves earlier
    checkpoints unchanged.
    """
    target = step_directory(directory, stem_of_run(directory, run_id, identity), step)
    if _holds(target, params, config, momentum or {}):
        return Saved(target, None)  # even if the disk is full

    def settle(place: Path) -> Path | None:
        write_mark(place, maker_name(identity))
        return _give_name(place, target, needed)

    replaced = _write(target, params, config, 0, companions, settle, momentum=momentum or {})
    return Saved(target, replaced)


def scratch() -> Path:
    """Return a new temporary directory for a checkpoint that is only uploaded."""
    return Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{os.getpid()}-"))


def sweep() -> None:
    """Remove the scratch directories of processes that no longer run."""
    _remove_leftovers(Path(tempfile.gettempdir()), _SCRATCH)


def read_companions(directory: Path) -> dict[str, bytes]:
    """Return the files to copy with the weights (`COMPANIONS`). Raises CheckpointError."""
    companions = {}
    for name in COMPANIONS:
        path = directory / name
        if is_file(path):
            companions[name] = read_limited(path, MAX_COMPANION_BYTES)
    return companions


def write_checkpoint(
    target: Path,
    params: Mapping[str, Tensor],
    config: ModelConfig,
    *,
    tier: int,
    companions: Mapping[str, bytes],
    made_by: str = "aftermath",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a tier's Hugging Face directory (tier 0: the full model) to `target`, in `dtype`.

    Replace an earlier directory of the command `made_by`. Raises OutputError if `target` is any
    other directory (see base/outputs.py).
    """
    check_directory(target, made_by)
    _write(
        target,
        params,
        config,
        tier,
        companions,
        lambda place: _replace(place, target, made_by),
        dtype,
    )


def _write(
    target: Path,
    params: Mapping[str, Tensor],
    config: ModelConfig,
    tier: int,
    companions: Mapping[str, bytes],
    settle: Callable[[Path], T],
    dtype: torch.dtype = torch.float32,
    momentum: Mapping[str, Tensor] | None = None,
) -> T:
    weights = _stored_weights(target, params, config, tier)
    momentum = momentum or {}
    need = sum(tensor.numel() * dtype.itemsize for tensor in weights.values())
    need += sum(tensor.nbytes for tensor in momentum.values())
    need += sum(map(len, companions.values()))

    def fill(place: Path) -> None:
        _write_weights(place, weights, dtype)
        if momentum:
            write_momentum(place, momentum)
        (place / "config.json").write_text(_config_json(config, tier, dtype))
        for name in COMPANIONS:
            if name in companions:
                (place / name).write_bytes(companions[name])

    with writing(target.parent):
        _remove_leftovers(target.parent, _PARTIAL)
        _require_space(target.parent, need)
        return _publish(target.parent, fill, settle)


def _stored_weights(
    target: Path, params: Mapping[str, Tensor], config: ModelConfig, tier: int
) -> dict[str, Tensor]:
    """Return the tensors by their names in files. Raises CheckpointError if they do not fit."""
    expected = config.parameter_shapes(tier)
    if {name: tuple(tensor.shape) for name, tensor in params.items()} != expected:
        raise CheckpointError(
            f"cannot save to {target}: the tensors do not fit tier {tier} of the model"
        )
    pieces = config.pieces()
    apart = {piece.name: params[piece.name].detach().contiguous() for piece in pieces.values()}
    weights = {
        config.stored_name(name, tier): params[name] for name in expected if name not in apart
    }
    return weights | {listed: piece.of(apart[piece.name]) for listed, piece in pieces.items()}


def _holds(
    target: Path,
    params: Mapping[str, Tensor],
    config: ModelConfig,
    momentum: Mapping[str, Tensor],
) -> bool:
    """Return whether `target` is a complete checkpoint of this model, bit for bit."""
    if not target.is_dir():
        return False
    missing = {
        name: tensor.to(torch.float32)
        for name, tensor in _stored_weights(target, params, config, tier=0).items()
    }
    missing |= momentum
    try:
        if (target / "config.json").read_text() != _config_json(config, 0, torch.float32):
            return False
        for path in target.glob("*.safetensors"):
            prefix = MOMENTUM if path.name == MOMENTUM_FILE else ""
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    expected = missing.pop(prefix + name, None)
                    if expected is None or not _same_bits(expected, file.get_tensor(name)):
                        return False
    except (OSError, UnicodeDecodeError, SafetensorError):
        return False
    return not missing


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    bits = [tensor.detach().cpu().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*bits)


def _write_weights(place: Path, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write the weights to one file, or to several files and their index."""
    from huggingface_hub import split_state_dict_into_shards_factory

    parts = split_state_dict_into_shards_factory(
        dict(weights),
        get_storage_size=lambda tensor: tensor.numel() * dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=SHARD_BYTES,
    )
    for file, names in parts.filename_to_tensors.items():
        ready = {name: weights[name].detach().to("cpu", dtype).contiguous() for name in names}
        save_file(ready, place / file, metadata={"format": "pt"})
    if parts.is_sharded:
        (place / INDEX_FILE).write_text(
            _json({"metadata": parts.metadata, "weight_map": parts.tensor_to_filename})
        )


def _config_json(config: ModelConfig, tier: int, dtype: torch.dtype) -> str:
    return _json(config.to_hf(tier) | {"torch_dtype": str(dtype).removeprefix("torch.")})


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def publish(target: Path, fill: Callable[[Path], None], made_by: str = "aftermath") -> None:
    """Fill a new directory next to `target`, sync it and rename it. Raises like
    `write_checkpoint`.
    """
    check_directory(target, made_by)
    _publish(target.parent, fill, lambda place: _replace(place, target, made_by))


def _publish(directory: Path, fill: Callable[[Path], None], settle: Callable[[Path], T]) -> T:
    """Fill a new directory, sync it, and return the result of `settle`, which renames it."""
    place = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{os.getpid()}-", dir=directory))
    try:
        fill(place)
        place.chmod(0o755)
        for path in place.iterdir():
            if path.stat().st_nlink == 1:  # a hard link would change the mode of the other name too
                path.chmod(0o644)
            sync(path)
        sync(place)
        settled = settle(place)
        sync(directory)
        return settled
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _replace(place: Path, target: Path, made_by: str) -> None:
    write_mark(place, made_by)
    replace_directory(place, target, made_by)


def _give_name(place: Path, target: Path, needed: Collection[Path] | None) -> Path | None:
    """Rename `place` to `target`, unless `target` holds the same model.

    Return the new path of another model that was moved aside, or None. Raises CheckpointError if it
    must not be moved (see `save`).
    """
    with alone_in(target.parent):
        try:
            place.rename(target)  # refused if `target` has appeared meanwhile
            return None
        except OSError:
            if not target.exists():
                raise
        if _same_model(place, target):
            return None
        own_digest = target.is_dir() and not target.is_symlink()
        if needed is None or among(target, needed) or not own_digest:
            raise CheckpointError(
                f"cannot save the model to {target}, which holds another model",
                "Move it away if the run no longer needs it, or save checkpoints in another directory",
            )
        return move_aside(target, place)


def _same_model(place: Path, other: Path) -> bool:
    ours, theirs = ([path.name for path in one.glob("*.safetensors*")] for one in (place, other))
    _, different, unreadable = filecmp.cmpfiles(place, other, ["config.json", *ours], shallow=False)
    return sorted(ours) == sorted(theirs) and not different and not unreadable


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Create the directory for the block. Raise failed writes as CheckpointError.

    After an error, remove the directory if it is new and empty.
    """
    with write_errors(directory), parents_made(directory):
        yield


@contextmanager
def write_errors(directory: Path) -> Iterator[None]:
    """Raise failed writes of the system and of safetensors as CheckpointError."""
    try:
        yield
    except Exception as error:
        full = getattr(error, "errno", None) in (
            errno.ENOSPC,
            errno.EDQUOT,
        ) or "No space left" in str(error)
        if full:
            raise CheckpointError(f"the disk of {directory} is full", _FREE) from None
        if isinstance(error, OSError | SafetensorError):
            why = getattr(error, "strerror", None) or error
            large = os.strerror(errno.EFBIG) in str(why)
            fix = (
                "Allow larger files (ulimit -f), or name a directory on another file system"
                if large
                else _NAME_ONE
            )
            raise CheckpointError(f"cannot write to {directory}: {why}", fix) from None
        raise


def _require_space(directory: Path, need: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < need + RESERVE:
        needed, room = shortage(need + RESERVE, free)
        raise CheckpointError(
            f"not enough space in {directory}: a checkpoint needs {needed}, but only {room} are free",
            _FREE,
        )


def _remove_leftovers(directory: Path, prefix: str) -> None:
    """Remove the directories `<prefix><pid>-...` of processes that no longer run."""
    for path in directory.glob(f"{prefix}*"):
        pid = path.name.removeprefix(prefix).split("-")[0]
        if pid.isdecimal() and not _running(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _running(pid: int) -> bool:
    try:
        return bool(psutil.pid_exists(pid))
    except OverflowError:
        return False
