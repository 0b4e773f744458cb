"""Speed of the iroh binding: hands `bytes` to Rust with one copy instead of one Python assignment
per byte.

Decision: iroh 1.2.0's generated `_UniffiRustBufferBuilder.write` stores byte by byte (about 7
MB/s). `install` replaces that one method by a `ctypes.memmove`, only if the class and the fields it
needs look as they did when this was written, and proves the new method on a small buffer first.
Otherwise the binding stays untouched: slower, correct.

Where RUST_BACKTRACE is set, the binding looks up, in the event loop, from where each failed
handshake came: 60 ms of a core, and strangers let handshakes fail at will. So it is told not to.
Rust asks once, when the first error is made.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import types
from typing import Any, Protocol

_PROOF = bytes(range(256))


class _Builder(Protocol):
    """What the replaced method uses of uniffi's buffer builder."""

    rbuf: Any

    def _reserve(self, num_bytes: int) -> contextlib.AbstractContextManager[None]: ...


def _write(self: _Builder, value: bytes | bytearray | memoryview) -> None:
    """Append `value` to the Rust buffer with one copy."""
    raw = value if isinstance(value, bytes) else bytes(value)
    with self._reserve(len(raw)):
        if raw:
            ctypes.memmove(ctypes.addressof(self.rbuf.data.contents) + self.rbuf.len, raw, len(raw))


def _proven(builder_class: Any, buffer_class: Any) -> bool:
    """True if `_write` fills a real buffer exactly as the original does."""
    fields = dict(getattr(buffer_class, "_fields_", ()))
    if set(fields) != {"capacity", "len", "data"} or fields["data"] is not ctypes.POINTER(ctypes.c_char):
        return False
    builder = builder_class()
    try:
        _write(builder, b"\x01")
        _write(builder, _PROOF)
        buffer = builder.rbuf
        return bool(buffer.len == 257 and buffer.data[:257] == b"\x01" + _PROOF)
    finally:
        builder.discard()


def leave_out_backtraces() -> None:
    """Have errors of the binding made without a backtrace; those of panics stay as the user wants
    them.
    """
    os.environ["RUST_LIB_BACKTRACE"] = "0"


def install(binding: types.ModuleType) -> bool:
    """Replace the slow method in `binding` (the module `iroh.iroh_ffi`); True if the fast one is
    now in place.
    """
    builder_class = getattr(binding, "_UniffiRustBufferBuilder", None)
    buffer_class = getattr(binding, "_UniffiRustBuffer", None)
    wanted = ("write", "_reserve", "finalize", "discard")
    if builder_class is None or not all(callable(getattr(builder_class, name, None)) for name in wanted):
        return False
    if builder_class.write is _write:
        return True
    try:
        if not _proven(builder_class, buffer_class):
            return False
    except Exception:  # an unknown binding may fail in any way; the original method still works
        return False
    builder_class.write = _write
    return True
