"""Turn text into token files: a folder of text files, or the Python standard library.

Documents are read in sorted order, each followed by the end-of-text token, into shards
`tokens-00000.bin`, ... The tokenizer's files are written next to them, so that data and model
stay together. Files get their final names only when all are complete.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tokenizers import Tokenizer

from aftermath.base.files import fix_of, parents_made, partial_path
from aftermath.base.outputs import write_mark
from aftermath.data.bytelevel import END_TOKEN
from aftermath.data.formats import SUFFIXES
from aftermath.data.texts import NOT_TEXT, TextError, TextPiece, Texts

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
_BATCH_TEXTS = 64  # the most texts that are encoded together
_BATCH_CHARACTERS = 1 << 20  # per batch; an encoding takes about 100 bytes per token
_NOT_CORPUS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class Tokenised:
    """The result of a conversion."""

    documents: int
    left_out: Mapping[str, int]
    """The number of files that were not read, by kind."""
    inline_separators: int
    """`<|endoftext|>` inside lines, which stayed text."""
    skipped_records: int
    """JSON lines and parquet rows without text in the field."""
    first_skipped: str
    """The position of the first skipped record."""
    tokens: int
    files: tuple[Path, ...]
    vocab_size: int

    @property
    def skipped(self) -> int:
        """Return the number of files that were not read."""
        return sum(self.left_out.values())


def folder_documents(folder: Path) -> list[Path]:
    """Return a file, or all files under a folder, sorted and without hidden ones.

    Raise TextError if there is none.
    """
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        contents = (
            f"{folder} is neither a file nor a folder"
            if folder.exists()
            else f"there is no folder {folder}"
        )
        raise TextError(contents, "Name a text file, or a folder with text files")
    documents = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not documents:
        raise TextError(f"{folder} has no files", "Name a folder with text files")
    return documents


def standard_library_root() -> Path:
    """Return the folder of this interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def standard_library(budget: int) -> list[Path]:
    """Return sorted sources of the standard library, at most `budget` bytes, without tests.

    The hash of the relative path decides, so a small budget still gives a mixed corpus.
    """
    root = standard_library_root()
    names = [path.relative_to(root) for path in root.rglob("*.py")]
    names = [name for name in names if not _NOT_CORPUS.intersection(name.parts)]
    names.sort(key=lambda name: hashlib.sha256(name.as_posix().encode()).digest())
    chosen = []
    used = 0
    for name in names:
        size = (root / name).stat().st_size
        if 0 < size <= budget - used:
            chosen.append(root / name)
            used += size
    if not chosen:
        raise TextError(f"no source file of {root} fits in {budget} bytes", "Raise the budget")
    return sorted(chosen)


def hold_out(documents: Sequence[Path], root: Path, percent: int) -> tuple[list[Path], list[Path]]:
    """Split documents into those to train on and about `percent` percent to measure on.

    The hash of the path below `root` decides, so other documents do not affect a document's part.
    Raise TextError if a part is empty.
    """
    sides: tuple[list[Path], list[Path]] = ([], [])
    for path in documents:
        # independent of the hash that chooses files
        name = f"held out {path.relative_to(root).as_posix()}"
        position = int.from_bytes(
            hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big"
        )
        sides[position * 100 < percent << 64].append(path)
    if not all(sides):
        raise TextError(
            f"holding out {percent} percent of {len(documents)} files leaves one side empty",
            "Name a folder with more files, or another --held-out-percent",
        )
    return sides


def tokenise(
    documents: Sequence[Path],
    output: Path,
    tokenizer: Tokenizer,
    *,
    token_bytes: int,
    end_token: str | None = END_TOKEN,
    text_field: str = "text",
    companions: Mapping[str, bytes] | None = None,
    shard_tokens: int = 1 << 26,
) -> Tokenised:
    """Write the documents' tokens, `token_bytes` (2 or 4) each, to shards in `output`.

    `end_token` follows each document, if the tokenizer has it. `companions` are files to write next
    to `tokenizer.json`. Raise TextError if ids do not fit, nothing is text, or `output` already
    holds token files.
    """
    largest = _check(output, tokenizer, token_bytes)
    end = tokenizer.token_to_id(end_token) if end_token is not None else None
    texts = Texts(documents, field=text_field, separator=end_token)
    tokenizer.encode_special_tokens = True  # special tokens inside a document stay text
    try:
        with parents_made(output), _Shards(output, token_bytes, shard_tokens) as writer:
            for ids, ends in _encoded(tokenizer, texts):
                writer.add(ids if end is None or not ends else [*ids, end])
            if not writer.tokens:
                raise _nothing(texts)
            writer.finish({TOKENIZER: tokenizer.to_str().encode()} | dict(companions or {}))
        write_mark(output, "data tokenize")
    except OSError as error:
        raise TextError(
            f"cannot write {output}: {error.strerror}", fix_of(error, "folder")
        ) from None
    finally:
        tokenizer.encode_special_tokens = False
    return Tokenised(
        texts.documents,
        dict(texts.left_out),
        texts.inline_separators,
        texts.skipped_records,
        texts.first_skipped,
        writer.tokens,
        tuple(writer.files),
        largest + 1,
    )


