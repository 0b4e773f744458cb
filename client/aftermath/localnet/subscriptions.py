"""The five Solana subscriptions, fed by the bank, and the text of their notifications.

An event is encoded once per view, for all its subscribers. The `Outbox` of a slow subscriber ends
its connection, so that the bank never waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from solders.account import Account
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.sysvar import CLOCK, SLOT_HASHES

from aftermath.localnet.bank import Bank, Executed
from aftermath.localnet.encode import AccountView
from aftermath.localnet.errors import JsonRpcError, invalid_params
from aftermath.localnet.json_rpc import Filter, Params, parse_filters, pubkey, signature
from aftermath.localnet.runtime import SYSTEM_ID

_encode = msgspec.json.Encoder().encode
_GONE = Account(0, b"", SYSTEM_ID, False)
_SYSVARS = (CLOCK, SLOT_HASHES)


class Outbox(Protocol):
    """The queue of outgoing texts of one connection."""

    def put(self, text: str) -> None:
        """Add a text without blocking. Close a connection that lags too far."""


@dataclass(eq=False)
class Subscription:
    """One subscription of one connection. `key` is its account, program or signature."""

    id: int
    kind: str
    key: Any
    outbox: Outbox
    view: AccountView = AccountView("base64")  # noqa: RUF009 (immutable)
    matches: Filter | None = None
    received: bool = False


@dataclass
class _Shelf:
    """The subscriptions of one kind by key."""

    by_key: dict[Any, dict[int, Subscription]] = field(default_factory=dict)

    def add(self, one: Subscription) -> None:
        self.by_key.setdefault(one.key, {})[one.id] = one

    def remove(self, one: Subscription) -> None:
        same = self.by_key.get(one.key, {})
        same.pop(one.id, None)
        if not same:
            self.by_key.pop(one.key, None)

    def subscribed_to(self, key: Any) -> list[Subscription]:
        return list(self.by_key.get(key, {}).values())


class Subscriptions:
    """All subscriptions of one network; a `Listener` of its bank."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._ids = itertools.count(1)
        self._all: dict[int, Subscription] = {}
        self._shelves = {
            kind: _Shelf() for kind in ("account", "program", "signature", "logs", "slot")
        }
        bank.listeners.append(self)

    def methods(self) -> dict[str, Callable[[Any, Outbox], Any]]:
        opened = {
            "accountSubscribe": self._account,
            "programSubscribe": self._program,
            "signatureSubscribe": self._signature,
            "logsSubscribe": self._logs,
            "slotSubscribe": self._slot,
        }
        kinds = ("account", "program", "signature", "logs", "slot")
        return {**opened, **{f"{kind}Unsubscribe": self._unsubscriber(kind) for kind in kinds}}

    def drop(self, outbox: Outbox) -> None:
        """Remove all subscriptions of a closed connection."""
        for one in [one for one in self._all.values() if one.outbox is outbox]:
            self._remove(one)

    def count(self, outbox: Outbox) -> int:
        """Return the number of subscriptions of a connection."""
        return sum(one.outbox is outbox for one in self._all.values())

    def catch_up(self, subscription_id: int) -> None:
        """Notify a new signature subscription at once if its transaction has landed."""
        one = self._all.get(subscription_id)
        if one is None or one.kind != "signature":
            return
        landed = self._bank.history.get(one.key)
        if landed is not None:
            self._tell_signature(one, landed.error)

    def _add(self, kind: str, key: Any, outbox: Outbox, **more: Any) -> int:
        one = Subscription(next(self._ids), kind, key, outbox, **more)
        self._all[one.id] = one
        self._shelves[kind].add(one)
        return one.id

    def _remove(self, one: Subscription) -> None:
        del self._all[one.id]
        self._shelves[one.kind].remove(one)

    def _account(self, params: Any, outbox: Outbox) -> int:
        arguments = Params(params, 2)
        config = arguments.config(1)
        config.check_commitment()
        return self._add("account", arguments.pubkey(0), outbox, view=AccountView.of(config))

    def _program(self, params: Any, outbox: Outbox) -> int:
        arguments = Params(params, 2)
        config = arguments.config(1)
        config.check_commitment()
        return self._add(
            "program",
            arguments.pubkey(0),
            outbox,
            view=AccountView.of(config),
            matches=parse_filters(config),
        )

    def _signature(self, params: Any, outbox: Outbox) -> int:
        arguments = Params(params, 2)
        config = arguments.config(1)
        config.check_commitment()
        received = config.flag("enableReceivedNotification")
        return self._add(
            "signature", signature(arguments.text(0, "signature")), outbox, received=received
        )

    def _logs(self, params: Any, outbox: Outbox) -> int:
        arguments = Params(params, 2)
        arguments.config(1).check_commitment()
        log_filter = arguments.raw(0)
        if log_filter in ("all", "allWithVotes"):
            return self._add("logs", None, outbox)
        mentions = log_filter.get("mentions") if isinstance(log_filter, dict) else None
        if not isinstance(mentions, list) or len(mentions) != 1:
            raise invalid_params(
                'the filter is "all", "allWithVotes" or {"mentions": [one public key]}'
            )
        return self._add("logs", pubkey(mentions[0], "mentions"), outbox)

    def _slot(self, params: Any, outbox: Outbox) -> int:
        Params(params, 0)
        return self._add("slot", None, outbox)

    def _unsubscriber(self, kind: str) -> Callable[[Any, Outbox], bool]:
        def unsubscribe(params: Any, outbox: Outbox) -> bool:
            one = self._all.get(Params(params, 1).number(0, "subscription id"))
            if one is None or one.kind != kind or one.outbox is not outbox:
                raise invalid_params("Invalid subscription id.")
            self._remove(one)
            return True

        return unsubscribe

    def on_slot(self, slot: int, parent: int) -> None:
        text = _text({"parent": parent, "root": parent, "slot": slot})
        for one in self._shelves["slot"].subscribed_to(None):
            _send(one, text)
        for key in _SYSVARS:
            self._tell_account(key, self._bank.account(key))

    def on_transaction(self, executed: Executed) -> None:
        outcome = executed.outcome
        landed = executed.landed
        for (key, old), (_, new) in zip(outcome.before, outcome.after, strict=True):
            if old != new:
                self._tell_account(key, new)
                self._tell_program(key, new)
        for one in self._shelves["signature"].subscribed_to(landed.signature):
            self._tell_signature(one, landed.error)
        logs = self._shelves["logs"]
        if logs.by_key:
            listening = [
                *logs.subscribed_to(None),
                *(one for key in dict.fromkeys(outcome.keys) for one in logs.subscribed_to(key)),
            ]
            self._tell_logs(listening, landed.signature, landed.error, outcome.meta.logs())

    def _tell_account(self, key: Pubkey, account: Account | None) -> None:
        listening = self._shelves["account"].subscribed_to(key)
        self._tell_views(listening, lambda view: view.show(account or _GONE))

    def _tell_program(self, key: Pubkey, account: Account | None) -> None:
        if account is None:
            return
        listening = self._shelves["program"].subscribed_to(account.owner)
        matching = [one for one in listening if one.matches is None or one.matches(account)]
        self._tell_views(matching, lambda view: {"pubkey": str(key), "account": view.show(account)})

    def _tell_views(
        self, listening: Iterable[Subscription], show: Callable[[AccountView], Any]
    ) -> None:
        texts: dict[AccountView, str | None] = {}
        for one in listening:
            if one.view not in texts:
                try:
                    texts[one.view] = self._in_context(show(one.view))
                except JsonRpcError:
                    # Data too long for base58: a validator stays silent as well.
                    texts[one.view] = None
            text = texts[one.view]
            if text is not None:
                _send(one, text)

    def _tell_signature(self, one: Subscription, error: Any) -> None:
        if one.received:
            _send(one, self._in_context("receivedSignature"))
        _send(one, self._in_context({"err": error}))
        self._remove(one)

    def _tell_logs(
        self, listening: list[Subscription], sign: Signature, error: Any, logs: list[str]
    ) -> None:
        text = self._in_context({"signature": str(sign), "err": error, "logs": logs})
        for one in listening:
            _send(one, text)

    def _in_context(self, value: Any) -> str:
        return _text({"context": {"slot": self._bank.slot}, "value": value})


def _text(result: Any) -> str:
    return _encode(result).decode()


def _send(one: Subscription, result: str) -> None:
    one.outbox.put(
        f'{{"jsonrpc":"2.0","method":"{one.kind}Notification","params":{{"result":{result},"subscription":{one.id}}}}}'
    )
