"""The child process of `tokenizer`. It imports nothing that costs much time or memory.

Messages are JSON after their length in four bytes, little-endian: first the file, then requests
`{"text", "special"}`, `{"ids"}`, `{"token"}` and `{"id"}`. Answers are `{"is"}` or `{"error"}`.
The process also ends itself if an answer takes too long, because its parent may be dead.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from tokenizers import Tokenizer

LENGTH = struct.Struct("<I")
_MOST_MEMORY = 2 << 30
"""Limit of address space in bytes, on systems that support one."""
PATIENCE = 60
"""Seconds for one answer. Starting on a busy machine takes most of it."""


def read(data: bytes) -> Tokenizer:
    """Return the tokenizer of a file, without truncation and padding. Raises ValueError.

    A file from a training script may enable both. As in transformers, the caller decides instead.
    """
    tokenizer: Tokenizer = _told(lambda: Tokenizer.from_str(data.decode("utf-8-sig")))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if not vocabulary_size(tokenizer):
        raise ValueError("it has no tokens")
    return tokenizer


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the smallest vocabulary with all ids, which may have gaps."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def answer(tokenizer: Tokenizer, request: dict[str, Any]) -> object:
    """Return ids of a text, text of ids, id of a token or token of an id. Raises ValueError."""
    if "text" in request:
        return _told(
            lambda: (
                tokenizer.encode(
                    request["text"], add_special_tokens=request.get("special", True)
                ).ids
            )
        )
    if "token" in request:
        return _told(lambda: tokenizer.token_to_id(request["token"]))
    if "id" in request:
        return _told(lambda: tokenizer.id_to_token(request["id"]))
    return _told(lambda: tokenizer.decode(request["ids"]))


def _told(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:  # a panic of the library does not derive from Exception
        raise ValueError(str(error)) from None


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _bound_memory()
    request = sys.stdin.buffer
    answers = sys.stdout.buffer
    tokenizer = None
    while (message := _next(request)) is not None:
        _end_in(PATIENCE)
        try:
            if tokenizer is None:
                tokenizer = read(message)
                reply: dict[str, object] = {"is": vocabulary_size(tokenizer)}
            else:
                reply = {"is": answer(tokenizer, json.loads(message))}
        except ValueError as error:
            reply = {"error": str(error)}
        body = json.dumps(reply).encode()
        _end_in(0)
        answers.write(LENGTH.pack(len(body)) + body)
        answers.flush()


def _end_in(seconds: int) -> None:
    """Have the system end this process after `seconds`; 0 means never. No effect on Windows."""
    if sys.platform != "win32":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the parent may have ignored it
        signal.alarm(seconds)


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # on Windows, only the time is bounded
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MOST_MEMORY if hard == resource.RLIM_INFINITY else min(_MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _next(stream: BinaryIO) -> bytes | None:
    length = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(length)[0]) if len(length) == LENGTH.size else None


if __name__ == "__main__":
    _main()
