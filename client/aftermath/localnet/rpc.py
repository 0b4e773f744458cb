"""The JSON-RPC 2.0 envelope: one call or a batch in, one reply or a list out.

Each request gets a JSON-RPC reply. A fault of the server is logged, and its reply is -32603
without details.
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
    JsonRpcError,
)

log = logging.getLogger(__name__)

MAX_BATCH = 1000

Handler = Callable[[Any], Any | Awaitable[Any]]

_encode = msgspec.json.Encoder().encode


class Rpc:
    """Answers request bodies with its handlers."""

    def __init__(self, bank: Bank, handlers: Mapping[str, Handler]) -> None:
        self._bank = bank
        self._handlers = handlers

    async def answer(self, body: bytes) -> bytes:
        """Return the response body; it is empty for notifications."""
        try:
            request = json_value(body)
        except Malformed:
            return _encode(failure(None, JsonRpcError(PARSE_ERROR, "Parse error")))
        self._bank.tick()
        if not isinstance(request, list):
            answer = await self._one(request)
            return b"" if answer is None else _encode(answer)
        if not request or len(request) > MAX_BATCH:
            return _encode(
                failure(
                    None, JsonRpcError(INVALID_REQUEST, f"A batch has 1 to {MAX_BATCH} requests")
                )
            )
        answers = [
            answer for answer in [await self._one(one) for one in request] if answer is not None
        ]
        return _encode(answers) if answers else b""

    async def _one(self, request: Any) -> dict[str, Any] | None:
        call = check_call(request)
        if isinstance(call, JsonRpcError):
            return failure(None, call)
        method, params, call_id = call
        try:
            handler = self._handlers.get(method)
            if handler is None:
                raise JsonRpcError(METHOD_NOT_FOUND, "Method not found")
            result = handler(params)
            if inspect.isawaitable(result):
                result = await result
        except JsonRpcError as error:
            return failure(call_id, error)
        except Exception:
            log.exception("%s failed", method)
            return failure(call_id, JsonRpcError(INTERNAL_ERROR, "Internal error"))
        return None if "id" not in request else {"jsonrpc": "2.0", "result": result, "id": call_id}


def check_call(request: Any) -> tuple[str, Any, Any] | JsonRpcError:
    """Return (method, params, id) of one call, or the error of an invalid one."""
    if (
        not isinstance(request, dict)
        or request.get("jsonrpc") != "2.0"
        or not isinstance(request.get("method"), str)
    ):
        return JsonRpcError(INVALID_REQUEST, "Invalid request")
    call_id = request.get("id")
    if isinstance(call_id, bool) or not isinstance(call_id, str | int | float | None):
        return JsonRpcError(INVALID_REQUEST, "Invalid request")
    return request["method"], request.get("params"), call_id


def failure(call_id: Any, error: JsonRpcError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": error.to_json(), "id": call_id}
