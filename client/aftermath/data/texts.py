"""Documents of text files, read piece by piece, so that memory does not grow with a file's size.

Reads UTF-8 text, JSON lines and parquet with a field of text, and gzip of text and JSON lines.
Counts other files by kind, and records without text in the field.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from aftermath.base.bounded import Malformed, json_value
from aftermath.data.formats import HEAD_BYTES, misnamed, packed_format
from aftermath.data.source import DataError

SEPARATOR = "<|endoftext|>"
"""A line that separates documents of a text file, with any end-of-text token of the tokenizer."""
NOT_TEXT = "not UTF-8 text"
_PIECE = 1 << 18  # characters of a document in one piece
_MOST_LINE = 64 << 20  # bytes of a JSON line
_SURELY_MOST = 100  # stop when records without text exceed the others by this number
_ROWS = 256  # rows of a parquet file, read together
_GZIP = b"\x1f\x8b\x08"
_LINES = (".jsonl", ".ndjson")
_PARQUET = b"PAR1"
_ARRAY = re.compile(rb'\s*\[\s*\{\s*"')


class TextError(DataError):
    """Text cannot be turned into tokens."""

    code = "text"


class TextPiece(NamedTuple):
    """A document, or a part of a long one."""

    text: str
    ends: bool
    """Whether this is the last piece of the document."""


class Texts:
    """The documents of files. Iteration counts documents and the files that are left out."""

    def __init__(
        self, paths: Sequence[Path], *, field: str = "text", separator: str | None = None
    ) -> None:
        """Take text from `field` in JSON lines and parquet.

        `separator`: an additional line that separates documents.
        """
        self._paths = paths
        self._field = field
        marks = {SEPARATOR, separator or SEPARATOR}
        self._line = "(?m)^[ \t]*(?:" + "|".join(map(re.escape, sorted(marks))) + ")[ \t]*\r?"
        self.documents = 0
        self.left_out: Counter[str] = Counter()
        """The number of files that were not read, by kind."""
        self.inline_separators = 0
        """Number of separators inside a line. They stay text."""
        self.skipped_records = 0
        """Number of JSON lines and parquet rows without text in the field."""
        self.first_skipped = ""
        """The position of the first skipped record."""

    def __iter__(self) -> Iterator[TextPiece]:
        """Yield the pieces of the documents, file by file. Raise TextError for a damaged file."""
        for path in self._paths:
            try:
                for piece in self._of_file(path):
                    self.documents += piece.ends
                    self.inline_separators += piece.text.count(SEPARATOR)
                    yield piece
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise TextError(
                    f"{path} is damaged: {error}", "Copy or download it again"
                ) from None
            except OSError as error:
                raise TextError(
                    f"cannot read {path}: {error.strerror}",
                    f"Allow this user to read it: chmod u+r {path}",
                ) from None

    def _of_file(self, path: Path) -> Iterator[TextPiece]:
        """Yield the pieces of one file, or count it as left out."""
        with path.open("rb") as raw:
            head = raw.read(HEAD_BYTES)
            raw.seek(0)
            if head.startswith(_PARQUET):
                yield from _whole(self._rows(path))
            elif (wrong := misnamed(str(path), head)) is not None:
                raise TextError(*wrong)
            elif head.startswith(_GZIP):
                with gzip.open(raw) as unpacked:
                    yield from self._of_stream(path.with_suffix(""), path, unpacked)
            elif (packed := packed_format(head)) is not None:
                self.left_out[packed] += 1
            else:
                yield from self._of_stream(path, path, raw)

    def _of_stream(self, name: Path, path: Path, stream: Any) -> Iterator[TextPiece]:
        """Yield the pieces of an open file. `name`: the path without the suffix of compression."""
        head = stream.read(HEAD_BYTES)
        stream.seek(0)
        if name.suffix.lower() in _LINES or (
            name.suffix.lower() == ".json" and self._is_lines(head)
        ):
            yield from _whole(self._lines(path, stream))
        elif (
            name.suffix.lower() == ".json"
            and _ARRAY.match(head)
            and f'"{self._field}"'.encode() in head
        ):
            raise TextError(
                f"{path} is one JSON array instead of one object per line",
                f"Convert it: jq -c '.[]' {path} > {name.with_suffix('.jsonl').name}",
            )
        elif _is_text(stream):
            stream.seek(0)
            yield from self._plain(_decoded(stream))
        else:
            self.left_out[NOT_TEXT] += 1

    def _is_lines(self, head: bytes) -> bool:
        """Return whether the first line is a JSON object with the field, as in C4's .json files."""
        for line in head.split(b"\n")[:-1]:
            try:
                record = json_value(line)
            except Malformed:
                continue
            if isinstance(record, dict) and isinstance(record.get(self._field), str):
                return True
        return False

    def _plain(self, texts: Iterable[str]) -> Iterator[TextPiece]:
        """Cut a text into documents, and documents into pieces, at line ends if possible."""
        inside = re.compile(self._line + "\n")
        at_end = re.compile(self._line + "(?:\n|\\Z)")
        pending = ""
        started = False
        for text in texts:
            *documents, pending = inside.split(pending + text)
            for document in documents:
                if document or started:
                    yield TextPiece(document, ends=True)
                started = False
            while len(pending) > _PIECE:
                cut = pending.rfind("\n", 0, _PIECE) + 1 or _PIECE
                yield TextPiece(pending[:cut], ends=False)
                pending = pending[cut:]
                started = True
        for document in at_end.split(pending):
            if document or started:
                yield TextPiece(document, ends=True)
            started = False

    def _lines(self, path: Path, stream: BinaryIO) -> Iterator[str]:
        """Yield the text of each JSON line."""
        records = _Records(path, self._field)
        number = 0
        while line := stream.readline(_MOST_LINE + 1):
            number += 1
            if len(line) > _MOST_LINE:
                raise TextError(
                    f"line {number} of {path} is longer than {_MOST_LINE} bytes",
                    "Split the document",
                )
            if not line.strip():
                continue
            try:
                record = json_value(line.removeprefix(codecs.BOM_UTF8))
            except Malformed as error:
                raise TextError(
                    f"line {number} of {path} is not valid JSON: {error}",
                    "Correct the line, or copy the file again",
                ) from None
            fields = record if isinstance(record, dict) else {}
            text = fields.get(self._field)
            if isinstance(text, str):
                records.kept += 1
                yield text
            else:
                records.skip(
                    f"line {number}", [name for name in fields if isinstance(fields[name], str)]
                )
        self._count(records)

    def _count(self, records: _Records) -> None:
        records.end()
        self.skipped_records += records.skipped
        self.first_skipped = self.first_skipped or records.first

    def _rows(self, path: Path) -> Iterator[str]:
        """Yield the text of each row of a parquet file."""
        if find_spec("pyarrow") is None:
            raise TextError(
                f"{path} is a parquet file, but pyarrow is not installed",
                "Run pip install 'aftermath[parquet]'",
            )
        import pyarrow as pa
        import pyarrow.parquet as pq

        number = 0
        try:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
                names = [
                    one.name
                    for one in schema
                    if pa.types.is_string(one.type) or pa.types.is_large_string(one.type)
                ]
                if self._field not in names:
                    has = f"; it has text in the columns {', '.join(names)}" if names else ""
                    raise TextError(
                        f'the parquet file {path} has no text column "{self._field}"{has}',
                        "Name the column: --text-field NAME",
                    )
                records = _Records(path, self._field)
                for batch in file.iter_batches(_ROWS, columns=[self._field]):
                    for row in batch.column(0):
                        number += 1
                        if row.is_valid:
                            records.kept += 1
                            yield row.as_py()
                        else:
                            records.skip(f"row {number}", [])
                self._count(records)
        except pa.ArrowException as error:
            reason = str(error).partition("\n")[0][:200]
            raise TextError(
                f"cannot read {path} as parquet: {reason}", "Copy or download it again"
            ) from None


