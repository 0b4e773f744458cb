"""The checkpoints of a run in a directory: their names, and which of them to keep.

The checkpoint after n steps is `<run id>-step<n>`. A rewound run may train a step again. The step's
older model is then renamed to `<run id>-step<n>.replaced-<k>`. Such directories are removed first.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from aftermath.base.outputs import is_protected, maker_of

_STEP = "-step"
_REPLACED = ".replaced-"
_STEPS = rf"{_STEP}\d{{1,12}}"
_ASIDE = rf"{re.escape(_REPLACED)}\d{{1,12}}"


def step_directory(directory: Path, run_id: str, step: int) -> Path:
    """Return the directory of a step's checkpoint, which may not exist."""
    return directory / f"{file_name(run_id)}{_STEP}{step}"


def saved_steps(directory: Path, run_id: str) -> list[Path]:
    """Return the run's checkpoints in a directory, oldest step first."""
    return sorted(_named(directory, re.escape(file_name(run_id)) + _STEPS), key=step_of)


def newest_saved(
    directory: Path, run_id: str, identity: str, *, most: int, above: int = -1
) -> Path | None:
    """Return the run's newest checkpoint of more than `above` and at most `most` steps, or None.

    Checkpoints of more steps than the run has date from before a rewind.
    """
    stem = stem_of_run(directory, run_id, identity)
    found = [path for path in saved_steps(directory, stem) if above < step_of(path) <= most]
    return found[-1] if found else None


def stem_of_run(directory: Path, run_id: str, identity: str) -> str:
    """Return the prefix of a run's checkpoint names: its id, plus `identity` if the id is taken.

    A run id can be reused after a close, or on another network. A checkpoint's mark records the
    run's identity.
    """
    stem = file_name(run_id)
    named = _named(directory, re.escape(stem) + _STEPS + f"({_ASIDE})?")
    makers = {maker_of(path) for path in named}
    return stem if makers <= {maker_name(identity)} else f"{stem}-{identity}"


def maker_name(identity: str) -> str:
    """Return the `made_by` value of a run's checkpoint mark."""
    return f"train {identity}"


def is_removable(path: Path) -> bool:
    """Return whether a directory has a name that `prune` removes, for any run."""
    return re.fullmatch(rf".+{_STEPS}({_ASIDE})?", path.name) is not None


# Checkpoints of another run with the same name are never moved or removed. Neither are those that
# the chain names or that wait for an upload.
def prune(
    directory: Path, run_id: str, step: int, keep_steps: int, needed: Collection[Path]
) -> None:
    """Remove the run's checkpoints except the newest `keep_steps` (at least 1) and the `needed`.

    `step` is the run's current step. Later checkpoints date from before a rewind and count as older
    than all others. Checkpoints that were moved aside count as the oldest. Protected directories
    stay and do not count.
    """
    steps = saved_steps(directory, run_id)
    left = [path for path in steps if step_of(path) > step]
    ranked = [
        *_replaced(directory, file_name(run_id)),
        *left,
        *(path for path in steps if step_of(path) <= step),
    ]
    ranked = [path for path in ranked if not is_protected(path)]
    for old in ranked[:-keep_steps]:
        if not among(old, needed):
            shutil.rmtree(old, ignore_errors=True)


def among(path: Path, others: Collection[Path]) -> bool:
    """Return whether a directory is one of `others`, which may be invalid paths from the chain."""
    for other in others:
        with contextlib.suppress(OSError, ValueError):
            if path.samefile(other):
                return True
    return False


def move_aside(target: Path, place: Path) -> Path:
    """Move directory `target` aside and rename `place` to `target`. Return the old directory's new
    path.
    """
    before = [_number(path) for path in _replaced(target.parent, target.name.rpartition(_STEP)[0])]
    aside = target.with_name(f"{target.name}{_REPLACED}{max(before, default=0) + 1}")
    target.rename(aside)
    try:
        place.rename(target)
    except OSError:
        aside.rename(target)
        raise
    return aside


def _replaced(directory: Path, stem: str) -> list[Path]:
    """Return a run's directories that were moved aside, oldest first."""
    return sorted(_named(directory, re.escape(stem) + _STEPS + _ASIDE), key=_number)


def _named(directory: Path, pattern: str) -> list[Path]:
    return [path for path in directory.glob("*") if re.fullmatch(pattern, path.name)]


def step_of(path: Path) -> int:
    """Return the step of a path from `saved_steps`."""
    return int(path.name.rpartition(_STEP)[2])


def _number(replaced: Path) -> int:
    return int(replaced.name.rpartition(_REPLACED)[2])


def file_name(run_id: str) -> str:
    """Return a run id as a file name. The id comes from the chain and may contain anything."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", run_id).lstrip(".") or "_"
