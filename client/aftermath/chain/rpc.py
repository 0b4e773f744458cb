"""Call one of up to three RPC nodes: a primary and its fallbacks.

After an error, a timeout or an unreadable reply, a call retries with exponential back-off. `nodes`
chooses the node of each try. Nodes of another cluster (by genesis hash) are never used.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import httpx

from aftermath.base.errors import AccountError, AftermathError
from aftermath.base.proxies import proxy_for
from aftermath.base.rate_limit import doubled
from aftermath.chain.endpoints import PUBLIC_GENESIS, Endpoint, describe
from aftermath.chain.failures import MALFORMED, BadReply, RpcError, RpcRejected, TransactionFailed
from aftermath.chain.node_client import Internet, NodeClient, Wire
from aftermath.chain.nodes import FAILURES_BEFORE_LEAVING, Node, Nodes
from aftermath.coordinator.errors import CoordinatorError, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

Ask = Callable[[NodeClient], Awaitable[T]]
"""One or more requests to a node. Exceptions count as the node's failure, except errors for the
caller (CoordinatorError, TransactionFailed).
"""

MAX_ENDPOINTS = 3
BACKOFF_FIRST = 0.25
BACKOFF_MAX = 4.0
REPORT_AFTER = 2.0  # seconds without a first answer until it is logged
# seconds for another node to answer, and to catch up if it is some slots behind
AGREE_SECONDS = 1.5
AGREE_AGAIN = 0.3
_EXPECTED = (AftermathError, TransactionFailed, RpcError, httpx.HTTPError, OSError, ValueError)
"""Exceptions to expect of a request to a node (TimeoutError is an OSError)."""
_UNREACHED_HERE = "Check that it runs (a local network: aftermath-solana localnet)"
_UNREACHED = "Check its address, and that this machine is on the internet or on the node's network"
# minimum tries within a call's patience, so that a single call already leaves a hanging node
TRIES = 2.5


class WrongCluster(CoordinatorError):
    """A node belongs to another cluster than the first node that answered."""

    code = "wrong-cluster"


@dataclass
class _Cluster:
    """The cluster of the first node that answered, shared by all views of a pool."""

    genesis: str = ""
    answered: set[str] = field(default_factory=set)
    """The kinds of requests that some node has answered."""
    awaited: bool = False
    """Whether it was logged that the pool waits for the first answer."""


@dataclass
class _Tries:
    """The failures of one call."""

    failed: list[Node] = field(default_factory=list)
    refused: set[Node] = field(default_factory=set)
    """Nodes that call the request malformed."""
    strange: set[Node] = field(default_factory=set)
    """Nodes of another cluster."""


class RpcPool:
    """Calls that survive the loss of a node.

    A call without an answer is repeated for `patience` seconds, with `attempt` seconds per try.
    `wire` carries the calls, over the machine's network by default. `seed` draws the jitter of the
    back-off and should differ between processes.
    """

    called = "RPC endpoint"
    """Term for a node in log lines."""
    keeper = "the chain"
    """Term for the service behind the nodes in messages."""
    keeps_seats = True
    """Whether a seat outlasts its member's connection."""
    signs_with: Literal["wallet", "identity"] = "wallet"
    """Term for a member's key in messages."""
    has_tick = True
    """Whether a command can advance an overdue run (`tick`)."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        patience: float = 20.0,
        attempt: float = 5.0,
        seed: int = 0,
        wire: Wire | None = None,
    ) -> None:
        if not 1 <= len(endpoints) <= MAX_ENDPOINTS:
            raise CoordinatorError(
                f"a pool of {len(endpoints)} RPC endpoints is not supported",
                f"Pass one, and up to {MAX_ENDPOINTS - 1} fallbacks",
            )
        self.wire = wire or Internet()
        self.seed = seed
        self.patience = patience
        self.attempt = attempt
        self._random = random.Random(seed)
        self._cluster = _Cluster()
        self._tries = TRIES
        clients = [
            NodeClient(one.http, self.wire.http(), self._cluster.answered) for one in endpoints
        ]
        nodes = [Node(one, client) for one, client in zip(endpoints, clients, strict=True)]
        self._nodes = Nodes(nodes, self.called)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(node.endpoint for node in self._nodes.all)

    @property
    def is_local(self) -> bool:
        """Whether this is a local network, where runs are the user's own and test money may be
        asked for.

        All endpoints must be on this machine, and the genesis hash must not be that of a public
        cluster: a mainnet node can run here too, and a tunnel can lead to one. False until a first
        call was answered.
        """
        genesis = self._cluster.genesis
        is_private = bool(genesis) and genesis not in PUBLIC_GENESIS
        return is_private and all(node.endpoint.is_loopback for node in self._nodes.all)

    def patient(self, seconds: float, tries: float = TRIES) -> RpcPool:
        """Return a view of the same nodes and connections whose calls last `seconds`, with at least
        `tries` tries.
        """
        view = copy.copy(self)
        view.patience = seconds
        view._tries = tries
        return view

    def each(self) -> list[RpcPool]:
        """Return every node by itself, to ask all of them."""
        views = []
        for node in self._nodes.all:
            view = copy.copy(self)
            view._nodes = Nodes([node], self.called)
            views.append(view)
        return views

    async def uncontradicted(self, claim: Ask[bool]) -> bool:
        """Return whether `claim` holds at every node that answers.

        Used for the few answers that end a member or a command: one broken node must not suffice.
        """

        async def denies(node: RpcPool) -> bool:
            denied = False
            with suppress(CoordinatorError, TimeoutError):
                async with asyncio.timeout(AGREE_SECONDS):
                    while denied := not await node.call(claim, patience=AGREE_SECONDS):
                        await asyncio.sleep(AGREE_AGAIN)
            return denied

        if len(self._nodes.all) == 1:
            return True
        return not any(await asyncio.gather(*(denies(node) for node in self.each())))

    async def check(self) -> None:
        """Compare the clusters of all nodes that answer, so that a wrong fallback is found before
        it is needed.

        Raises WrongCluster, or Unavailable when no node at all answers.
        """
        await self.genesis()
        for node in self._nodes.all:
            try:
                async with asyncio.timeout(self.attempt):
                    await self._verify(node)
            except WrongCluster:
                raise
            except Exception as error:
                log.warning(
                    "%s %s does not answer (%s)", self.called, node.endpoint.shown, describe(error)
                )

    async def genesis(self) -> str:
        """Return the cluster's genesis hash (base58). The first call tries every node, even if all
        others hang.
        """
        per_try = self.patience / (FAILURES_BEFORE_LEAVING * len(self._nodes.all) + 0.5)
        return await self.call(_genesis, attempt=min(self.attempt, per_try))

    async def call(
        self, ask: Ask[T], *, patience: float | None = None, attempt: float | None = None
    ) -> T:
        """Return the result of `ask` for a node that answers. Try for `patience` seconds, with
        `attempt` seconds per try.

        Raises Unavailable if no node answered in time, TransactionFailed if the cluster refused a
        transaction, and WrongCluster if every node serves another cluster. Raises RpcRejected if
        all nodes call the request malformed and none has ever answered one of its kind.
        """
        patience = self.patience if patience is None else patience
        attempt = attempt or min(self.attempt, patience / self._tries)
        if self._cluster.answered:
            return await self._call(ask, patience, attempt)
        timer = asyncio.get_running_loop().call_later(REPORT_AFTER, self._awaited)
        try:
            return await self._call(ask, patience, attempt)
        finally:
            timer.cancel()

    def _awaited(self) -> None:
        """Log once that no node has answered yet: a node that drops requests fails only slowly."""
        if not self._cluster.answered and not self._cluster.awaited:
            self._cluster.awaited = True
            endpoints = ", ".join(node.endpoint.shown for node in self._nodes.all)
            log.warning("waiting for %s %s", self.called, endpoints)

    async def _call(self, ask: Ask[T], patience: float, attempt: float) -> T:
        now = asyncio.get_running_loop().time
        deadline = now() + patience
        tries = _Tries()
        while True:
            if pause := self._nodes.pause(now()):
                await asyncio.sleep(min(pause, max(deadline - now(), 0.0)))
                if now() >= deadline:
                    raise self._unavailable(patience)
                continue
            node = self._nodes.choose(tries.failed, now())
            node.tried_at = now()
            allowed = min(attempt, max(deadline - now(), 0.05))
            try:
                async with asyncio.timeout(allowed):
                    return await self._ask(node, ask)
            except TransactionFailed:
                raise
            except Exception as error:  # even a bug in reading a reply must not end the caller
                self._failed(node, error, tries)
            wait = self.backoff(len(tries.failed))
            if now() + wait >= deadline:
                raise self._unavailable(patience)
            await asyncio.sleep(wait)

    def _failed(self, node: Node, error: Exception, tries: _Tries) -> None:
        """Record a failure of the node. Raise the error if it is meant for the caller."""
        node_count = len(self._nodes.all)
        if isinstance(error, WrongCluster):
            tries.strange.add(node)
            if len(tries.strange) == node_count:
                raise error
            error = BadReply(error.message)
        if isinstance(error, AftermathError) and not isinstance(error, BadReply):
            raise error
        if isinstance(error, RpcError) and error.code in MALFORMED:
            tries.refused.add(node)
            # A gateway may also call a request malformed because of a quota, or because it
            # truncated the request. Both are temporary.
            if len(tries.refused) == node_count and error.kind not in self._cluster.answered:
                raise RpcRejected(
                    f"{node.endpoint.shown} refused the request: {describe(error)}"
                ) from error
        self._nodes.failed(node, error, asyncio.get_running_loop().time())
        tries.failed.append(node)

    def backoff(self, tries: int, longest: float = BACKOFF_MAX) -> float:
        """Return the seconds to wait after the `tries`-th failure: doubling, with jitter between
        half and all.
        """
        return doubled(tries, BACKOFF_FIRST, longest) * (0.5 + 0.5 * self._random.random())

    def tell_silent(self, seconds: float) -> None:
        """Warn of nodes that have not answered for `seconds`. The log also says when they answer
        again.
        """
        self._nodes.tell_silent(asyncio.get_running_loop().time(), seconds)

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(
            *(node.client.close() for node in self._nodes.all), return_exceptions=True
        )

    async def __aenter__(self) -> RpcPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, node: Node, ask: Ask[T]) -> T:
        if not node.verified:
            await self._verify(node)
        result = await understood(ask(node.client))
        self._nodes.answered(node, asyncio.get_running_loop().time())
        return result

    async def _verify(self, node: Node) -> None:
        """Ask a node for its genesis hash and compare it with the cluster's. Do so once, and again
        after the node was given up.
        """
        async with node.lock:
            if node.verified:
                return
            genesis = await understood(_genesis(node.client))
            self._cluster.genesis = self._cluster.genesis or genesis
            if genesis != self._cluster.genesis:
                raise WrongCluster(
                    f"RPC endpoint {node.endpoint.shown} serves another cluster (genesis {genesis[:8]}…) than "
                    f"the first node (genesis {self._cluster.genesis[:8]}…)",
                    "Use endpoints of one cluster; a local network restarted without --ledger is a new cluster",
                )
            node.verified = True

    def _unavailable(self, patience: float) -> Unavailable:
        tried = ", ".join(f"{n.endpoint.shown} ({n.last_error})" for n in self._nodes.all)
        return Unavailable(
            f"no Solana RPC endpoint answered for {patience:.0f} s: {tried}", self._fix()
        )

    def _fix(self) -> str:
        """Return the fix for the failures of all nodes."""
        fixes = []
        for node in self._nodes.all:
            fixes.append(
                node.advice or (_UNREACHED_HERE if node.endpoint.is_loopback else _UNREACHED)
            )
        for node in self._nodes.all:
            if not node.advice and (proxy := proxy_for(node.endpoint.http)) is not None:
                host = urlsplit(node.endpoint.http).hostname
                fixes.append(f"Set NO_PROXY={host} to bypass the proxy that {proxy.variable} names")
        return ". ".join(dict.fromkeys(fixes)) + ", or pass another node with --rpc or --rpc-2"


async def _genesis(node: NodeClient) -> str:
    return str((await node.get_genesis_hash()).value)


async def understood(answer: Awaitable[T]) -> T:
    """Return a node's answer. Raises BadReply if reading it fails for any reason."""
    try:
        return await answer
    except AccountError as error:
        raise BadReply(f"the RPC node sent a malformed account: {error.message}") from error
    except _EXPECTED:
        raise
    except BaseException as error:
        # solders panics on some malformed values, and its panics are not Exceptions.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadReply(
            f"the RPC node sent a reply that cannot be read ({type(error).__name__})"
        ) from error
