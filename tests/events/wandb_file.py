"""Read the file that wandb keeps for an offline run: blocks of 32 KiB that contain records."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEAD = 7
_BLOCK = 32768
_WHOLE = 1
_LAST = 4


def _records(data: bytes) -> Iterator[bytes]:
    at = _HEAD
    record = b""
    while at + _HEAD <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + _HEAD : at + _HEAD + size]
        at += _HEAD + size
        if kind in (_WHOLE, _LAST):
            yield record
            record = b""


def read_wandb_file(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the run's metadata with its `config`, and its rows by series, without wandb's own
    series.
    """
    proto = importlib.import_module("wandb.proto.wandb_internal_pb2")  # its stub knows no messages

    run_facts: dict[str, Any] = {}
    rows = []
    for data in _records(file.read_bytes()):
        record = proto.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            run = record.run
            config = {
                item.key: json.loads(item.value_json)
                for item in run.config.update
                if item.key != "_wandb"
            }
            run_facts = {
                "project": run.project,
                "name": run.display_name,
                "group": run.run_group,
                "entity": run.entity,
                "id": run.run_id,
                "host": run.host,
                "config": config,
            }
        if record.HasField("history"):
            items = {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in record.history.item
            }
            rows.append({name: value for name, value in items.items() if not name.startswith("_")})
    return run_facts, rows
