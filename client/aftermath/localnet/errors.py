"""What can go wrong on a local network: sentences for its operator, and JSON-RPC errors for its clients.

Decided: the codes and texts towards clients are those of a validator, because clients match on them.
"""

from __future__ import annotations

from typing import Any

from aftermath.base.errors import AftermathError

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
PREFLIGHT_FAILURE = -32002
BLOCK_NOT_AVAILABLE = -32004
NODE_UNHEALTHY = -32005
UNSUPPORTED_TRANSACTION_VERSION = -32015
MIN_CONTEXT_SLOT_NOT_REACHED = -32016


class LocalnetError(AftermathError):
    """The local network cannot start or go on."""

    code = "localnet"


OPTIONS = "--ledger of a localnet, --save-state-dir of a server"
"""What names the directory of a ledger."""


class LedgerError(LocalnetError):
    """The ledger directory cannot be read or written."""

    code = "ledger"


class RpcError(Exception):
    """A JSON-RPC error object: `code`, `message` and optional `data`."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            body["data"] = self.data
        return body


def invalid_params(message: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"Invalid params: {message}")
