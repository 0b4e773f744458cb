"""A share is read as soon as it is known, and an unavailable source is retried."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from aftermath.data.dummy import DummyTokens
from aftermath.data.source import DataError, Sequences, SourceUnavailable
from aftermath.member.rounds.train import Reading
from aftermath.sim.virtual_time import InlineWorker, run_virtual
from member.result_inbox import ResultInbox


class Faulty(DummyTokens):
    """A source that raises the given errors, one per read."""

    def __init__(self, *faults: DataError) -> None:
        super().__init__(4, 50)
        self.faults = list(faults)
        self.reads = 0

    def read(self, indices: Sequence[int]) -> Sequences:
        self.reads += 1
        if self.faults:
            raise self.faults.pop(0)
        return super().read(indices)


def test_read_ahead_share_is_ready_when_requested() -> None:
    async def play() -> None:
        source = Faulty()
        reading = Reading(ResultInbox().ports, InlineWorker(5.0), source)
        reading.begin([1, 2])
        await asyncio.sleep(5.0)
        now = asyncio.get_running_loop().time()
        share = await reading.share([1, 2])
        assert asyncio.get_running_loop().time() == now
        assert np.array_equal(share, source.read([1, 2]))
        assert (await reading.share([7])).tolist() == source.read([7]).tolist()  # never announced

    run_virtual(play())


def test_unreachable_source_is_reported_once_and_retried() -> None:
    async def play() -> None:
        inbox = ResultInbox()
        source = Faulty(*[SourceUnavailable("http://x does not answer")] * 4)
        share = await Reading(inbox.ports, InlineWorker(), source).share([3])
        assert share.shape == (1, 4)
        assert source.reads == 5
        messages = [event["message"] for event in inbox.events if event["kind"] == "warning"]
        assert messages == [
            "http://x does not answer; this member continues when it is available again"
        ]
        assert asyncio.get_running_loop().time() == 1 + 2 + 4 + 8

    run_virtual(play())


def test_permanent_data_error_is_raised() -> None:
    async def play() -> None:
        with pytest.raises(DataError, match="shrank"):
            await Reading(ResultInbox().ports, InlineWorker(), Faulty(DataError("x shrank"))).share(
                [3]
            )

    run_virtual(play())
