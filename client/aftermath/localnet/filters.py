"""Filters of getProgramAccounts and programSubscribe: memcmp and dataSize, all of which must hold.

Decided: at most four filters of at most 128 bytes, as on a validator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from solders.account import Account

from aftermath.localnet.errors import invalid_params
from aftermath.localnet.params import Config, decoded, unsigned

MAX_FILTERS = 4
MAX_FILTER_BYTES = 128

Filter = Callable[[Account], bool]


def parse_filters(config: Config) -> Filter:
    """One predicate for the `filters` of a config."""
    parts = [_parse(item) for item in config.items("filters", MAX_FILTERS)]
    return lambda account: all(part(account) for part in parts)


def _parse(item: Any) -> Filter:
    if not isinstance(item, dict) or len(item) != 1:
        raise invalid_params("a filter is an object with one key: memcmp or dataSize")
    if "dataSize" in item:
        size = unsigned(item["dataSize"], "dataSize")
        return lambda account: len(account.data) == size
    if "memcmp" in item and isinstance(item["memcmp"], dict):
        return _memcmp(Config(item["memcmp"]))
    raise invalid_params("a filter is an object with one key: memcmp or dataSize")


def _memcmp(config: Config) -> Filter:
    offset = config.number("offset")
    given = config.raw("bytes")
    encoding = config.text("encoding", ("base58", "base64", "bytes", "binary"), "base58")
    if offset is None or given is None:
        raise invalid_params("memcmp needs offset and bytes")
    wanted = _wanted(given, "base64" if encoding == "base64" else "base58")
    end = offset + len(wanted)
    return lambda account: account.data[offset:end] == wanted


def _wanted(given: Any, encoding: str) -> bytes:
    if isinstance(given, str):
        return decoded(given, encoding, MAX_FILTER_BYTES)
    if not isinstance(given, list) or len(given) > MAX_FILTER_BYTES:
        raise invalid_params(f"memcmp bytes must be a string or a list of at most {MAX_FILTER_BYTES} numbers")
    try:
        return bytes(given)
    except (TypeError, ValueError):
        raise invalid_params("memcmp bytes must be numbers from 0 to 255") from None
