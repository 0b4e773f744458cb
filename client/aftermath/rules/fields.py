"""Types and ranges of the fields of announcements, which decoding checks."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from aftermath.rules.limits import MAX_LEVELS, RUN_ID_BYTES

U8 = Annotated[int, Meta(ge=0, le=0xFF)]
U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, Meta(ge=0)]  # msgpack has no larger integers
SequenceIndex = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]
RunId = Annotated[str, Meta(min_length=1, max_length=RUN_ID_BYTES)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Level = Annotated[int, Meta(ge=0, lt=MAX_LEVELS)]
Size = Annotated[int, Meta(ge=1, le=0x7FFF_FFFF)]
NonNegative = Annotated[float, Meta(ge=0.0)]
LARGEST_MICRO_BATCH = 0xFFFF
MicroBatch = Annotated[int, Meta(ge=1, le=LARGEST_MICRO_BATCH)]
LONGEST_DEVICE_KIND = 128
DeviceKind = Annotated[str, Meta(max_length=LONGEST_DEVICE_KIND, pattern=r"\A[ -~]*\Z")]
Products = Literal["fp32", "bf16"]
