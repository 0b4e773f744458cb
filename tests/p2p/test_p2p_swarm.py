"""Test that large blobs spread through members that hold parts, and that only liars are blamed."""

import asyncio
from dataclasses import dataclass, field

import iroh
import msgspec
import pytest
from blake3 import blake3

from aftermath.p2p import piece_choice, swarm
from aftermath.p2p.pieces import PIECE, Pieces, piece_count, piece_hashes
from aftermath.p2p.swarm import HELD_TOPIC, LIST_TOPIC, HeldQuestion, HeldReply
from aftermath.p2p.transport import RequestRefused
from aftermath.p2p.wire import (
    CallRequest,
    PieceRequest,
    Reply,
    ReplyStatus,
    Request,
    frame_of,
    read_message,
)
from p2p.nodes import content, identity, join, until

LARGE = (8 << 20) + 12_345
COUNT = piece_count(LARGE)
ALL = (1 << COUNT) - 1
NOTHING = 0
DEADLINE_S = 60.0


@dataclass
class PieceLiar:
    """A rogue's answers about one blob. It sends pieces of `served`, or none if that is None."""

    hashes: bytes | None
    listing: bytes
    held: int
    served: bytes | None
    stalls: bool = False
    asked_pieces: list[int] = field(default_factory=list)

    async def __call__(self, request: Request, stream: iroh.BiStream) -> None:
        if isinstance(request, CallRequest):
            body = bytes(await stream.recv().read_exact(request.size))
            await self._reply(stream, self._answer(request.topic, body))
        elif isinstance(request, PieceRequest):
            self.asked_pieces.append(request.index)
            if self.stalls:
                await asyncio.Event().wait()
            start = request.index * PIECE
            await self._send(stream, start, min(PIECE, LARGE - start))
        else:
            await self._send(stream, request.offset, request.length)

    def _answer(self, topic: str, body: bytes) -> bytes | None:
        if topic == LIST_TOPIC:
            return self.hashes
        assert topic == HELD_TOPIC
        blobs = msgspec.msgpack.decode(body, type=HeldQuestion).blobs
        width = -(-COUNT // 8)
        status = self.held.to_bytes(width, "little") + bytes(width)
        return msgspec.msgpack.encode(
            HeldReply(0, [status if listing == self.listing else b"" for _, listing in blobs])
        )

    async def _reply(self, stream: iroh.BiStream, reply: bytes | None) -> None:
        status = ReplyStatus.OK if reply is not None else ReplyStatus.MISSING
        await stream.send().write_all(frame_of(Reply(status, len(reply or b""))) + (reply or b""))
        await stream.send().finish()

    async def _send(self, stream: iroh.BiStream, start: int, length: int) -> None:
        if self.served is None:
            await self._reply(stream, None)
            return
        await stream.send().write_all(frame_of(Reply(ReplyStatus.OK, LARGE)))
        await stream.send().write_all(self.served[start : start + length])
        await stream.send().finish()


@pytest.fixture
def among_honest(opened, rogue):
    """Return a fetching node, an honest one, and a rogue that answers as told."""

    async def build(answer):
        node, honest = [await opened(seed) for seed in (1, 2)]
        liar = await rogue(3)
        join([node, honest], liar.node_id)
        await liar.dial(node, answer)
        await until(lambda: honest.node_id in node.reachable())
        return node, honest, liar

    return build


async def fetched(node, data, author, *others):
    """Fetch `data` as a member fetches a result."""
    digest = blake3(data).digest()
    return await node.fetch(
        digest, len(data), [author, *others], DEADLINE_S, keep=True, author=author
    )


def blamed(node, *seeds):
    """Return which of these seeds' peers the node blames."""
    return [seed for seed in seeds if node._pace.is_blamed(identity(seed))]


async def test_members_pass_pieces_on_before_they_have_all(mesh, monkeypatch):
    author, *others = nodes = await mesh(1, 2, 3, 4)
    data = content(LARGE)
    author.publish(data)
    monkeypatch.setattr(swarm, "POLL_S", 0.01)
    serve = author._store.serve_piece
    turn = asyncio.Lock()

    async def serve_slowly(*request):
        async with turn:
            await asyncio.sleep(0.05)
        await serve(*request)

    author._store.serve_piece = serve_slowly
    ids = [node.node_id for node in nodes]
    results = await asyncio.gather(
        *(
            fetched(node, data, ids[0], *(one for one in ids[1:] if one != node.node_id))
            for node in others
        )
    )
    assert all(result == data for result in results)
    sent = [node.stats().sent["blob"] for node in nodes]
    assert sent[0] < (len(others) - 0.5) * LARGE
    assert sum(node.stats().rejected + node.stats().violations for node in nodes) == 0
    assert not any(node._swarms._tasks or node._swarms._active for node in nodes)


async def test_false_list_blames_only_its_author(among_honest, caplog):
    data = content(LARGE)
    false = content(LARGE, 2)
    lies = PieceLiar(piece_hashes(false), Pieces.whole(false).listing, ALL, false)
    node, honest, liar = await among_honest(lies)
    honest.publish(data)
    assert await fetched(node, data, liar.node_id, honest.node_id) == data
    assert blamed(node, 2, 3) == [3]
    assert "piece hashes that do not match the blob" in caplog.text


async def test_list_of_wrong_length_blames_its_author(among_honest):
    data = content(LARGE)
    hashes = piece_hashes(data)[:-32]
    node, honest, liar = await among_honest(PieceLiar(hashes, blake3(hashes).digest(), ALL, data))
    honest.publish(data)
    assert await fetched(node, data, liar.node_id, honest.node_id) == data
    assert blamed(node, 2, 3) == [3]


async def test_author_without_list_serves_the_whole_blob(among_honest):
    data = content(LARGE)
    old = PieceLiar(None, b"", NOTHING, data)
    node, honest, author = await among_honest(old)
    assert await fetched(node, data, author.node_id, honest.node_id) == data
    assert old.asked_pieces == []
    assert blamed(node, 2, 3) == []


async def test_false_piece_blames_its_sender_only(among_honest):
    data = content(LARGE)
    false = content(LARGE, 2)
    lies = PieceLiar(None, Pieces.whole(data).listing, ALL, false)
    node, author, liar = await among_honest(lies)
    author.publish(data)
    assert await fetched(node, data, author.node_id, liar.node_id) == data
    assert blamed(node, 2, 3) == [3]
    assert node.stats().rejected == 1 or len(lies.asked_pieces) <= swarm.PIPELINE


async def test_false_piece_of_author_blames_the_author(among_honest):
    data = content(LARGE)
    false = content(LARGE, 2)
    lies = PieceLiar(piece_hashes(data), Pieces.whole(data).listing, ALL, false)
    node, honest, liar = await among_honest(lies)
    honest.publish(data)
    assert await fetched(node, data, liar.node_id, honest.node_id) == data
    assert blamed(node, 2, 3) == [3]


async def test_false_bitmap_costs_three_questions_per_worker(among_honest):
    data = content(LARGE)
    lies = PieceLiar(None, Pieces.whole(data).listing, ALL, None)
    node, author, liar = await among_honest(lies)
    author.publish(data)
    assert await fetched(node, data, author.node_id, liar.node_id) == data
    assert len(lies.asked_pieces) <= 3 + swarm.PIPELINE
    assert blamed(node, 2, 3) == []


async def test_piece_that_never_comes_is_fetched_elsewhere(among_honest):
    data = content(LARGE)
    lies = PieceLiar(None, Pieces.whole(data).listing, ALL, data, stalls=True)
    node, author, liar = await among_honest(lies)
    author.publish(data)
    assert await fetched(node, data, author.node_id, liar.node_id) == data
    assert blamed(node, 2, 3) == []


async def test_malformed_questions_about_pieces_are_refused(among_honest):
    node, honest, _ = await among_honest(PieceLiar(None, b"", NOTHING, None))
    data = content(LARGE)
    digest = honest.publish(data)
    for topic, body in ((HELD_TOPIC, b"\xc1"), (LIST_TOPIC, b""), (LIST_TOPIC, digest[:-1])):
        with pytest.raises(RequestRefused):
            await node.request(honest.node_id, topic, body, 4096, 10)
    question = msgspec.msgpack.encode(HeldQuestion([(digest, bytes(32)), (b"", b"")]))
    answer = await node.request(honest.node_id, HELD_TOPIC, question, 4096, 10)
    assert msgspec.msgpack.decode(answer, type=HeldReply).status == [b"", b""]


async def test_piece_beyond_the_last_is_missing(among_honest):
    node, honest, _ = await among_honest(PieceLiar(None, b"", NOTHING, None))
    data = content(LARGE)
    digest = honest.publish(data)
    link = await node._links.get(honest.node_id, 5)
    for index in (COUNT, 2**63):
        stream = await link.connection.open_bi()
        request = PieceRequest(digest, Pieces.whole(data).listing, index)
        await stream.send().write_all(frame_of(request))
        assert (await read_message(stream.recv(), Reply)).status == ReplyStatus.MISSING
    assert honest.stats().violations == 0


async def test_member_that_boasts_and_idles_is_doubted(among_honest, monkeypatch):
    monkeypatch.setattr(piece_choice, "STALL_S", 0.2)
    data = content(LARGE)
    node, author, liar = await among_honest(PieceLiar(None, b"", NOTHING, None))
    members = {author.node_id, liar.node_id}
    node._swarms._uplinks |= {liar.node_id: 1e12, author.node_id: 1e6}
    monkeypatch.setattr(node._swarms._uplink, "rate", lambda: 1e6)
    assert node._swarms._strong(members) == {liar.node_id}
    author.publish(data)
    assert await fetched(node, data, author.node_id, liar.node_id) == data
    assert author.node_id in node._swarms._strong(members)
    assert liar.node_id not in node._swarms._strong(members)
    assert blamed(node, 2, 3) == []


async def test_doubts_count_only_for_a_minority(among_honest):
    node, *_ = await among_honest(PieceLiar(None, b"", NOTHING, None))
    swarms = node._swarms
    members = {identity(number) for number in range(10, 15)}
    swarms._uplinks |= dict.fromkeys(members, 1e6)
    swarms._doubt(frozenset(identity(number) for number in range(10, 12)))
    assert swarms._strong(members) >= {identity(number) for number in range(12, 15)}
    assert not swarms._strong(members) & {identity(number) for number in range(10, 12)}
    swarms._doubt(frozenset({identity(12)}))
    assert swarms._strong(members) >= members


async def test_pieces_of_timed_out_fetch_are_not_served(among_honest):
    data = content(LARGE)
    lies = PieceLiar(piece_hashes(data), Pieces.whole(data).listing, NOTHING, data, stalls=True)
    node, honest, liar = await among_honest(lies)
    digest = blake3(data).digest()
    with pytest.raises(swarm.BlobUnavailable, match="in pieces within"):
        await node.fetch(
            digest, LARGE, [liar.node_id, honest.node_id], 1.0, keep=True, author=liar.node_id
        )
    assert await node._store.pieces(digest) is None
    assert not node._swarms._tasks
