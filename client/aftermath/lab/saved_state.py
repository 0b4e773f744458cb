"""Save and load the state of a training, as one file that is replaced atomically.

Tensors and counters share one safetensors file (counters as JSON in its header), so that one rename
makes both valid at once. A directory belongs to one process at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from aftermath.base.bounded import Malformed, json_as
from aftermath.base.files import parents_made, partial_path
from aftermath.base.locks import hold
from aftermath.lab.lab_events import Finished
from aftermath.model.json_documents import CheckpointError
from aftermath.model.save_checkpoint import write_errors, writing

STATE = "state.safetensors"
LOCK = "lock"
_COUNTERS = "counters"


class Counters(msgspec.Struct, frozen=True):
    """The progress of a training, without its tensors."""

    bound: dict[str, Any]
    """The recipe and the fingerprints of its files. Only an equal recipe may resume."""
    step: int
    new_sequences: int
    """Number of new sequences used so far."""
    retry_queue: list[tuple[int, list[int]]]
    """(earliest step, sequences to train again)."""
    events: int
    """Size of the event file when the state was saved, in bytes."""
    finished: Finished | None = None


def save_state(directory: Path, tensors: Mapping[str, Tensor], counters: Counters) -> None:
    """Replace the last saved state. Raises CheckpointError, and then keeps the last state."""
    with writing(directory), partial_path(directory / STATE) as partial:
        save_file(
            dict(tensors), partial, metadata={_COUNTERS: msgspec.json.encode(counters).decode()}
        )


def load_state(directory: Path) -> tuple[dict[str, Tensor], Counters] | None:
    """Return the last saved state, or None. Raises CheckpointError if it is damaged."""
    path = directory / STATE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            counters: Counters = json_as((file.metadata() or {}).get(_COUNTERS, ""), Counters)
            return {name: file.get_tensor(name) for name in file.keys()}, counters  # noqa: SIM118
    except (SafetensorError, OSError, Malformed) as error:
        raise CheckpointError(f"{path} is damaged: {error}", "Remove it to start again") from None


@contextlib.contextmanager
def only_here(directory: Path) -> Iterator[None]:
    """Create and lock the directory. Raises CheckpointError if another process has locked it.

    If the block fails and leaves only the lock in the directory, remove the lock and the
    directories created here.
    """
    with contextlib.ExitStack() as stack:
        with write_errors(directory):
            stack.enter_context(parents_made(directory))
            try:
                lock = hold(directory / LOCK)
            except BlockingIOError:
                raise CheckpointError(
                    f"another process is training in {directory}",
                    "Wait for it to end, or name another directory",
                ) from None
        with lock:
            try:
                yield
            except BaseException:
                with contextlib.suppress(OSError):  # Windows cannot remove an open file
                    if [path.name for path in directory.iterdir()] == [LOCK]:
                        (directory / LOCK).unlink()
                raise
