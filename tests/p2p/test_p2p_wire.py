"""Test frames and the binding's fast path: every byte string is either decoded or refused."""

import types

import iroh
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iroh import iroh_ffi

from aftermath.p2p import fast_ffi
from aftermath.p2p.wire import (
    BlobRequest,
    CallRequest,
    Hello,
    PieceRequest,
    ProtocolViolation,
    Reply,
    ReplyStatus,
    Request,
    cause,
    decode,
    frame_of,
)

MESSAGES = [
    (Hello, Hello(bytes(16))),
    (BlobRequest, BlobRequest(bytes(32), 7, 1 << 40)),
    (PieceRequest, PieceRequest(bytes(32), bytes(32), 7)),
    (CallRequest, CallRequest("topic", 3, 9, 1000)),
    (Reply, Reply(ReplyStatus.OK, 5)),
]


@pytest.mark.parametrize(("kind", "message"), MESSAGES)
def test_message_survives_wire(kind, message):
    framed = frame_of(message)
    assert int.from_bytes(framed[:4], "big") == len(framed) - 4
    assert decode(framed[4:], kind) == message


@pytest.mark.parametrize("kind", [kind for kind, _ in MESSAGES] + [Request])
@given(data=st.binary(max_size=200))
def test_random_bytes_are_decoded_or_refused(kind, data):
    try:
        assert isinstance(decode(data, kind), kind)
    except ProtocolViolation:
        pass


@pytest.mark.parametrize(
    "message",
    [
        Hello(bytes(15)),
        BlobRequest(bytes(31), 0, 1),
        BlobRequest(bytes(32), -1, 1),
        BlobRequest(bytes(32), 0, 0),
        PieceRequest(bytes(31), bytes(32), 0),
        PieceRequest(bytes(32), bytes(33), 0),
        PieceRequest(bytes(32), bytes(32), -1),
        CallRequest("t" * 65, 0, 0, 0),
        CallRequest("t", (1 << 20) + 1, 0, 0),
        CallRequest("t", -1, 0, 0),
        CallRequest("t", 0, -1, 0),
        CallRequest("t", 0, 0, -1),
        Reply(ReplyStatus.OK, -1),
    ],
)
def test_out_of_range_numbers_are_refused(message):
    with pytest.raises(ProtocolViolation):
        decode(frame_of(message)[4:], type(message))


def written(builder_write, *values) -> bytes:
    """Return what a writer leaves in a Rust buffer."""
    builder = iroh_ffi._UniffiRustBufferBuilder()
    try:
        for value in values:
            builder_write(builder, value)
        return builder.rbuf.data[: builder.rbuf.len]
    finally:
        builder.discard()


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100_000])
def test_fast_writer_writes_given_bytes(size):
    data = bytes(number % 251 for number in range(size))
    assert fast_ffi.install(iroh_ffi)
    assert iroh_ffi._UniffiRustBufferBuilder.write is fast_ffi._write
    for form in (data, bytearray(data), memoryview(data)):
        assert written(fast_ffi._write, b"head", form, b"tail") == b"head" + data + b"tail"


def test_unknown_binding_is_unchanged():
    assert not fast_ffi.install(types.ModuleType("empty"))

    class Builder:
        def write(self, value): ...
        def _reserve(self, size): ...
        def finalize(self): ...
        def discard(self): ...

    other = types.ModuleType("other")
    other._UniffiRustBufferBuilder = Builder
    other._UniffiRustBuffer = type("Buffer", (), {"_fields_": [("len", int)]})
    original = Builder.write
    assert not fast_ffi.install(other)
    assert Builder.write is original


async def test_causes_are_one_line_without_machine_paths():
    endpoint = await iroh.Endpoint.bind(
        iroh.EndpointOptions(preset=iroh.preset_minimal(), bind_addr="127.0.0.1:0")
    )
    try:
        address = endpoint.bound_sockets()[0]
        with pytest.raises(iroh.IrohError) as caught:
            await iroh.Endpoint.bind(
                iroh.EndpointOptions(preset=iroh.preset_minimal(), bind_addr=address)
            )
        assert cause(caught.value) == "Address already in use (os error 98)"
    finally:
        await endpoint.close()
    assert cause(TimeoutError()) == "it did not answer in time"
    assert cause(ValueError("plain")) == "plain"
