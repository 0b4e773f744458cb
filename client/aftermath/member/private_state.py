"""The private optimizer state on disk, for a restart.

Each epoch replaces the file. The file names its run, tier, epoch and weight hashes, and is restored
only if all of these match. After a missed epoch or a cold start it belongs to other weights. Any
failure is a warning, and the member begins without a state.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from aftermath.base.bounded import Malformed, json_as
from aftermath.base.concurrency import cancel
from aftermath.base.files import partial_path
from aftermath.events import event_types
from aftermath.member.ports import Ports, Role, Workers
from aftermath.member.state_roots import OwnState, StateRoot
from aftermath.model.json_documents import CheckpointError
from aftermath.model.save_checkpoint import writing
from aftermath.optim.interfaces import BadState
from aftermath.optim.state_merkle import tree_of
from aftermath.replica.replica import Replica

_BINDING_KEY = "bound"
_ROOT_KEY = "told"


class _Binding(msgspec.Struct, frozen=True):
    """The run, member, epoch and weights that a saved state belongs to."""

    run_id: str
    wallet: str
    schema: str
    tier: int
    epoch: int
    """The next epoch."""
    levels: dict[str, str]
    """SHA-256 of every held level."""


class _SavedRoot(msgspec.Struct, frozen=True):
    """The root of a state in hex, and the epoch and height of its commitment."""

    root: str
    epoch: int
    height: int


class PrivateState:
    """Saves one member's state, if requested."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        own_state: OwnState,
        directory: Path | None,
    ) -> None:
        self._ports = ports
        self._role = role
        self._workers = workers
        self._own_state = own_state
        self._writing: asyncio.Task[None] | None = None
        identity = ports.feed.view.run.identity
        self._file = _file_in(directory, ports.coordinator.wallet, identity) if directory else None

    async def keep(self, replica: Replica, epoch: int, hashes: Mapping[int, bytes]) -> None:
        """Write the state of a replica that ended `epoch` with these hashes, in the background.

        Nothing is written in an audited run, whose epochs begin without states.
        """
        if self._ports.feed.run.config.verification_percent:
            return
        file = self._file
        root = self._own_state.last_root
        if file is None or root is None:  # an optimizer that has not trained has no state
            return
        await self.settle()
        binding = self._binding(epoch + 1, hashes)
        state = await self._workers.compute(replica.optimizer.state)
        self._writing = asyncio.ensure_future(self._write(file, state, binding, root))

    async def restore(self, replica: Replica, epoch: int) -> None:
        """Restore the saved state into a replica that begins this epoch, if it belongs to it."""
        # The commitment is saved with the state, so that the next one can name it. A state with
        # another root is damaged. The file is never shared with other members.
        if (file := self._file) is None or not file.exists():
            return
        hashes = await self._workers.compute(replica.hashes)
        binding = self._binding(epoch, hashes)
        try:
            saved = await self._workers.compute(lambda: _read(file, binding))
            if saved is None:
                why = f"{file} belongs to another epoch or other weights"
            else:
                state, root = saved
                await self._workers.compute(lambda: replica.optimizer.restore(state))
                self._own_state.restored(root)
                self._ports.events.emit(event_types.OptimizerRestored(epoch=epoch))
                return
        except (BadState, CheckpointError) as error:
            why = error.message
        self._ports.events.emit(
            event_types.Warning(
                message=f"the optimizer starts without its saved state: {why}", until="trained"
            )
        )

    async def settle(self) -> None:
        """Wait until the running write has ended."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def close(self) -> None:
        """Cancel the running write."""
        if self._writing is not None:
            await cancel([self._writing])

    def _binding(self, epoch: int, hashes: Mapping[int, bytes]) -> _Binding:
        return _Binding(
            run_id=self._role.run_id,
            wallet=self._ports.coordinator.wallet.hex(),
            schema=self._role.schema.hash().hex(),
            tier=self._role.tier,
            epoch=epoch,
            levels={str(level): digest.hex() for level, digest in sorted(hashes.items())},
        )

    async def _write(
        self, file: Path, state: Mapping[str, Tensor], binding: _Binding, root: StateRoot
    ) -> None:
        try:
            await self._workers.write(lambda: _save(file, state, binding, root))
        except Exception as error:  # nobody awaits this task, so report the error here
            self._ports.events.emit(
                event_types.Warning(message=f"the optimizer state was not saved: {error}")
            )


def _file_in(directory: Path, wallet: bytes, identity: str) -> Path:
    """Return the file of a wallet and a run. A later run of the same id has another one."""
    name = hashlib.sha256(f"{wallet.hex()} {identity}".encode()).hexdigest()
    return directory / f"{name[:16]}.safetensors"


def _save(file: Path, state: Mapping[str, Tensor], binding: _Binding, root: StateRoot) -> None:
    """Write the file. Raises CheckpointError, and leaves the last one untouched."""
    saved_root = _SavedRoot(root.root.hex(), root.epoch, root.height)
    metadata = {
        _BINDING_KEY: msgspec.json.encode(binding).decode(),
        _ROOT_KEY: msgspec.json.encode(saved_root).decode(),
    }
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial_path(file) as partial:
            save_file(dict(state), partial, metadata=metadata)


def _read(file: Path, expected: _Binding) -> tuple[dict[str, Tensor], StateRoot] | None:
    """Return the state in a file and its published root. None if it is bound to something else.

    Raises CheckpointError if it is damaged.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            binding: _Binding = json_as(metadata.get(_BINDING_KEY, ""), _Binding)
            if binding != expected:
                return None
            saved_root: _SavedRoot = json_as(metadata.get(_ROOT_KEY, ""), _SavedRoot)
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, Malformed) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None
    if not state or tree_of(state).root.hex() != saved_root.root:
        raise CheckpointError(
            f"{file} is damaged: its hash is not the one that this member committed to"
        )
    return state, StateRoot(bytes.fromhex(saved_root.root), saved_root.epoch, saved_root.height)
