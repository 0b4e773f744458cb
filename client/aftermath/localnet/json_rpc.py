"""JSON-RPC 2.0: the envelope of calls and batches, and the checks of their parameters.

Each request gets a JSON-RPC reply. A wrong type or range is an error -32602 that names the
parameter. A fault of the server is logged, and its reply is -32603 without details. Unknown keys of
a config object are ignored, as on a validator, because clients send what newer versions understand.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import based58
import msgspec
import zstandard
from solders.account import Account
from solders.pubkey import Pubkey
from solders.signature import Signature

from aftermath.base.bounded import Malformed, is_u64, json_value
from aftermath.localnet.bank import Bank
from aftermath.localnet.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    JsonRpcError,
    invalid_params,
)

log = logging.getLogger(__name__)

MAX_BATCH = 1000

Handler = Callable[[Any], Any | Awaitable[Any]]

_encode = msgspec.json.Encoder().encode
COMMITMENTS = ("processed", "confirmed", "finalized")
_OLD_COMMITMENTS = ("recent", "single", "singleGossip", "max", "root")


class ConfigObject:
    """A config object. Each getter returns its default if the key is absent or null."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def text(self, key: str, allowed: Sequence[str], default: str) -> str:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in allowed:
            raise invalid_params(f"{key} is {value!r}; allowed: {', '.join(allowed)}")
        return value

    def flag(self, key: str) -> bool:
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise invalid_params(f"{key} must be true or false")
        return bool(value)

    def number(self, key: str) -> int | None:
        value = self._values.get(key)
        return None if value is None else unsigned(value, key)

    def section(self, key: str) -> ConfigObject | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise invalid_params(f"{key} must be an object")
        return ConfigObject(value)

    def items(self, key: str, limit: int) -> list[Any]:
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > limit:
            raise invalid_params(f"{key} must be a list of at most {limit}")
        return value

    def raw(self, key: str) -> Any:
        return self._values.get(key)

    def whole(self) -> dict[str, Any]:
        return self._values

    def check_commitment(self) -> None:
        """Raise JsonRpcError for an unknown commitment. All of them see the same state here."""
        self.text("commitment", (*COMMITMENTS, *_OLD_COMMITMENTS), "finalized")


class Params:
    """Positional parameters of one call, at most `most` of them."""

    def __init__(self, values: Any, most: int) -> None:
        if values is None:
            values = []
        if not isinstance(values, list):
            raise invalid_params("expected a list of positional parameters")
        if len(values) > most:
            raise invalid_params(f"expected at most {most} parameters, got {len(values)}")
        self._values: list[Any] = values

    def _at(self, index: int, name: str) -> Any:
        if index >= len(self._values) or self._values[index] is None:
            raise invalid_params(f"parameter {index} ({name}) is missing")
        return self._values[index]

    def text(self, index: int, name: str) -> str:
        value = self._at(index, name)
        if not isinstance(value, str):
            raise invalid_params(f"{name} must be a string")
        return value

    def pubkey(self, index: int, name: str = "pubkey") -> Pubkey:
        return pubkey(self._at(index, name), name)

    def pubkeys(self, index: int, limit: int) -> list[Pubkey]:
        value = self._at(index, "pubkeys")
        if not isinstance(value, list):
            raise invalid_params("pubkeys must be a list")
        if len(value) > limit:
            raise invalid_params(f"Too many inputs provided; max {limit}")
        return [pubkey(item, "pubkey") for item in value]

    def number(self, index: int, name: str) -> int:
        return unsigned(self._at(index, name), name)

    def config(self, index: int) -> ConfigObject:
        value = self._values[index] if index < len(self._values) else None
        if value is None:
            return ConfigObject({})
        if not isinstance(value, dict):
            raise invalid_params(f"parameter {index} (config) must be an object")
        return ConfigObject(value)

    def raw(self, index: int) -> Any:
        return self._values[index] if index < len(self._values) else None


def unsigned(value: Any, name: str) -> int:
    if not is_u64(value):
        raise invalid_params(f"{name} must be an unsigned 64-bit number")
    return value


def pubkey(value: Any, name: str) -> Pubkey:
    try:
        return Pubkey.from_string(value)
    except (TypeError, ValueError):
        raise invalid_params(
            f"{name} {value!r:.100} is not a base58 public key of 32 bytes"
        ) from None


def signature(value: Any) -> Signature:
    try:
        return Signature.from_string(value)
    except (TypeError, ValueError):
        raise invalid_params(f"{value!r:.100} is not a base58 signature of 64 bytes") from None


def decoded(text: str, encoding: str, limit: int) -> bytes:
    """Return the bytes of `text`, at most `limit`, from base58, base64 or base64+zstd."""
    if len(text) > limit * 2 + 8:
        raise invalid_params(
            f"{encoding} encoded too large: {len(text)} characters (max: {limit} bytes)"
        )
    try:
        if encoding == "base58":
            data = based58.b58decode(text.encode())
        else:
            data = base64.b64decode(text, validate=True)
            if encoding == "base64+zstd":
                data = zstandard.ZstdDecompressor().stream_reader(data).read(limit + 1)
    except (binascii.Error, ValueError, zstandard.ZstdError) as error:
        raise invalid_params(f"invalid {encoding} encoding: {error}") from None
    if len(data) > limit:
        raise invalid_params(f"decoded too large: {len(data)} bytes (max: {limit} bytes)")
    return data


# The limits are those of a validator.
MAX_FILTERS = 4
MAX_FILTER_BYTES = 128

Filter = Callable[[Account], bool]


def parse_filters(config: ConfigObject) -> Filter:
    """Return one predicate that holds if all `filters` of a config hold."""
    parts = [_parse(item) for item in config.items("filters", MAX_FILTERS)]
    return lambda account: all(part(account) for part in parts)


def _parse(item: Any) -> Filter:
    if not isinstance(item, dict) or len(item) != 1:
        raise invalid_params("a filter is an object with one key: memcmp or dataSize")
    if "dataSize" in item:
        size = unsigned(item["dataSize"], "dataSize")
        return lambda account: len(account.data) == size
    if "memcmp" in item and isinstance(item["memcmp"], dict):
        return _memcmp(ConfigObject(item["memcmp"]))
    raise invalid_params("a filter is an object with one key: memcmp or dataSize")


def _memcmp(config: ConfigObject) -> Filter:
    offset = config.number("offset")
    text = config.raw("bytes")
    encoding = config.text("encoding", ("base58", "base64", "bytes", "binary"), "base58")
    if offset is None or text is None:
        raise invalid_params("memcmp needs offset and bytes")
    pattern = _decoded(text, "base64" if encoding == "base64" else "base58")
    end = offset + len(pattern)
    return lambda account: account.data[offset:end] == pattern


def _decoded(text: Any, encoding: str) -> bytes:
    if isinstance(text, str):
        return decoded(text, encoding, MAX_FILTER_BYTES)
    if not isinstance(text, list) or len(text) > MAX_FILTER_BYTES:
        raise invalid_params(
            f"memcmp bytes must be a string or a list of at most {MAX_FILTER_BYTES} numbers"
        )
    try:
        return bytes(text)
    except (TypeError, ValueError):
        raise invalid_params("memcmp bytes must be numbers from 0 to 255") from None


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