def _nothing(texts: Texts) -> TextError:
    """Return the error for files without any token."""
    kinds = texts.left_out.keys() - {NOT_TEXT}
    if kinds:
        return TextError(
            f"none of the files is text: {', '.join(sorted(kinds))}",
            "Unpack or decompress the text first",
        )
    if texts.left_out:
        return TextError("none of the files is UTF-8 text", "Convert the text to UTF-8")
    return TextError("the files are empty", "Name files with text")


def _check(output: Path, tokenizer: Tokenizer, token_bytes: int) -> int:
    """Return the tokenizer's largest id."""
    if token_bytes not in (2, 4):
        raise TextError(f"a token must have 2 or 4 bytes, not {token_bytes}")
    largest = max(tokenizer.get_vocab().values())
    if largest >= 1 << (8 * token_bytes):
        raise TextError(
            f"token ids up to {largest} do not fit into {token_bytes} bytes",
            "Use 4 bytes per token",
        )
    check_output_unused(output)
    return largest


def check_output_unused(output: Path) -> None:
    """Raise TextError if `output` is a file or already holds token files."""
    if output.exists() and not output.is_dir():
        raise TextError(
            f"{output} is a file, not a folder", "Pass a folder; it is created if it does not exist"
        )
    if output.is_dir() and any(path.suffix in SUFFIXES for path in output.iterdir()):
        raise TextError(f"{output} already has token files", "Remove them, or name another folder")
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        if (output / name).exists():
            raise TextError(
                f"{output} already has a {name}, which this command would replace",
                "Name a new folder",
            )


def _encoded(tokenizer: Tokenizer, texts: Iterable[TextPiece]) -> Iterator[tuple[list[int], bool]]:
    """Yield the ids of each piece, and whether it is the last of its document."""
    for batch in _batches(texts):
        encodings = tokenizer.encode_batch_fast(
            [piece.text for piece in batch], add_special_tokens=False
        )
        for encoding, piece in zip(encodings, batch, strict=True):
            yield encoding.ids, piece.ends


def _batches(pieces: Iterable[TextPiece]) -> Iterator[list[TextPiece]]:
    batch: list[TextPiece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        if len(batch) >= _BATCH_TEXTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch = []
            characters = 0
    if batch:
        yield batch


class _Shards(ExitStack):
    """Writes tokens to files of a fixed number of tokens, which get their final names at
    the end.
    """

    def __init__(self, output: Path, token_bytes: int, shard_tokens: int) -> None:
        super().__init__()
        self._output = output
        self._dtype = f"<u{token_bytes}"
        self._limit = shard_tokens
        self._stream: BinaryIO | None = None
        self._room = 0
        """Tokens that still fit in the open shard."""
        self.files: list[Path] = []
        self.tokens = 0

    def add(self, ids: Sequence[int]) -> None:
        tokens = np.array(ids, self._dtype)
        self.tokens += len(tokens)
        while len(tokens):
            if self._stream is None:
                self._stream = self._next()
            part = tokens[: self._room]
            self._stream.write(part.tobytes())
            self._room -= len(part)
            tokens = tokens[len(part) :]
            if not self._room:
                self._stream.close()
                self._stream = None

    def finish(self, companions: Mapping[str, bytes]) -> None:
        """Write the files that go with the shards."""
        for name, data in companions.items():
            self.enter_context(partial_path(self._output / name)).write_bytes(data)

    def _next(self) -> BinaryIO:
        path = self._output / f"tokens-{len(self.files):05}.bin"
        partial = self.enter_context(partial_path(path))
        self.files.append(path)
        self._room = self._limit
        return self.enter_context(partial.open("wb"))
