"""Whole files over HTTP to a folder, part by part; what is there already is not asked for again.

Decided: a file has its final name only when it is complete and its size is the stated one; until then it is `.partial`,
and a download that was interrupted resumes at its end if the server's file is still the same (size and ETag, which are
in the name).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from aftermath.base.files import fix_of, settle
from aftermath.base.outputs import write_mark
from aftermath.data.http import HttpClient, shown
from aftermath.data.source import DataError

_PART = 8 << 20  # bytes of a request


def download(url: str, folder: Path, client: HttpClient, told: Callable[[int, int], None]) -> Path:
    """One file into a folder, under the last part of its address; `told` hears (bytes here, bytes in all).

    Raises SourceAway, DataError.
    """
    path = folder / shown(url).rsplit("/", 1)[-1]
    first = client.part(url, 0, 1)
    mark = hashlib.sha256(f"{first.size} {first.etag}".encode()).hexdigest()[:16]
    partial = path.with_name(f"{path.name}.{mark}.partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if path.stat().st_size == first.size:
                return path
            raise DataError(f"{path} is there already, and of another size", "Remove it or name another folder")
        with partial.open("ab") as file:
            while (here := file.tell()) < first.size:
                part = client.part(url, here, min(_PART, first.size - here))
                if (part.size, part.etag) != (first.size, first.etag):
                    raise DataError(f"{shown(url)} was changed while it was downloaded", "Start again")
                file.write(part.data)
                told(file.tell(), first.size)
        settle(partial, path)
        write_mark(folder, "data fetch")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}", fix_of(error, "folder")) from None
    return path
