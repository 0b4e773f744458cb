"""Segments of a replica's tensors: their views, their bytes, and the hash of a level.

Bytes are fp32 (momentum: int64), little-endian, row-major. Bytes from outside must fit in size and
be finite, or within the bound of a momentum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.model.levels import LARGEST_MOMENTUM, MomentumSegment, Segment
from aftermath.model.schema import StateSchema

_LEVEL_DOMAIN = b"aftermath level 1\x00"
_COPY_BYTES = 4 << 20  # at most this much of a strided or remote tensor is copied at a time
_PINNED_BYTES = 16 << 20  # bytes of one copy from a GPU


class SegmentError(AftermathError):
    """A replica does not hold a segment, or bytes for it are not valid."""


def view(params: Mapping[str, Tensor], segment: Segment) -> Tensor:
    """Return a segment as a view of the tensor. Raises SegmentError if it is not held."""
    tensor = params.get(segment.name)
    if tensor is None:
        raise SegmentError(f"this replica has no tensor {segment.name}")
    tensor = tensor.detach()
    if segment.dim is not None:
        if tensor.ndim <= segment.dim or tensor.shape[segment.dim] < segment.stop:
            raise SegmentError(
                f"this replica does not hold level {segment.level} of {segment.name}"
            )
        tensor = tensor.narrow(segment.dim, segment.start, segment.stop - segment.start)
    if tuple(tensor.shape) != segment.shape or tensor.dtype != getattr(torch, segment.dtype):
        raise SegmentError(
            f"{segment.name} is {tensor.dtype} {tuple(tensor.shape)}, but the schema says "
            f"{segment.dtype} {segment.shape}"
        )
    return tensor


def level_hash(params: Mapping[str, Tensor], schema: StateSchema, level: int) -> bytes:
    """Return the 32-byte hash of a level as on chain: the root of its segments' digests."""
    return level_root(
        schema, level, [segment_digest(params, segment) for segment in schema.of_level(level)]
    )


# A level hash is a root over the BLAKE3 digests of the level's segments. So all replicas that hold
# a level have the same hash, whatever their tier. A peer offers the digests; they are checked
# against the chain first, and each segment on arrival.
def level_root(schema: StateSchema, level: int, digests: Sequence[bytes]) -> bytes:
    """Return the SHA-256 over a domain prefix and the level's segments in canonical order.

    A segment adds its name, a zero byte and the 32-byte BLAKE3 of its bytes. Raises ValueError
    unless there are as many digests as segments.

    """
    root = hashlib.sha256(_LEVEL_DOMAIN)
    for segment, digest in zip(schema.of_level(level), digests, strict=True):
        root.update(segment.name.encode() + b"\0" + digest)
    return root.digest()


def segment_digest(params: Mapping[str, Tensor], segment: Segment) -> bytes:
    """Return the 32-byte BLAKE3 of the segment's bytes."""
    tensor = view(params, segment)
    # One thread hashes more slowly than a GPU copies. On a CPU, all threads train.
    digest = blake3(max_threads=blake3.AUTO) if _on_gpu(tensor) else blake3()
    for part in _parts(tensor):
        digest.update(part)
    return digest.digest()


def segment_bytes(params: Mapping[str, Tensor], segment: Segment) -> bytes:
    """Return the segment's values, `segment.size` bytes."""
    return b"".join(_parts(view(params, segment)))


def write_segment(
    params: Mapping[str, Tensor], segment: Segment, data: bytes | bytearray | memoryview
) -> None:
    """Replace a segment's values in place. Raises SegmentError before any change."""
    target = view(params, segment)
    if len(data) != segment.size:
        raise SegmentError(
            f"level {segment.level} of {segment.name} takes {segment.size} bytes, not {len(data)}"
        )
    order = np.dtype(segment.dtype).newbyteorder("<")
    values = np.frombuffer(data, dtype=order).astype(segment.dtype)
    if isinstance(segment, MomentumSegment):
        if not is_momentum(torch.from_numpy(values)):
            raise SegmentError(f"level {segment.level} of {segment.name}: a value is too large")
    elif not np.isfinite(values).all():
        raise SegmentError(f"level {segment.level} of {segment.name}: a value is not finite")
    with torch.no_grad():
        target.copy_(torch.from_numpy(values).view(segment.shape))


def is_momentum(values: Tensor) -> bool:
    """Return whether int64 values are within LARGEST_MOMENTUM."""
    # Do not use abs(): the smallest int64 is its own absolute value.
    return bool(((values <= LARGEST_MOMENTUM) & (values >= -LARGEST_MOMENTUM)).all())


def _parts(tensor: Tensor) -> Iterator[memoryview]:
    """Return the tensor's bytes in row-major order; contiguous host memory is never copied."""
    if tensor.is_contiguous() and tensor.device.type == "cpu":
        yield _bytes(tensor)
        return
    if _on_gpu(tensor):
        yield from _parts_from_gpu(tensor)
        return
    for rows in tensor.split(_rows_of(tensor, _COPY_BYTES)):
        yield _bytes(rows.cpu().contiguous())


def _parts_from_gpu(tensor: Tensor) -> Iterator[memoryview]:
    """Return the tensor's bytes in pinned memory. The GPU copies a part while the caller uses the
    one before it.
    """
    copying: tuple[Tensor, torch.cuda.Event] | None = None
    for rows in tensor.split(_rows_of(tensor, _PINNED_BYTES)):
        staged = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        staged.copy_(rows, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(tensor.device))
        if copying is not None:
            copying[1].synchronize()
            yield _bytes(copying[0])
        copying = staged, copied
    if copying is not None:
        copying[1].synchronize()
        yield _bytes(copying[0])


def _rows_of(tensor: Tensor, size: int) -> int:
    """Return how many rows of a tensor take about `size` bytes. The minimum is one."""
    return max(1, size // max(1, tensor[0].numel() * tensor.element_size()))


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda" and torch.cuda.is_available()


def _bytes(tensor: Tensor) -> memoryview:
    values = tensor.numpy()
    order = values.dtype.newbyteorder("<")
    return values.astype(order, copy=False).reshape(-1).view(np.uint8).data
