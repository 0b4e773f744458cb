"""Decide which failures of an RPC call to retry, and describe failed transactions.

Retry a node's own failures: no connection, 429, 5xx, behind, rate limited. Do not retry a request
that JSON-RPC calls malformed, or a transaction that the cluster refused.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from aftermath.coordinator.errors import CoordinatorError

PREFLIGHT_FAILURE = -32002
MAX_TEXT = 500  # characters of a node's text; a program's log line has fewer
MAX_LINES = 256  # of a program's log; the cluster cuts it off at 10,000 bytes
BEHIND = -32016
"""A node has not reached the slot that was asked for (minContextSlot)."""
MALFORMED = frozenset({-32700, -32600, -32601, -32602})
"""Error codes that a retry cannot fix."""
# request classes that carry a transaction
_TRANSACTIONS = frozenset({"SendRawTransaction", "SimulateVersionedTransaction"})


class RpcError(Exception):
    """A JSON-RPC error object; `kind` is the class of the request."""

    def __init__(self, code: int, message: str, kind: str = "") -> None:
        super().__init__(f"{message} (RPC error {code})")
        self.code = code
        self.kind = kind


class BadReply(CoordinatorError):
    """An RPC node sent an invalid reply."""


class RpcRejected(CoordinatorError):
    """The RPC nodes reject the request, so a retry would not help."""


class TransactionFailed(Exception):
    """The cluster refused a transaction. `error` is its JSON, `logs` the program's log lines, or
    what a node sent in their place.
    """

    def __init__(self, error: Any, logs: Any = ()) -> None:
        super().__init__(str(error)[:MAX_TEXT])
        self.error = error
        lines = logs[:MAX_LINES] if isinstance(logs, list | tuple) else ()
        self.logs = tuple(line[:MAX_TEXT] for line in lines if isinstance(line, str))

    @property
    def kind(self) -> str:
        """The variant's name, for example `BlockhashNotFound` or `InstructionError`."""
        return variant(self.error)

    @property
    def instruction(self) -> tuple[int, Any] | None:
        """(index, detail) of an InstructionError; the detail of a program's own error is {"Custom":
        code}.
        """
        detail = self.error.get("InstructionError") if isinstance(self.error, dict) else None
        if isinstance(detail, list) and len(detail) == 2 and isinstance(detail[0], int):
            return detail[0], detail[1]
        return None

    @property
    def custom(self) -> int | None:
        """The program's own error code, or None for any other failure."""
        instruction = self.instruction
        if (
            instruction
            and isinstance(instruction[1], dict)
            and isinstance(instruction[1].get("Custom"), int)
        ):
            return int(instruction[1]["Custom"])
        return None


def variant(error: Any) -> str:
    """Return the name of a JSON error: the string itself, or the key of a one-key object."""
    if isinstance(error, dict) and len(error) == 1:
        error = next(iter(error))
    return str(error)[:MAX_TEXT]


def error_json(error: Any) -> Any:
    """Return solders' TransactionError as the cluster's JSON: a string or an object of one key."""
    name = type(error).__name__.removeprefix("TransactionError")
    if name == "Fieldless":
        return str(error).rpartition(".")[2]
    return {name: json.loads(error.to_json())}


def raise_error(error: Any, kind: str) -> NoReturn:
    """Raise TransactionFailed or RpcError for an error object. `kind`: class of the request."""
    if not isinstance(error, dict):
        raise RpcError(0, str(error)[:MAX_TEXT], kind)
    code = error.get("code")
    data = error.get("data") if code == PREFLIGHT_FAILURE and kind in _TRANSACTIONS else None
    if isinstance(data, dict) and data.get("err") is not None:
        raise TransactionFailed(data["err"], data.get("logs") or ())
    raise RpcError(
        code if isinstance(code, int) else 0, str(error.get("message", ""))[:MAX_TEXT], kind
    )
