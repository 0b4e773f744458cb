"""The data server and its clients: equal sequences, and bounds on misbehaviour."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.base.bounded import Malformed
from aftermath.base.concurrency import ThreadWorker
from aftermath.data.data_server import (
    FRESH_SECONDS,
    ClientSlots,
    DataClient,
    DataServer,
    ReadTurns,
    load_server_settings,
    open_served_files,
)
from aftermath.data.data_server_client import RemoteTokens
from aftermath.data.messages import (
    Description,
    ErrorReply,
    ReadRequest,
    TokensReply,
    decode_reply,
    decode_request,
    encode_message,
)
from aftermath.data.source import DataError, SourceUnavailable

TOML = """
dir = "tokens"
token_size = "TwoBytes"
seq_len = 16
shuffle_seed = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
                17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "a.bin").write_bytes(np.arange(4800, dtype="<u2").tobytes())
    (tmp_path / "data.toml").write_text(TOML)
    return tmp_path


@contextmanager
def running(place: Path, port: int = 0) -> Iterator[int]:
    """Run a server with these settings on a thread, and yield its port."""
    settings = load_server_settings(place / "data.toml")
    server = DataServer(open_served_files(settings), 2)
    ports = [port]
    loop = asyncio.new_event_loop()
    done = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        async with server.listening("127.0.0.1", port) as chosen:
            ports[0] = chosen
            done.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert done.wait(10)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_clients_read_served_sequences(place: Path) -> None:
    here = open_served_files(load_server_settings(place / "data.toml"))
    with running(place) as port:
        there = RemoteTokens(f"127.0.0.1:{port}", 16, 4800)
        indices = [*range(290), 7, 299, 300, 100_000]
        assert np.array_equal(there.read(indices), here.read(indices))
        assert (there.sequences, there.record()) == (300, here.record())
        assert there.read([]).shape == (0, 16)
        with pytest.raises(DataError, match="sequences of 16 tokens, but the run expects 32"):
            RemoteTokens(f"127.0.0.1:{port}", 32, 4800)
        with pytest.raises(DataError, match="outside the vocabulary of 100"):
            RemoteTokens(f"127.0.0.1:{port}", 16, 100).read(range(300))


def test_restarted_data_server_is_reused_unless_it_differs(place: Path) -> None:
    with running(place) as port:
        there = RemoteTokens(f"127.0.0.1:{port}", 16, 4800)
        before = there.read([5])
    with pytest.raises(SourceUnavailable, match="cannot reach"):
        there.read([5])
    with running(place, port):
        assert np.array_equal(there.read([5]), before)
    (place / "tokens" / "a.bin").write_bytes(np.arange(3200, dtype="<u2").tobytes())
    with running(place, port), pytest.raises(DataError, match="now serves other data"):
        there.read([5])


def test_silent_clients_do_not_block_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftermath.data.data_server.MAX_CLIENTS", 16)
    with running(place) as port, ExitStack() as stack:
        there = RemoteTokens(f"127.0.0.1:{port}", 16, 4800)
        before = there.read([5])
        for _ in range(16 + 3):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        newcomer = RemoteTokens(f"127.0.0.1:{port}", 16, 4800)
        for client in (newcomer, there, newcomer):
            assert np.array_equal(client.read([5]), before)


async def _flood(port: int, host: str, connections: int, stop: asyncio.Event) -> None:
    """Ask for sequences over `connections` connections of `host`, and reconnect closed ones."""
    question = encode_message(ReadRequest([0] * 64))

    async def ask() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=(host, 0)
                )
                while True:
                    writer.write(question)
                    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    asking = [asyncio.create_task(ask()) for _ in range(connections)]
    await stop.wait()
    for task in asking:
        task.cancel()


