"""Choose which RPC node a call asks next, and limit the reports about nodes that fail.

After two failures in a row, calls use the next node. After a pause that doubles (10 s to
60 s), a single call tries the failed one again. So calls return to the primary without stalling.
All times are seconds of the caller's clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from aftermath.base.rate_limit import retry_after
from aftermath.base.text import counted
from aftermath.chain.endpoints import Endpoint, advice, describe
from aftermath.chain.failures import BEHIND, RpcError
from aftermath.chain.node_client import NodeClient

log = logging.getLogger(__name__)

FAILURES_BEFORE_LEAVING = 2
LEAVE_SECONDS = 10.0
LEAVE_MAX = 60.0
# seconds that a node may be behind the requested slot; nodes behind a load balancer differ by some
# slots
LAG_SECONDS = 5.0
PAUSE_FIRST = 60.0  # seconds between two reports of an outage
PAUSE_MAX = 3600.0


@dataclass
class Outages:
    """Counts the outages of one node or connection, and limits their log lines.

    The first outage is reported at once. The pause after each report doubles from one minute to one
    hour, and resets after an equal time without an outage. The next report counts the skipped ones.
    """

    pause: float = 0.0
    silent_until: float = 0.0
    """Time until which no outage is reported."""
    unreported: int = 0
    """Outages that ended before they were reported."""
    is_out: bool = False
    is_reported: bool = False
    """Whether the present outage was reported."""
    seen_at: float = 0.0
    """Time of the last outage."""

    def lasts(self, now: float, *, long: bool = False) -> str | None:
        """Record an outage. Return the end of its log line, or None if it must not be logged.

        A `long` outage is logged even during a pause.
        """
        if not self.is_out and now - max(self.silent_until, self.seen_at) >= self.pause:
            self.pause = 0.0
        self.is_out = True
        self.seen_at = now
        if self.is_reported or (now < self.silent_until and not long):
            return None
        self.pause = min(max(2 * self.pause, PAUSE_FIRST), PAUSE_MAX)
        self.silent_until = now + self.pause
        repeat_note = (
            f", {counted(self.unreported, 'time')} more since the last report"
            if self.unreported
            else ""
        )
        self.is_reported = True
        self.unreported = 0
        return repeat_note

    def ends(self) -> bool:
        """Record the end of an outage. Return whether to log it: only if the outage was logged."""
        was_reported = self.is_reported
        if self.is_out and not was_reported:
            self.unreported += 1
        self.is_out = False
        self.is_reported = False
        return was_reported


@dataclass(eq=False)
class Node:
    """A node, and the outcomes of recent calls to it."""

    endpoint: Endpoint
    client: NodeClient
    verified: bool = False
    """Whether its genesis hash has been compared with the cluster's."""
    failures: int = 0
    """Failures in a row."""
    left_until: float = 0.0
    left_seconds: float = LEAVE_SECONDS
    tried_at: float = float("-inf")
    answered_at: float = float("-inf")
    last_error: str = "not tried"
    advice: str = ""
    """A fix for the last error, if there is a better one than for any failure."""
    behind_since: float | None = None
    """Time since which it has only answered that it is behind (minContextSlot)."""
    not_before: float = 0.0
    """Earliest time of the next call, if the node asked for a pause (Retry-After)."""
    outages: Outages = field(default_factory=Outages)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Nodes:
    """Nodes in order of preference (`all`). Log lines call a node `called`."""

    def __init__(self, nodes: Sequence[Node], called: str) -> None:
        self.all = tuple(nodes)
        self._called = called

    def choose(self, failed: Sequence[Node], now: float) -> Node:
        """Return the node for the next try of a call. `failed` has a node once for each time it
        failed that call.
        """
        ready = [node for node in self.all if node.not_before <= now] or self.all
        times = {node: failed.count(node) // FAILURES_BEFORE_LEAVING for node in ready}
        nodes = [node for node in ready if times[node] == min(times.values())]
        for node in nodes:
            if node.failures < FAILURES_BEFORE_LEAVING:
                return node
            if node.left_until <= now:
                # Only this call tries the node. Other calls use the next node until this one
                # answers.
                node.left_seconds = min(node.left_seconds * 2, LEAVE_MAX)
                node.left_until = now + node.left_seconds
                return node
        return min(nodes, key=lambda n: n.tried_at)

    def pause(self, now: float) -> float:
        """Return the seconds until the first node may be asked again (Retry-After)."""
        return max(0.0, min(node.not_before for node in self.all) - now)

    def answered(self, node: Node, now: float) -> None:
        """Record an answer of the node."""
        node.answered_at = now
        if node.outages.ends():
            log.warning("%s %s answers again", self._called, node.endpoint.shown)
        node.failures = 0
        node.behind_since = None
        node.left_until = 0.0
        node.left_seconds = LEAVE_SECONDS

    def failed(self, node: Node, error: BaseException, now: float) -> None:
        """Record a failure of the node. After two in a row, calls use other nodes."""
        node.last_error = describe(error)
        node.advice = advice(error)
        if isinstance(error, RpcError) and error.code == BEHIND:
            if node.behind_since is None:
                node.behind_since = now
            if now - node.behind_since < LAG_SECONDS:
                return
        node.failures += 1
        if isinstance(error, httpx.HTTPStatusError):
            node.not_before = now + retry_after(
                error.response.headers.get("Retry-After"), LEAVE_MAX
            )
        log.debug("%s %s: %s", self._called, node.endpoint.shown, node.last_error)
        if node.failures < FAILURES_BEFORE_LEAVING:
            return
        if (repeat_note := node.outages.lasts(now)) is not None:
            log.warning(
                "%s %s does not answer (%s)%s",
                self._called,
                node.endpoint.shown,
                node.last_error,
                repeat_note,
            )
        if node.left_until <= now:
            node.verified = False
            node.left_until = now + node.left_seconds

    def tell_silent(self, now: float, seconds: float) -> None:
        """Warn of each node that has not answered for `seconds`, unless that was logged before."""
        for node in self.all:
            if node.tried_at <= node.answered_at or now - node.answered_at < seconds:
                continue
            reason = node.last_error if node.failures else f"no answer for {seconds:.0f} s"
            if (repeat_note := node.outages.lasts(now, long=True)) is not None:
                log.warning(
                    "%s %s does not answer (%s)%s",
                    self._called,
                    node.endpoint.shown,
                    reason,
                    repeat_note,
                )
