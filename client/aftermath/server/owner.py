"""The server as the owner of its run: it creates, configures and starts it like a command.

The owner's key never leaves the server. With a state directory it is stored there, readable by the
server's user only. A changed file is applied if the run is new, paused or finished (with more
steps), like `update-config`; otherwise the server says that it is not.
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
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet, create_wallet, load_wallet
from aftermath.chain.wire import Connection
from aftermath.cli.connection import SignedCluster
from aftermath.cli.create_run import LATER, missing
from aftermath.config.document import RunConfig
from aftermath.localnet.ledger import holds_chain
from aftermath.localnet.node import EmbeddedNode
from aftermath.localnet.rpc import Rpc
from aftermath.owner.agreed_data import with_agreed_data
from aftermath.owner.change import Change
from aftermath.owner.difference import differences
from aftermath.rules.model import Model
from aftermath.rules.run import Config, Run
from aftermath.rules.state import RunState
from aftermath.server.files import LEDGER, ServerError

_INSIDE = "http://127.0.0.1:1"  # where nobody listens: the calls do not leave this process


class _Inside(httpx.AsyncBaseTransport):
    """The chain of this process as a `chain.wire.Wire`."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self)

    def websocket(self, url: str) -> AbstractAsyncContextManager[Connection]:
        raise NotImplementedError("an owner reads, and subscribes to nothing")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=await self._rpc.answer(await request.aread()))


def owner_wallet(directory: Path | None) -> Wallet:
    """The owner's key in the directory of state, a new one if nothing is kept there yet. Raises
    WalletError, and ServerError where a run is kept without its key: with another one nobody owns
    it.
    """
    if directory is None:
        return Wallet(Keypair())
    path = directory / "owner.json"
    if path.exists():
        return load_wallet(path)
    if holds_chain(directory / LEDGER):
        raise ServerError(
            f"{directory} keeps a run, but not the key of its owner: there is no {path}",
            "Restore that file from a copy, or start again with an empty directory: --save-state-dir DIR",
        )
    return create_wallet(path)


@asynccontextmanager
async def inside(node: EmbeddedNode, wallet: Wallet) -> AsyncIterator[SignedCluster]:
    """The chain of this process with the owner's wallet, as the owner's commands have it."""
    async with RpcPool([endpoint(_INSIDE)], wire=_Inside(node.rpc(node.methods))) as pool:
        yield SignedCluster(pool, CoordinatorClient(pool, wallet), Authorizer(pool), wallet)


def unused_keys(file: RunConfig, run: Run, model: Model) -> list[str]:
    """Return a sentence for every key of the file that a started run does not take up, with both
    values.
    """
    # without the model's shape: to make it takes seconds, and what the run began with may be gone
    change = Change(
        metadata={},
        config=file,
        shape=None,
        restart_from_step=None,
        switch_to_hub=False,
        client_version=None,
    )
    found = differences(change, run, model)
    if not file.llm.data_hash:  # the run has a hash of its own then
        found = [one for one in found if one.key != "model.data_location.secondary"]
    return [
        f"{one.key}: the run keeps {one.old!r}; {one.new!r} in {file.file} applies to a new run only"
        for one in found
    ]


async def establish(chain: SignedCluster, run_id: str, file: RunConfig) -> list[str]:
    """See that the run exists, goes by the file if it may still be changed, and is started. What is
    to be said of that.

    Raises what the owner's commands raise, and ServerError where another run is kept and not this
    one.
    """
    names = [run.run_id for run, _, _ in await chain.coordinator.list_runs()]
    if names and run_id not in names:
        kept = " and ".join(map(repr, names))
        raise ServerError(
            f"--save-state-dir keeps the run {kept}, not {run_id!r}",
            f"Pass --run-id {shlex.quote(names[0])}, or pass an empty --save-state-dir DIR for {run_id!r}",
        )
    steps = await missing(chain, run_id, {}, chain.wallet.pubkey, "")
    if not steps:
        run, model, _ = await chain.coordinator.snapshot(run_id)
        rules = Config(**file.to_chain()["config"])
        if run.state is RunState.FINISHED and rules.total_steps <= run.trained_steps:
            return [
                f"the run has trained all its {run.trained_steps} steps: raise total_steps in the file to continue"
            ]
        if not run.halted:
            return unused_keys(file, run, model)
    # loads PyTorch: a server that resumes does not wait for it, since its members check
    from aftermath.owner.schema import shape_of
    from aftermath.owner.warnings import warnings_of

    shape = await asyncio.to_thread(shape_of, file)
    config, trouble = await asyncio.to_thread(with_agreed_data, file, shape.vocab_size)
    if steps:
        await chain.sender.afford(steps, chain.coordinator.sizes(run_id), later=LATER)
        await chain.sender.send_packed(steps)
    run, model, _ = await chain.coordinator.snapshot(run_id)
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
    return warnings_of(run, model, shape, trouble)
