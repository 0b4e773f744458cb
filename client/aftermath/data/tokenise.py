"""Turn text into token files: a folder of UTF-8 files, or the Python standard library as a corpus every machine has.

Decided
- Documents are taken in sorted order, each ended by the tokenizer's end token, into shards `tokens-00000.bin`, ...
  `tokenizer.json` is written beside them, so that data and model cannot drift apart unnoticed.
- What is held out is held out by file: two halves of one document are too much alike to measure on.
- Special tokens that occur inside a document are text there, not control.
- Everything appears under its final name only when complete, and existing token files are never mixed with new ones.
"""

from __future__ import annotations

import hashlib
import sysconfig
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from aftermath.base.files import standing_in
from aftermath.base.outputs import write_mark
from aftermath.data.formats import SUFFIXES
from aftermath.data.source import DataError

END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>")
TOKENIZER = "tokenizer.json"
_BATCH = 32  # documents encoded at a time
_NOT_CORPUS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class Tokenised:
    """What a conversion read and wrote."""

    documents: int
    skipped: int  # files that are not UTF-8 text
    tokens: int
    files: tuple[Path, ...]
    vocab_size: int


def folder_documents(folder: Path) -> list[Path]:
    """Every file under a folder, sorted; hidden files and folders are left out. Raises DataError if there is none."""
    if not folder.is_dir():
        what = f"{folder} is no folder" if folder.exists() else f"there is no folder {folder}"
        raise DataError(what, "Name a folder that holds text files")
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not found:
        raise DataError(f"{folder} holds no files", "Name a folder that holds text files")
    return found


def standard_library_root() -> Path:
    """Where this interpreter's standard library is."""
    return Path(sysconfig.get_paths()["stdlib"])


def standard_library(budget: int) -> list[Path]:
    """Sources of this interpreter's standard library, at most `budget` bytes, without tests, sorted.

    Which ones is decided by the hash of their relative path, so a small budget still gives a mixed corpus.
    """
    root = standard_library_root()
    names = [path.relative_to(root) for path in root.rglob("*.py")]
    names = [name for name in names if not _NOT_CORPUS.intersection(name.parts)]
    names.sort(key=lambda name: hashlib.sha256(name.as_posix().encode()).digest())
    chosen, used = [], 0
    for name in names:
        size = (root / name).stat().st_size
        if 0 < size <= budget - used:
            chosen.append(root / name)
            used += size
    if not chosen:
        raise DataError(f"no source file of {root} fits in {budget} bytes", "Raise the budget")
    return sorted(chosen)


def hold_out(documents: Sequence[Path], root: Path, percent: int) -> tuple[list[Path], list[Path]]:
    """The documents to train on, and about so many percent of them to measure on.

    Which ones is decided by the hash of their path below `root` alone, so a document stays on its side whatever comes
    or goes beside it. Raises DataError if a side were empty.
    """
    sides: tuple[list[Path], list[Path]] = ([], [])
    for path in documents:
        name = f"held out {path.relative_to(root).as_posix()}"  # not the hash that chooses the standard library's files
        place = int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big")
        sides[place * 100 < percent << 64].append(path)
    if not all(sides):
        raise DataError(
            f"{percent} percent of {len(documents)} files leave nothing to train on or nothing to measure on",
            "Name a folder with more files, or another --held-out-percent",
        )
    return sides


def tokenise(
    documents: Sequence[Path], output: Path, tokenizer: Tokenizer, *, token_bytes: int, shard_tokens: int = 1 << 26
) -> Tokenised:
    """Write the documents' tokens, `token_bytes` (2 or 4) each, to shards in `output`, with `tokenizer.json`.

    Raises DataError when ids do not fit, nothing is text, or `output` already holds token files.
    """
    _check(output, tokenizer, token_bytes)
    tokenizer.encode_special_tokens = True
    end = next((i for i in map(tokenizer.token_to_id, END_TOKENS) if i is not None), None)
    texts = _Texts(documents)
    try:
        output.mkdir(parents=True, exist_ok=True)
        with _Shards(output, token_bytes, shard_tokens) as writer:
            for ids in _encoded(tokenizer, texts):
                writer.add(ids if end is None else [*ids, end])
            if not writer.tokens:
                raise DataError("none of the files is UTF-8 text", "Convert the text to UTF-8")
            writer.finish(tokenizer.to_str())
        write_mark(output, "data tokenize")
    except OSError as error:
        raise DataError(f"cannot write {output}: {error.strerror}", "Free some space or name another folder") from None
    finally:
        tokenizer.encode_special_tokens = False
    return Tokenised(texts.read, texts.skipped, writer.tokens, tuple(writer.files), tokenizer.get_vocab_size())


def _check(output: Path, tokenizer: Tokenizer, token_bytes: int) -> None:
    if token_bytes not in (2, 4):
        raise DataError(f"tokens take 2 or 4 bytes, not {token_bytes}")
    largest = max(tokenizer.get_vocab().values())
    if largest >= 1 << (8 * token_bytes):
        raise DataError(f"token ids up to {largest} do not fit in {token_bytes} bytes", "Use 4 bytes a token")
    refuse_older(output)


def refuse_older(output: Path) -> None:
    """Raises DataError if this is no folder, or one that holds token files."""
    if output.exists() and not output.is_dir():
        raise DataError(f"{output} is a file, not a folder")
    if output.is_dir() and any(path.suffix in SUFFIXES for path in output.iterdir()):
        raise DataError(f"{output} already holds token files", "Remove them or name another folder")
    if (output / TOKENIZER).exists():
        raise DataError(f"{output} already holds a {TOKENIZER}, which would be replaced", "Name a new folder")


class _Texts:
    """The documents that are UTF-8 text, counting those that are not."""

    def __init__(self, documents: Sequence[Path]) -> None:
        self._documents, self.read, self.skipped = documents, 0, 0

    def __iter__(self) -> Iterator[str]:
        for path in self._documents:
            try:
                text = path.read_bytes().decode()
            except UnicodeDecodeError:
                self.skipped += 1
                continue
            except OSError as error:
                raise DataError(f"cannot read {path}: {error.strerror}") from None
            self.read += 1
            yield text


def _encoded(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
    source = iter(texts)
    while batch := list(islice(source, _BATCH)):
        for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
            yield encoding.ids


class _Shards(ExitStack):
    """Collects tokens and writes a file whenever a shard is full; all have their final names at the end."""

    def __init__(self, output: Path, token_bytes: int, shard_tokens: int) -> None:
        super().__init__()
        self._output, self._dtype, self._limit = output, f"<u{token_bytes}", shard_tokens
        self._pending = array("I")
        self.files: list[Path] = []
        self.tokens = 0

    def add(self, ids: Sequence[int]) -> None:
        self._pending.extend(ids)
        self.tokens += len(ids)
        while len(self._pending) >= self._limit:
            self._flush(self._limit)

    def finish(self, tokenizer: str) -> None:
        if self._pending:
            self._flush(len(self._pending))
        self.enter_context(standing_in(self._output / TOKENIZER)).write_text(tokenizer)

    def _flush(self, count: int) -> None:
        path = self._output / f"tokens-{len(self.files):05}.bin"
        tokens = np.array(self._pending[:count], dtype=self._dtype)
        self.enter_context(standing_in(path)).write_bytes(tokens.tobytes())
        del self._pending[:count]
        self.files.append(path)
