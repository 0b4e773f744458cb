"""Create, configure and start a server's run, as its owner.

The owner's key stays in the state directory, readable only by the server's user. The server
applies a changed config file, like `update-config`, if the run is new or paused, or if it is
finished and the file adds steps. Otherwise it prints the keys that it ignores.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
from solders.keypair import Keypair

from aftermath.chain.authorizer import Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import endpoint
from aftermath.chain.node_client import Connection
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet, create_wallet, load_wallet
from aftermath.cli.connection import SignedCluster
from aftermath.cli.create_run import LATER_TRANSACTIONS, missing_instructions
from aftermath.config.document import RunConfig
from aftermath.localnet.json_rpc import Rpc
from aftermath.localnet.ledger import holds_chain
from aftermath.localnet.node import EmbeddedNode
from aftermath.owner.agreed_data import with_agreed_data
from aftermath.owner.change import Change, differences
from aftermath.rules.model import Model
from aftermath.rules.run import Config, Run
from aftermath.rules.state import RunState
from aftermath.server.option_files import LEDGER, ServerError

_URL = "http://127.0.0.1:1"  # a placeholder: calls stay in this process


class _InProcessWire(httpx.AsyncBaseTransport):
    """A `chain.node_client.Wire` to the chain of this process."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    def http(self) -> httpx.AsyncClient:
        """Return an HTTP client that calls the chain directly."""
        return httpx.AsyncClient(transport=self)

    def websocket(self, url: str) -> AbstractAsyncContextManager[Connection]:
        """Raise NotImplementedError: the owner's commands do not subscribe."""
        raise NotImplementedError("an owner does not subscribe")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a JSON-RPC request."""
        return httpx.Response(200, content=await self._rpc.answer(await request.aread()))


def owner_wallet(directory: Path | None) -> Wallet:
    """Load the owner's key from the state directory, or create one if the directory has no run.

    Raises WalletError. Raises ServerError if there is a run without its key, because no other key
    can control that run.
    """
    if directory is None:
        return Wallet(Keypair())
    path = directory / "owner.json"
    if path.exists():
        return load_wallet(path)
    if holds_chain(directory / LEDGER):
        raise ServerError(
            f"{directory} has a run, but not its owner's key {path.name}",
            f"Restore {path} from a backup, or start a new run with an empty --save-state-dir DIR",
        )
    return create_wallet(path)


@asynccontextmanager
async def owner_cluster(node: EmbeddedNode, wallet: Wallet) -> AsyncIterator[SignedCluster]:
    """Open the chain of this process with the owner's wallet, as the owner's commands use it."""
    async with RpcPool([endpoint(_URL)], wire=_InProcessWire(node.rpc(node.methods))) as pool:
        yield SignedCluster(pool, CoordinatorClient(pool, wallet), Authorizer(pool), wallet)


def unused_keys(file: RunConfig, run: Run, model: Model) -> list[str]:
    """Describe each changed config key that a started run ignores, with its old and new value."""
    # Do not compare the model's shape: computing it takes seconds, and the first checkpoint may
    # be gone.
    change = Change(
        metadata={},
        config=file,
        shape=None,
        restart_from_step=None,
        switch_to_hub=False,
        client_version=None,
    )
    changed = differences(change, run, model)
    if not file.llm.data_hash:  # the server computed the run's hash by itself
        changed = [
            difference
            for difference in changed
            if difference.key != "model.data_location.secondary"
        ]
    return [
        f"{difference.key}: the run keeps {difference.old!r}; {difference.new!r} in {file.file} "
        "applies to a new run only"
        for difference in changed
    ]


async def ensure_run(chain: SignedCluster, run_id: str, file: RunConfig) -> list[str]:
    """Create the run if it does not exist, apply the file if the run allows it, and start the run.

    Return warnings for the operator. Raises what the owner's commands raise, and ServerError if the
    state directory has another run.
    """
    names = [run.run_id for run, _, _ in await chain.coordinator.list_runs()]
    if names and run_id not in names:
        existing = " and ".join(map(repr, names))
        raise ServerError(
            f"--save-state-dir has the run {existing}, not {run_id!r}",
            f"Pass --run-id {shlex.quote(names[0])}, or an empty --save-state-dir DIR for {run_id!r}",
        )
    steps = await missing_instructions(chain, run_id, {}, chain.wallet.pubkey, "")
    if not steps:
        run, model, _ = await chain.coordinator.snapshot(run_id, any_spec=True)
        rules = Config(**file.to_chain()["config"])
        if run.state is RunState.FINISHED and rules.total_steps <= run.trained_steps:
            return [
                f"the run has trained all its {run.trained_steps} steps: raise total_steps in {file.file} to continue"
            ]
        if not run.halted and model.spec_error:
            return [f"{model.spec_error}; restart with the version of the server that wrote it"]
        if not run.halted:
            return unused_keys(file, run, model)
    # These load PyTorch, which takes seconds. A server that only resumes does not need them.
    from aftermath.owner.schema import shape_of
    from aftermath.owner.warnings import warnings_of

    shape = await asyncio.to_thread(shape_of, file)
    config, data_warning = await asyncio.to_thread(with_agreed_data, file, shape.vocab_size)
    if steps:
        await chain.sender.afford(steps, chain.coordinator.sizes(run_id), later=LATER_TRANSACTIONS)
        await chain.sender.send_packed(steps)
    run, model, _ = await chain.coordinator.snapshot(run_id, any_spec=True)
    change = Change(
        metadata={},
        config=config,
        shape=shape,
        restart_from_step=None,
        switch_to_hub=False,
        client_version=None,
    )
    await chain.sender.send_packed(change.instructions(chain.coordinator.ix, run, model))
    await chain.coordinator.set_paused(run_id, False)
    run, model, _ = await chain.coordinator.snapshot(run_id)
    return warnings_of(run, model, shape, data_warning)
