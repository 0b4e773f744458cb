"""The order in which a member fetches results if it fetches only a few at once."""

from __future__ import annotations

import asyncio

import pytest

from aftermath.member.downloads import Downloads
from aftermath.p2p.transport import TransportError
from aftermath.sim.virtual_time import run_virtual

STALLED = 100.0


@pytest.mark.parametrize(
    ("most", "ends"),
    [
        (4, [1.0] * 2 + [2.0] * 2 + [3.0] * 2),
        (2, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        (1, [STALLED + second for second in range(1, 7)]),
        (None, [1.0] * 6),
    ],
)
def test_stalling_author_leaves_turns_to_others(most: int | None, ends: list[float]) -> None:
    """50 downloads from a stalled author start. Then six other authors' downloads take a second
    each.
    """

    async def scenario() -> None:
        turns = Downloads(most)
        ended = list[float]()
        clock = asyncio.get_running_loop().time

        async def stall() -> None:
            while True:
                try:
                    async with turns.turn(b"stalls"):
                        await asyncio.sleep(STALLED)
                        raise TransportError("it stalls")
                except TransportError:
                    await asyncio.sleep(0)

        async def fetch(author: int) -> None:
            async with turns.turn(bytes([author])):
                await asyncio.sleep(1.0)
            ended.append(clock() - began)

        began = clock()
        stalled = [asyncio.ensure_future(stall()) for _ in range(50)]
        await asyncio.sleep(0)
        await asyncio.gather(*(fetch(10 + number) for number in range(6)))
        assert ended == pytest.approx(ends)
        for task in stalled:
            task.cancel()

    run_virtual(scenario())


def test_two_stalling_authors_share_half_of_the_slots() -> None:
    """Both have failed once when four other authors' downloads start, which take a second each."""

    async def scenario() -> None:
        turns = Downloads(4)
        ended = list[float]()
        clock = asyncio.get_running_loop().time

        async def stall(author: bytes) -> None:
            while True:
                try:
                    async with turns.turn(author):
                        await asyncio.sleep(STALLED)
                        raise TransportError("it stalls")
                except TransportError:
                    await asyncio.sleep(0)

        async def fetch(author: bytes) -> None:
            async with turns.turn(author):
                await asyncio.sleep(1.0)
            ended.append(clock() - began)

        stalled = [asyncio.ensure_future(stall(author)) for author in (b"x", b"y") * 25]
        await asyncio.sleep(1.5 * STALLED)
        began = clock()
        await asyncio.gather(*(fetch(author) for author in (b"a", b"b", b"c", b"d")))
        assert ended == pytest.approx([1.0, 1.0, 2.0, 2.0])
        for task in stalled:
            task.cancel()

    run_virtual(scenario())


def test_cancelled_download_releases_its_slot() -> None:
    async def scenario() -> None:
        turns = Downloads(1)
        holds = asyncio.Event()

        async def hold() -> None:
            async with turns.turn(b"a"):
                await holds.wait()

        tasks = [asyncio.ensure_future(hold()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()  # it waits for a turn
        tasks[0].cancel()  # it has the turn, which the third gets next
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[2].cancel()  # it already has the slot
        await asyncio.wait(tasks)
        async with asyncio.timeout(1), turns.turn(b"b"):
            pass

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("failures", "successes", "order"), [(2, 1, "ax"), (2, 2, "xa"), (40, 16, "xa")]
)
def test_success_makes_up_for_one_failed_download(
    failures: int, successes: int, order: str
) -> None:
    """`x` asks before `a`, which never failed, while another download holds the only slot."""

    async def scenario() -> None:
        turns = Downloads(1)
        ended = list[str]()
        busy = asyncio.Event()

        async def fetch(author: str, until: asyncio.Event | None = None) -> None:
            async with turns.turn(author.encode()):
                if until is not None:
                    await until.wait()
            ended.append(author)

        for _ in range(failures):
            with pytest.raises(TransportError):
                async with turns.turn(b"x"):
                    raise TransportError("it stalls")
        for _ in range(successes):
            async with turns.turn(b"x"):
                pass
        tasks = []
        for author, until in (("z", busy), ("x", None), ("a", None)):
            tasks.append(asyncio.ensure_future(fetch(author, until)))
            await asyncio.sleep(0)
        busy.set()
        await asyncio.gather(*tasks)
        assert "".join(ended) == f"z{order}"

    run_virtual(scenario())
