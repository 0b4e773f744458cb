"""The numbers of a picture as a file: CSV with one row for each point, or JSON with one list for each curve."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

from aftermath.base.outputs import output_file
from aftermath.watch.plot import Curve

TABLES = (".csv", ".json")
_HEADER = ["curve", "step", "loss"]
_JSON_HEAD = '{"losses": '


def write_table(path: Path, curves: Mapping[str, Curve]) -> None:
    """Write the curves to a file of one of the kinds in TABLES. Raises OutputError."""
    if path.suffix == ".json":
        text = f"{_JSON_HEAD}{json.dumps({name: list(curve) for name, curve in curves.items()})}}}\n"
    else:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(_HEADER)
        writer.writerows((name, step, loss) for name, curve in curves.items() for step, loss in curve)
        text = buffer.getvalue()
    with output_file(path, _is_ours) as stream:
        stream.write(text.encode())


def _is_ours(head: bytes) -> bool:
    return head.startswith((_JSON_HEAD.encode(), ",".join(_HEADER).encode()))
