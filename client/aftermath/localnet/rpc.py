"""The JSON-RPC 2.0 envelope: one call or a batch in, one answer or a list out.

Decided: whatever a client sends gets a JSON-RPC answer; a fault of ours is logged and answered as -32603 without its
details.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from aftermath.base.bounded import Malformed, json_value
from aftermath.localnet.bank import Bank
from aftermath.localnet.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RpcError,
)

log = logging.getLogger(__name__)

MAX_BATCH = 1000

Handler = Callable[[Any], Any | Awaitable[Any]]

_encode = msgspec.json.Encoder().encode


class Rpc:
    """Answers request bodies with the handlers it was given."""

    def __init__(self, bank: Bank, handlers: Mapping[str, Handler]) -> None:
        self._bank = bank
        self._handlers = handlers

    async def answer(self, body: bytes) -> bytes:
        """The response body; empty when nothing is to be answered (notifications)."""
        try:
            request = json_value(body)
        except Malformed:
            return _encode(failure(None, RpcError(PARSE_ERROR, "Parse error")))
        self._bank.tick()
        if not isinstance(request, list):
            answer = await self._one(request)
            return b"" if answer is None else _encode(answer)
        if not request or len(request) > MAX_BATCH:
            return _encode(failure(None, RpcError(INVALID_REQUEST, f"A batch has 1 to {MAX_BATCH} requests")))
        answers = [answer for answer in [await self._one(one) for one in request] if answer is not None]
        return _encode(answers) if answers else b""

    async def _one(self, request: Any) -> dict[str, Any] | None:
        call = check_call(request)
        if isinstance(call, RpcError):
            return failure(None, call)
        method, params, call_id = call
        try:
            handler = self._handlers.get(method)
            if handler is None:
                raise RpcError(METHOD_NOT_FOUND, "Method not found")
            result = handler(params)
            if inspect.isawaitable(result):
                result = await result
        except RpcError as error:
            return failure(call_id, error)
        except Exception:
            log.exception("%s failed", method)
            return failure(call_id, RpcError(INTERNAL_ERROR, "Internal error"))
        return None if "id" not in request else {"jsonrpc": "2.0", "result": result, "id": call_id}


def check_call(request: Any) -> tuple[str, Any, Any] | RpcError:
    """(method, params, id) of one call, or why it is not one."""
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0" or not isinstance(request.get("method"), str):
        return RpcError(INVALID_REQUEST, "Invalid request")
    call_id = request.get("id")
    if isinstance(call_id, bool) or not isinstance(call_id, str | int | float | None):
        return RpcError(INVALID_REQUEST, "Invalid request")
    return request["method"], request.get("params"), call_id


def failure(call_id: Any, error: RpcError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": error.to_json(), "id": call_id}