@contextmanager
def flooded(port: int, host: str, connections: int) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(
        target=loop.run_until_complete, args=(_flood(port, host, connections, stop),)
    )
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    ("host", "connections"), [("127.0.0.2", 40), ("127.0.0.1", 20)], ids=["other", "same"]
)
def test_data_server_under_flood_cuts_no_waiting_member(
    place: Path, host: str, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aftermath.data.data_server.MAX_CLIENTS", 16)
    with running(place) as port, flooded(port, host, connections):
        members = [RemoteTokens(f"127.0.0.1:{port}", 16, 4800) for _ in range(3)]
        for _ in range(5):
            for member in members:
                assert len(member.read(range(20))) == 20


async def test_read_turns_with_many_requests_of_one_address_alternate() -> None:
    turns = ReadTurns(ThreadWorker("test"))
    order = list[str]()
    places = ["flood"] * 6 + ["member"] * 2
    decode_request = [
        asyncio.create_task(turns(where, lambda where=where: order.append(where)))
        for where in places
    ]
    await asyncio.sleep(0)
    decode_request[1].cancel()  # a cancelled turn goes to the next request
    await asyncio.gather(*decode_request, return_exceptions=True)
    assert order == ["flood", "member", "flood", "member", "flood", "flood", "flood"]


@pytest.mark.parametrize(
    ("most", "there", "newcomer", "cut"),
    [
        (3, [("a", False), ("b", False), ("b", False)], "c", 1),
        (3, [("a", False), ("b", True), ("b", False)], "b", 2),
        (2, [("b", True), ("b", True), ("a", False)], "a", None),
        (2, [("b", True), ("b", True), ("b", True), ("a", False)], "a", 2),
        (2, [("b", True), ("b", True), ("b", True), ("a", False)], "b", "newcomer"),
    ],
    ids=["oldest of most", "due stays", "room while due", "newest due of most", "refused"],
)
async def test_full_slots_disconnect_idle_client(
    most: int, there: list[tuple[str, bool]], newcomer: str, cut: int | str | None
) -> None:
    now = [0.0]
    slots = ClientSlots(most, 1, lambda: now[0])
    tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(len(there) + 1)]
    clients = [DataClient(task, where) for task, (where, _) in zip(tasks, there, strict=False)]
    for client, (_, due) in zip(clients, there, strict=True):
        slots.enter(client)
        client.awaits_reply = due
    now[0] = FRESH_SECONDS
    entered = slots.enter(DataClient(tasks[-1], newcomer))
    assert entered == (cut != "newcomer")
    assert [number for number, task in enumerate(tasks) if task.cancelling()] == (
        [cut] if isinstance(cut, int) else []
    )
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("bound", ["MAX_CLIENTS", "MAX_UNREAD_BYTES"])
def test_unread_reply_is_freed_with_its_client(
    place: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"aftermath.data.data_server.{bound}", 1)
    (place / "tokens" / "a.bin").write_bytes(bytes(1 << 16))
    (place / "data.toml").write_text(TOML.replace("seq_len = 16", "seq_len = 32768"))
    question = encode_message(ReadRequest([0] * 256))
    size = 256 * 32768 * 2
    with running(place) as port, ExitStack() as stack:
        first, second = (
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(2)
        )
        first.sendall(question)
        took = len(first.recv(1))
        if bound == "MAX_CLIENTS":  # twice as many may be connected
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            second = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        second.sendall(question)
        assert second.recv(1)
        with suppress(ConnectionResetError):
            while part := first.recv(1 << 20):
                took += len(part)
        assert took < size


@pytest.mark.parametrize(
    "sent",
    [
        (1 << 30).to_bytes(4, "big"),
        encode_message(ReadRequest([])),
        encode_message(ReadRequest([1] * 257)),
        encode_message(ReadRequest([-1])),
        (3).to_bytes(4, "big") + b"\xc1\xc1\xc1",
        encode_message(TokensReply(b"")),
    ],
)
def test_invalid_request_gets_error_and_disconnect(place: Path, sent: bytes) -> None:
    with running(place) as port:
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(sent)
            reply = b""
            while chunk := client.recv(4096):
                reply += chunk
        assert isinstance(decode_reply(reply[4:]), ErrorReply)
        assert len(RemoteTokens(f"127.0.0.1:{port}", 16, 4800).read([1])) == 1


