"""The nodes of one RPC service: which of them a call asks next, and which are left for how long.

Decided: a node that fails twice in a row is left for the next one and tried again after a pause that doubles (10 s
to 60 s), by one call at a time, so that the primary is returned to without stalling the others; a call for which a
node has failed twice leaves it, whatever that node answers to other calls, and so do the next ones of its kind, for
such a pause. All times are seconds of the caller's clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from aftermath.base.backoff import retry_after
from aftermath.chain.endpoints import Endpoint, HttpNode, advice, describe
from aftermath.chain.outages import Outages

log = logging.getLogger(__name__)

FAILURES_BEFORE_LEAVING = 2
LEAVE_SECONDS, LEAVE_MAX = 10.0, 60.0


@dataclass
class Leave:
    """Until when a node is not asked, and for how long it is or was left; twice as long each time it is tried again."""

    until: float = 0.0
    seconds: float = field(default_factory=lambda: LEAVE_SECONDS)

    def again(self, now: float) -> None:
        """It is tried by one call, and left by the others meanwhile."""
        self.seconds = min(self.seconds * 2, LEAVE_MAX)
        self.until = now + self.seconds


@dataclass(eq=False)
class Node:
    """One of them, and what has become of calls to it."""

    endpoint: Endpoint
    http: HttpNode
    verified: bool = False
    failures: int = 0
    away: Leave = field(default_factory=Leave)
    """Of all calls, once it has failed twice in a row."""
    tried_at: float = 0.0
    answered_at: float = float("-inf")
    last_error: str = "not tried"
    advice: str = ""
    """A fix for the last error, where the answer says more than that nothing answers."""
    not_before: float = 0.0
    """When it may be asked again, where it said so (Retry-After)."""
    silent: bool = False
    """Whether that was no answer at all: one that is behind answers."""
    left: dict[str, Leave] = field(default_factory=dict)
    """By kind of call: those it has failed twice in one call, while it answered others."""
    outages: Outages = field(default_factory=Outages)
    of_kind: dict[str, Outages] = field(default_factory=dict)
    """What a person is told of these two."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def is_gone(self, now: float) -> bool:
        """Whether it is left at this moment because it does not answer."""
        return self.silent and self.failures >= FAILURES_BEFORE_LEAVING and self.away.until > now


class Nodes:
    """`all` of them, in the order in which they are preferred; `called`: what one is to a person who reads a log."""

    def __init__(self, nodes: Sequence[Node], called: str) -> None:
        self.all, self._called = tuple(nodes), called

    def choose(self, failed: Sequence[Node], kind: str, now: float) -> Node:
        """The node for the next try of a call for which these have `failed`, one entry for each time."""
        ready = [node for node in self.all if node.not_before <= now] or self.all
        times = {node: failed.count(node) // FAILURES_BEFORE_LEAVING for node in ready}
        nodes = [node for node in ready if times[node] == min(times.values())]
        for node in nodes:
            leaves = [node.away] if node.failures >= FAILURES_BEFORE_LEAVING else []
            leaves += [node.left[kind]] if kind in node.left else []
            if any(leave.until > now for leave in leaves):
                continue
            # One call tries the node that was left; the others go on to the next node until it is known to answer.
            for leave in leaves:
                leave.again(now)
            return node
        return min(nodes, key=lambda n: n.tried_at)

    def pause(self, now: float) -> float:
        """Return the seconds for which every node has asked not to be asked (Retry-After)."""
        return max(0.0, min(node.not_before for node in self.all) - now)

    def answered(self, node: Node, now: float) -> None:
        """It has, whatever was before."""
        node.answered_at = now
        if node.outages.ends():
            log.warning("%s %s answers again", self._called, node.endpoint.shown)
        node.failures, node.away = 0, Leave()

    def failed(self, node: Node, error: BaseException, now: float) -> None:
        """It did not answer, or not as it should; the second time in a row it is left by all calls."""
        node.failures += 1
        node.last_error = describe(error)
        node.advice = advice(error)
        if isinstance(error, httpx.HTTPStatusError):
            node.not_before = now + retry_after(error.response.headers.get("Retry-After"), LEAVE_MAX)
        node.silent = isinstance(error, TimeoutError | OSError | httpx.TransportError)
        log.debug("%s %s: %s", self._called, node.endpoint.shown, node.last_error)
        if node.failures < FAILURES_BEFORE_LEAVING:
            return
        if (also := node.outages.lasts(now)) is not None:
            log.warning("%s %s does not answer (%s)%s", self._called, node.endpoint.shown, node.last_error, also)
        if node.away.until <= now:
            node.verified = False
            node.away.until = now + node.away.seconds

    def tell_silent(self, now: float, seconds: float) -> None:
        """Warn of every node that was asked and has not answered for so long, unless a warning stands already."""
        for node in self.all:
            if node.tried_at <= node.answered_at or now - node.answered_at < seconds:
                continue
            why = node.last_error if node.failures else f"no answer for {seconds:.0f} s"
            if (also := node.outages.lasts(now, long=True)) is not None:
                log.warning("%s %s does not answer (%s)%s", self._called, node.endpoint.shown, why, also)

    def leave(self, node: Node, kind: str, now: float) -> None:
        """Have the next calls of this kind made elsewhere, for a while."""
        node.left.setdefault(kind, Leave(now + LEAVE_SECONDS))
        if node.failures >= FAILURES_BEFORE_LEAVING or len(self.all) == 1:
            return
        if (also := node.of_kind.setdefault(kind, Outages()).lasts(now)) is not None:
            why = node.last_error + also
            log.warning("%s %s answers, but not to %s (%s)", self._called, node.endpoint.shown, kind, why)

    def answered_to(self, node: Node, kind: str) -> None:
        """It has answered a call of this kind, which may be made of it again."""
        node.left.pop(kind, None)
        if kind in node.of_kind:
            node.of_kind[kind].ends()
