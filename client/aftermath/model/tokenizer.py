"""A checkpoint's tokenizer, used in a child process with bounded memory and time per answer.

A file from a stranger can exhaust memory, panic or never end in native code, with four kilobytes
of input. Each such failure is a CheckpointError here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import IO, Any

from aftermath.base.environment import bare_environment
from aftermath.model.json_documents import CheckpointError
from aftermath.model.tokenizer_files import begin_id, end_id
from aftermath.model.tokenizer_process import LENGTH
from aftermath.model.tokenizer_process import PATIENCE as _PATIENCE

FIX = "Put the model's tokenizer.json there"
_MOST_ANSWER = 64 << 20
_LARGEST_ID = 2**32 - 1


class Tokenizer:
    """A tokenizer from the bytes of a `tokenizer.json`. It is thread-safe.

    `where` names the file in errors. `companions` are the tokenizer's other files by name; they
    name the special tokens.

    Every call raises CheckpointError if the file is not a tokenizer or the process cannot answer.
    """

    def __init__(
        self, data: bytes, where: str, companions: Mapping[str, bytes] | None = None
    ) -> None:
        self._where = where
        self._companions = companions or {}
        self._turn = threading.Lock()
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "aftermath.model.tokenizer_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=bare_environment(TOKENIZERS_PARALLELISM="false", RUST_BACKTRACE="0"),
        )
        weakref.finalize(self, _end, self._child)
        answer = self._ask(data, "is not a tokenizer")
        if type(answer) is not int or not 0 <= answer <= _LARGEST_ID:
            raise self._unusable("is not a tokenizer", "it has no valid vocabulary size")
        self.vocab_size = answer
        """The smallest vocabulary that has all its ids."""

    @cached_property
    def begin_id(self) -> int | None:
        """Return the token that begins a text, if its files name one."""
        return begin_id(self._companions, self.id_of)

    @cached_property
    def end_id(self) -> int | None:
        """Return the token that ends a text, by its files or by its usual name, or None."""
        return end_id(self._companions, self.id_of)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, or None if there is no such token."""
        number = self._ask(json.dumps({"token": token}).encode(), "cannot look up a token")
        return number if type(number) is int and 0 <= number <= _LARGEST_ID else None

    def token_of(self, number: int) -> str | None:
        """Return the token of an id, or None if there is no such id."""
        token = self._ask(json.dumps({"id": number}).encode(), "cannot look up a token")
        return token if type(token) is str else None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text; `special` adds the tokenizer's special tokens around it."""
        failed = "cannot tokenise a text"
        ids = self._ask(json.dumps({"text": text, "special": special}).encode(), failed)
        if type(ids) is not list or not all(
            type(one) is int and 0 <= one <= _LARGEST_ID for one in ids
        ):
            raise self._unusable(failed, "the result has the wrong type")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        failed = "cannot decode tokens"
        answer = self._ask(json.dumps({"ids": list(ids)}).encode(), failed)
        if type(answer) is not str:
            raise self._unusable(failed, "the result has the wrong type")
        return answer

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of tokens after others. Decoders may strip the leading space."""
        beginning = self.decode(before)
        whole = self.decode([*before, *ids])
        return whole[len(beginning) :] if whole.startswith(beginning) else self.decode(ids)

    def _ask(self, message: bytes, failed: str) -> Any:
        with self._turn:
            try:
                answer = json.loads(_exchanged(self._child, message))
            except (OSError, ValueError) as error:
                _end(self._child)
                raise self._unusable(failed, str(error)) from None
        if "error" in answer:
            raise self._unusable(failed, str(answer["error"]))
        return answer["is"]

    def _unusable(self, failed: str, why: str) -> CheckpointError:
        return CheckpointError(f"{self._where} {failed}: {why}", FIX)


def _exchanged(child: subprocess.Popen[bytes], message: bytes) -> bytes:
    """Return a child's answer. Raises OSError if it ends or is slow, ValueError if too long."""
    assert child.stdin is not None
    assert child.stdout is not None
    slow = threading.Timer(_PATIENCE, child.kill)
    slow.daemon = True
    slow.start()
    try:
        child.stdin.write(LENGTH.pack(len(message)) + message)
        child.stdin.flush()
        (length,) = LENGTH.unpack(_exactly(child.stdout, LENGTH.size))
        if length > _MOST_ANSWER:
            raise ValueError(f"the answer of {length} bytes is too long")
        return _exactly(child.stdout, length)
    finally:
        slow.cancel()


def _exactly(answers: IO[bytes], size: int) -> bytes:
    data = answers.read(size)
    if len(data) < size:
        raise OSError("its process crashed or was stopped")
    return data


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):  # the part that was not written yet
                pipe.close()