@contextmanager
def saying(*answers: bytes) -> Iterator[int]:
    """Run a server that sends these bytes, for any request."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            for answer in answers:
                client.recv(4096)
                client.sendall(answer)
            client.recv(4096)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


GOOD = Description(2, 16, 10, [])


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ([(1 << 31).to_bytes(4, "big")], "a reply of 2147483648 bytes"),
        ([encode_message(TokensReply(b""))], "a reply other than its description"),
        ([encode_message(msgspec.structs.replace(GOOD, token_bytes=3))], "2 or 4 bytes, not 3"),
        ([encode_message(msgspec.structs.replace(GOOD, sequences=0))], "has no sequences"),
        (
            [encode_message(GOOD), encode_message(TokensReply(bytes(33)))],
            "a reply of the wrong length",
        ),
        ([encode_message(GOOD), encode_message(GOOD)], "a reply of the wrong length"),
        ([encode_message(GOOD), b"\0\0\0\1\xc1"], "an invalid message"),
    ],
)
def test_invalid_reply_is_refused(answers: list[bytes], sentence: str) -> None:
    with saying(*answers) as port, pytest.raises(DataError, match=sentence):
        RemoteTokens(f"127.0.0.1:{port}", 16, 100).read([1])


def test_single_sequence_is_served() -> None:
    with saying(
        encode_message(msgspec.structs.replace(GOOD, sequences=1)),
        encode_message(TokensReply(bytes(32))),
    ) as port:
        there = RemoteTokens(f"127.0.0.1:{port}", 16, 100)
        assert (there.sequences, there.read([0]).tolist()) == (1, [[0] * 16])


@pytest.mark.parametrize("whole", [0, 1], ids=["description", "sequence"])
def test_slow_reply_times_out(whole: int) -> None:
    """At its speed the reply would take weeks."""
    answers = [encode_message(Description(2, 16, 5, [])), encode_message(TokensReply(bytes(32)))]

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            for answer in answers[:whole]:
                connection.sendall(answer)
            for byte in answers[whole]:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        with pytest.raises(SourceUnavailable, match="cannot reach"):
            RemoteTokens(f"127.0.0.1:{listener.getsockname()[1]}", 16, 100, timeout=0.2).read([0])
        thread.join()


def test_silent_server_is_unavailable() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(SourceUnavailable, match="cannot reach"),
    ):
        RemoteTokens(f"127.0.0.1:{listener.getsockname()[1]}", 16, 100, timeout=0.1)


@given(st.binary(max_size=60))
def test_random_server_bytes_are_decoded_or_refused(data: bytes) -> None:
    for read in (decode_request, decode_reply):
        try:
            read(data)
        except Malformed:
            pass


@pytest.mark.parametrize("address", ["", "a b:1", "host:99999", "http://host:1", "user@host:1"])
def test_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(DataError, match="is not a valid address"):
        RemoteTokens(address, 16, 100)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seq_len", "sequence_length", "sequence_length"),
        ('"TwoBytes"', '"ThreeBytes"', "ThreeBytes"),
        ("[1, ", "[256, ", "shuffle_seed"),
        ("[1, ", "[", "length"),
        ('dir = "tokens"', "dir = [", "data.toml"),
    ],
)
def test_invalid_server_settings_name_the_key(
    place: Path, old: str, new: str, sentence: str
) -> None:
    (place / "data.toml").write_text(TOML.replace(old, new))
    with pytest.raises(DataError, match=sentence) as caught:
        load_server_settings(place / "data.toml")
    assert "seq_len" in caught.value.fix
