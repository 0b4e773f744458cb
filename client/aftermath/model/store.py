"""Writing checkpoints: a directory appears under its name only when every byte of it is on disk.

Decided
- A run's checkpoint of step n, with n steps trained, is `<run id>-step<n>`, an ordinary Hugging Face directory of the
  full model; only a tier-0 replica can write one. A crash or a full disk leaves earlier checkpoints as they were.
- What a killed process left behind (`.partial-...`) is removed by the next save into the same directory; its scratch
  directories are removed by `sweep`.
- A step's directory is never replaced: the chain may name it, and then it is all that the run can go back to. Saving
  the same model again changes nothing; another model of that step is refused.
"""

from __future__ import annotations

import errno
import filecmp
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from aftermath.model.config import LlamaConfig
from aftermath.model.documents import COMPANIONS, CheckpointError, read_limited

MAX_COMPANION_BYTES = 64 << 20
_MODEL = ("model.safetensors", "config.json")
_PARTIAL, _SCRATCH = ".partial-", "aftermath-checkpoint-"  # followed by the process's id


def save(
    directory: Path,
    params: Mapping[str, Tensor],
    config: LlamaConfig,
    *,
    run_id: str,
    step: int,
    companions: Mapping[str, bytes],
) -> Path:
    """Write the full model's checkpoint of a step and return its directory.

    `companions` are the tokenizer's files (see `read_companions`). Raises CheckpointError, also if there is another
    model under that name; earlier checkpoints are then untouched.
    """
    target = directory / f"{_stem(run_id)}-step{step}"
    with writing(directory):
        _remove_leftovers(directory, _PARTIAL)
    write_checkpoint(target, params, config, tier=0, companions=companions, replaces=False)
    return target


def prune(directory: Path, run_id: str, step: int, keep_steps: int, needed: Collection[Path]) -> None:
    """Remove the run's checkpoints but the newest `keep_steps` (at least 1) and those that are `needed` (resolved).

    `step` is where the run is now. Checkpoints beyond it are of a past that its owner has left by going back: they
    count as older than all others.
    """
    steps = saved_steps(directory, run_id)
    left = [path for path in steps if _step(path) > step]
    for old in (left + [path for path in steps if _step(path) <= step])[:-keep_steps]:
        if old.resolve() not in needed:
            shutil.rmtree(old, ignore_errors=True)


def scratch() -> Path:
    """A new directory in the system's temporary folder, for a checkpoint that is not to stay on this machine."""
    return Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{os.getpid()}-"))


def sweep() -> None:
    """Remove the scratch directories of processes that no longer run."""
    _remove_leftovers(Path(tempfile.gettempdir()), _SCRATCH)


def saved_steps(directory: Path, run_id: str) -> list[Path]:
    """The run's checkpoints in a directory, oldest step first."""
    pattern = re.compile(re.escape(_stem(run_id)) + r"-step\d{1,12}")
    return sorted((path for path in directory.glob("*") if pattern.fullmatch(path.name)), key=_step)


def is_saved_step(path: Path) -> bool:
    """Whether a directory bears the name of some run's checkpoint."""
    return re.fullmatch(r".+-step\d{1,12}", path.name) is not None


def _step(path: Path) -> int:
    return int(path.name.rpartition("-step")[2])


def read_companions(directory: Path) -> dict[str, bytes]:
    """The tokenizer's and generation's files of a checkpoint directory, those that it has. Raises CheckpointError."""
    found = {}
    for name in COMPANIONS:
        path = directory / name
        if path.is_file():
            found[name] = read_limited(path, MAX_COMPANION_BYTES)
    return found


def write_checkpoint(
    target: Path,
    params: Mapping[str, Tensor],
    config: LlamaConfig,
    *,
    tier: int,
    companions: Mapping[str, bytes],
    replaces: bool = True,
) -> None:
    """Write a tier's Hugging Face directory (tier 0: the full model) to `target`; see `publish` for `replaces`."""
    expected = config.parameter_shapes(tier)
    if {name: tuple(tensor.shape) for name, tensor in params.items()} != expected:
        raise CheckpointError(f"these tensors are not the tier {tier} replica that {target} should hold")
    weights = {name: params[name].detach().to("cpu", torch.float32).contiguous() for name in expected}
    need = sum(tensor.nbytes for tensor in weights.values()) + sum(map(len, companions.values())) + (1 << 20)

    def fill(place: Path) -> None:
        save_file(weights, place / _MODEL[0], metadata={"format": "pt"})
        (place / _MODEL[1]).write_text(json.dumps(config.to_hf(tier), indent=2, sort_keys=True) + "\n")
        for name in COMPANIONS:
            if name in companions:
                (place / name).write_bytes(companions[name])

    with writing(target.parent):
        _require_space(target.parent, need)
        publish(target, fill, replaces=replaces)


def publish(target: Path, fill: Callable[[Path], None], *, replaces: bool) -> None:
    """Fill a new directory beside `target`, force it to disk and give it the name.

    An older `target` is replaced, or, without `replaces`, stays: CheckpointError if it does not hold the same model.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{os.getpid()}-", dir=target.parent))
    try:
        fill(place)
        place.chmod(0o755)
        for path in place.iterdir():
            path.chmod(0o644)
            _sync(path)
        _sync(place)
        if not replaces:
            _give_name(place, target)
        elif target.exists():
            older = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{os.getpid()}-", dir=target.parent))
            target.rename(older / "older")
            place.rename(target)
            shutil.rmtree(older, ignore_errors=True)
        else:
            place.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _give_name(place: Path, target: Path) -> None:
    """Rename `place`, unless there is a `target` with the same model; CheckpointError if it holds another one."""
    try:
        place.rename(target)  # refused if there is something in `target`, whoever put it there meanwhile
    except OSError:
        if not target.exists():
            raise
        _, different, unreadable = filecmp.cmpfiles(place, target, _MODEL, shallow=False)
        if different or unreadable:
            raise CheckpointError(
                f"{target} holds another model of that name, and stays as it is",
                "Move it away if the run no longer needs it, or keep checkpoints in another directory.",
            ) from None


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Turn what the operating system and safetensors say about a failed write into a CheckpointError."""
    try:
        yield
    except Exception as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        if full:
            raise CheckpointError(f"the disk of {directory} is full", "Free some space; nothing was changed.") from None
        if isinstance(error, OSError):
            raise CheckpointError(f"cannot write to {directory}: {error.strerror or error}") from None
        raise


def _require_space(directory: Path, need: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if free < need:
        raise CheckpointError(
            f"the disk of {directory} is full: a checkpoint takes {need:,} bytes, {free:,} are free",
            "Free some space or name another directory; nothing was changed.",
        )


def _remove_leftovers(directory: Path, prefix: str) -> None:
    """Remove the directories `<prefix><pid>-...` of processes that no longer run."""
    for path in directory.glob(f"{prefix}*"):
        pid = path.name.removeprefix(prefix).split("-")[0]
        if pid.isdecimal() and not _running(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _stem(run_id: str) -> str:
    """The run id as a file name: it comes from the chain and may hold anything."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", run_id).lstrip(".") or "_"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
