"""One RPC service made of a primary and up to two fallback nodes.

Decided: which node is asked is for `nodes` to say; between tries the wait grows exponentially with seeded jitter;
every await has a deadline; a reply that cannot be read is the node's failure, whatever is wrong with it; so is it when
a node calls a request malformed, unless all nodes do so and none has ever answered one of its kind (gateways say it of
quotas, of methods that they do not pass on, and of requests that they cut off themselves), and when it says that a
transaction failed where it was sent none; and a node of another cluster (genesis hash) is never used. Nor does it end a
call while there is another node: whoever keeps one of three could otherwise end a member at any time.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from solders.hash import Hash, ParseHashError
from solders.rpc.requests import GetGenesisHash, SendRawTransaction, SimulateVersionedTransaction

from aftermath.base.backoff import doubled
from aftermath.base.proxies import proxy_for
from aftermath.chain.endpoints import PUBLIC_GENESIS, Endpoint, HttpNode, Request, describe
from aftermath.chain.failures import (
    BadReply,
    RpcError,
    RpcRejected,
    TransactionFailed,
    result_of,
    retryable,
)
from aftermath.chain.nodes import FAILURES_BEFORE_LEAVING, Node, Nodes
from aftermath.chain.wire import Internet, Wire
from aftermath.coordinator.errors import CoordinatorError, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ENDPOINTS = 3
_TRANSACTIONS = (SendRawTransaction, SimulateVersionedTransaction)
BACKOFF_FIRST, BACKOFF_MAX = 0.25, 4.0
TOLD_AFTER = 2.0  # seconds a person sees nothing before the first answer
_UNREACHED_HERE = "Check that it runs (a local network: aftermath-solana localnet)"
_UNREACHED = "Check its address, and that this machine is on the internet or on the node's network"
TRIES = 2.5  # at least as many in a call's patience: a node that hangs is left within one call, not after some


class WrongCluster(CoordinatorError):
    """A node belongs to another cluster than the one first spoken to."""

    code = "wrong-cluster"


@dataclass
class _Cluster:
    """The cluster first spoken to, as all views of a pool know it."""

    genesis: str = ""
    answered: set[str] = field(default_factory=set)
    """The kinds of calls that some node has answered."""
    awaited: bool = False
    """Whether it was told that the first answer is waited for."""


class RpcPool:
    """Calls that survive the loss of a node. `patience`: seconds for which a call that gets no answer is tried again;
    `attempt`: seconds for one try; `wire`: what carries the calls (the machine's network). `seed` should be another in
    every process: it draws when the next try begins.
    """

    called = "RPC endpoint"
    keeps_seats = True
    """What a node is to a person who reads a log."""
    keeper = "the chain"
    """What is behind the nodes, to a person."""
    signs_with: Literal["wallet", "identity"] = "wallet"
    """And what a member's key is there."""
    has_tick = True
    """Whether a person can move an overdue run on with a command (`tick`)."""

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
                f"{len(endpoints)} RPC endpoints given", f"Give one, and up to {MAX_ENDPOINTS - 1} fallbacks"
            )
        self.wire = wire or Internet()
        self._nodes = Nodes([Node(e, HttpNode(e.http, self.wire.http())) for e in endpoints], self.called)
        self._everywhere = len(endpoints)  # also of a view of one node by itself
        self.seed, self._random = seed, random.Random(seed)
        self._cluster = _Cluster()
        self.patience, self._tries = patience, TRIES
        self.attempt = attempt

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(node.endpoint for node in self._nodes.all)

    @property
    def is_local(self) -> bool:
        """Whether this is a local network, where runs are the user's own and test money may be asked for.

        All endpoints are on this machine, and a node has named a genesis hash that is not a public cluster's: a node
        of mainnet can run here too, and a tunnel can lead to one. False until a first call was answered.
        """
        genesis = self._cluster.genesis
        known = bool(genesis) and genesis not in PUBLIC_GENESIS
        return known and all(node.endpoint.is_loopback for node in self._nodes.all)

    @property
    def answers(self) -> bool:
        """Whether there is a node that is not left just now for its silence."""
        now = asyncio.get_running_loop().time()
        return not all(node.is_gone(now) for node in self._nodes.all)

    def patient(self, seconds: float, tries: float = TRIES) -> RpcPool:
        """The same nodes and connections for calls that have a patience of their own, of at least so many tries."""
        view = copy.copy(self)
        view.patience, view._tries = seconds, tries
        return view

    def each(self) -> list[RpcPool]:
        """Every node by itself, for what has to be asked of all."""
        views = []
        for node in self._nodes.all:
            view = copy.copy(self)
            view._nodes = Nodes([node], self.called)
            views.append(view)
        return views

    async def check(self) -> None:
        """Compare the clusters of all nodes that answer now, so that a wrong fallback is found before it is needed.

        Raises WrongCluster, or Unavailable when no node at all answers.
        """
        await self.genesis()
        for node in self._nodes.all:
            try:
                async with asyncio.timeout(self.attempt):
                    await self._verify(node, self.attempt)
            except WrongCluster:
                raise
            except Exception as error:
                log.warning("%s %s does not answer (%s)", self.called, node.endpoint.shown, describe(error))

    async def genesis(self) -> str:
        """The cluster's genesis hash (base58). In the first call of all each node is tried, also if all others hang."""
        each = self.patience / (FAILURES_BEFORE_LEAVING * self._everywhere + 0.5)
        return await self.call(GetGenesisHash(), genesis_hash, attempt=min(self.attempt, each))

    async def call(
        self,
        request: Request,
        read: Callable[[Any], T],
        *,
        patience: float | None = None,
        attempt: float | None = None,
    ) -> T:
        """The `result` of `request`, as `read` understands it; a result it refuses (BadReply) counts as the node's
        failure.

        Raises Unavailable when no node answered within `patience`, RpcRejected when all nodes refused the request
        as malformed and none has ever answered its kind, TransactionFailed when the cluster refused a transaction,
        WrongCluster when all of them are of another one.
        """
        if self._cluster.answered:
            return await self._call(request, read, patience, attempt)
        telling = asyncio.get_running_loop().call_later(TOLD_AFTER, self._awaited)
        try:
            return await self._call(request, read, patience, attempt)
        finally:
            telling.cancel()

    def _awaited(self) -> None:
        """Say, once, that no node has answered yet: one that swallows what it is sent fails only after seconds."""
        if not self._cluster.answered and not self._cluster.awaited:
            self._cluster.awaited = True
            log.warning("waits for %s %s", self.called, ", ".join(node.endpoint.shown for node in self._nodes.all))

    async def _call(
        self, request: Request, read: Callable[[Any], T], patience: float | None, attempt: float | None
    ) -> T:
        now = asyncio.get_running_loop().time
        patience = self.patience if patience is None else patience
        deadline = now() + patience
        attempt = attempt or min(self.attempt, patience / self._tries)
        failed: list[Node] = []
        refused: set[Node] = set()
        strange: set[Node] = set()
        kind = type(request).__name__
        while True:
            if pause := self._nodes.pause(now()):
                await asyncio.sleep(min(pause, max(deadline - now(), 0.0)))
                if now() >= deadline:
                    raise self._unavailable(patience)
                continue
            node = self._nodes.choose(failed, kind, now())
            node.tried_at = now()
            allowed = min(attempt, max(deadline - now(), 0.05))
            try:
                result = await self._ask(node, request, read, allowed)
                self._nodes.answered_to(node, kind)
                self._cluster.answered.add(kind)
                log.debug("%s %s answered %s", self.called, node.endpoint.shown, kind)
                return result
            except TransactionFailed:
                raise
            except Exception as caught:
                error = caught
                if isinstance(error, WrongCluster):
                    strange.add(node)
                    if len(strange) < self._everywhere:
                        error = BadReply(error.message)
                if isinstance(error, CoordinatorError) and not isinstance(error, BadReply):
                    raise
                if not retryable(error):
                    refused.add(node)
                    if len(refused) == self._everywhere and kind not in self._cluster.answered:
                        raise RpcRejected(f"{node.endpoint.shown} refused the request: {describe(error)}") from error
                self._nodes.failed(node, error, now())
                failed.append(node)
                if failed.count(node) == FAILURES_BEFORE_LEAVING:
                    self._nodes.leave(node, kind, now())
            wait = self.backoff(len(failed))
            if now() + wait >= deadline:
                raise self._unavailable(patience)
            await asyncio.sleep(wait)

    def backoff(self, tries: int, longest: float = BACKOFF_MAX) -> float:
        """Seconds to wait after the `tries`-th failure: doubling, with seeded jitter between half and the whole."""
        return doubled(tries, BACKOFF_FIRST, longest) * (0.5 + 0.5 * self._random.random())

    def tell_silent(self, seconds: float) -> None:
        """Warn of the nodes that have not answered for so long. Their next answer is told as well."""
        self._nodes.tell_silent(asyncio.get_running_loop().time(), seconds)

    async def close(self) -> None:
        """Close the connections."""
        for node in self._nodes.all:
            await node.http.close()

    async def __aenter__(self) -> RpcPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, node: Node, request: Request, read: Callable[[Any], T], timeout: float) -> T:
        if not node.verified:
            async with asyncio.timeout(timeout):
                await self._verify(node, timeout)
        result = _understood(await node.http.ask(request, timeout), read, request)
        self._nodes.answered(node, asyncio.get_running_loop().time())
        return result

    async def _verify(self, node: Node, timeout: float) -> None:
        """Ask a node for its genesis hash once (and again after it was left), and compare it with the cluster's."""
        async with node.lock:
            if node.verified:
                return
            asked = GetGenesisHash()
            genesis = _understood(await node.http.ask(asked, timeout), genesis_hash, asked)
            self._cluster.genesis = self._cluster.genesis or genesis
            if genesis != self._cluster.genesis:
                raise WrongCluster(
                    f"RPC endpoint {node.endpoint.shown} serves another cluster (genesis {genesis[:8]}…) than "
                    f"the one this run is on (genesis {self._cluster.genesis[:8]}…)",
                    "Use endpoints of one cluster; a local network restarted without --ledger is a new cluster",
                )
            node.verified = True

    def _unavailable(self, patience: float) -> Unavailable:
        tried = ", ".join(f"{n.endpoint.shown} ({n.last_error})" for n in self._nodes.all)
        return Unavailable(f"no Solana RPC endpoint answered for {patience:.0f} s: {tried}", self._fix())

    def _fix(self) -> str:
        """Return what helps against the failures of all nodes."""
        fixes = []
        for node in self._nodes.all:
            fixes.append(node.advice or (_UNREACHED_HERE if node.endpoint.is_loopback else _UNREACHED))
        for node in self._nodes.all:
            if not node.advice and (proxy := proxy_for(node.endpoint.http)) is not None:
                host = urlsplit(node.endpoint.http).hostname
                fixes.append(f"Set NO_PROXY={host} to bypass the proxy that {proxy.variable} names")
        return ". ".join(dict.fromkeys(fixes)) + ", or pass another node with --rpc or --rpc-2"


def genesis_hash(value: Any) -> str:
    """The hash that a node calls its cluster's first (base58 of 32 bytes); BadReply for anything else."""
    try:
        return str(Hash.from_string(value))
    except (TypeError, ValueError, ParseHashError) as error:
        raise BadReply("the RPC node sent something else than a genesis hash") from error


def _understood(reply: dict[str, Any], read: Callable[[Any], T], request: Request) -> T:
    """The `result` of a reply, as `read` understands it. BadReply if it cannot be read, whatever the reason."""
    try:
        return read(result_of(reply))
    except TransactionFailed:
        if isinstance(request, _TRANSACTIONS):
            raise
        raise BadReply("the RPC node says that a transaction failed, and was sent none") from None
    except (CoordinatorError, RpcError):
        raise
    except Exception as error:
        raise BadReply(f"the RPC node sent a reply that cannot be read ({type(error).__name__})") from error