class _Records:
    """Counts records with and without text. Raises TextError if most have none, because the field
    is probably wrong.
    """

    def __init__(self, path: Path, field: str) -> None:
        self._path = path
        self._field = field
        self._reason = ""
        self.kept = 0
        self.skipped = 0
        self.first = ""
        """The position of the first record without text."""

    def skip(self, place: str, others: Sequence[str]) -> None:
        """Count a record without text in the field. `others`: fields in which it has text."""
        if not self.skipped:
            has = f"; it has text in {', '.join(others)}" if others else ""
            self.first = f"{self._path}, {place}"
            self._reason = f'{self.first} has no text in "{self._field}"{has}'
        self.skipped += 1
        if self.skipped > self.kept + _SURELY_MOST:
            self._refuse()

    def end(self) -> None:
        """Raise TextError if most records have no text."""
        if self.skipped > self.kept:
            self._refuse()

    def _refuse(self) -> NoReturn:
        most = f"; {self.skipped} of the first {self.skipped + self.kept} records have none"
        raise TextError(
            f"{self._reason}{most if self.kept else ''}", "Name the field: --text-field NAME"
        )


def _whole(documents: Iterable[str]) -> Iterator[TextPiece]:
    """Cut each document into pieces."""
    for document in documents:
        for start in range(0, len(document), _PIECE):
            yield TextPiece(document[start : start + _PIECE], ends=start + _PIECE >= len(document))


def _is_text(stream: BinaryIO) -> bool:
    """Return whether a file is UTF-8 without NUL, which UTF-16 and binary files contain."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while chunk := stream.read(_PIECE):
            decoder.decode(chunk)
            if b"\0" in chunk:
                return False
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _decoded(stream: BinaryIO) -> Iterator[str]:
    """Yield a file's text without a byte order mark. Line ends stay as they are."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    while part := text.read(_PIECE):
        yield part
    text.detach()
