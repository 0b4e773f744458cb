"""A blob filled by many peers: every byte is written once and credited to its sender."""

import random

import pytest

from aftermath.p2p import partial_download
from aftermath.p2p.partial_download import PartialBlob, Pull, Source

HOLDERS = [bytes([number]) * 32 for number in range(4)]
SOURCES: list[Source] = [(holder, lane) for holder in HOLDERS for lane in range(2)]


def of_holder(holder: bytes, start: int, length: int) -> bytes:
    """Return what a holder sends: its own number, which shows the sender of each byte."""
    del start
    return holder[:1] * length


@pytest.mark.parametrize("size", [1, 1000, 20_000])
@pytest.mark.parametrize("seed", range(40))
def test_pulls_in_any_order_fill_blob_and_record_givers(monkeypatch, size, seed):
    monkeypatch.setattr(partial_download, "STRIPE_FROM", 10_000)
    monkeypatch.setattr(partial_download, "RANGE", 3_000)
    monkeypatch.setattr(partial_download, "WORTH_STEALING", 700)
    monkeypatch.setattr(partial_download, "LEAST_PROGRESS", 50)
    monkeypatch.setattr(partial_download, "WORTH_STEALING_FROM_LANE", 200)
    rng = random.Random(seed)
    filled = PartialBlob.of(size)
    filled.spread(seed % 4)
    pulls: dict[Source, Pull] = {}
    begun = 0
    while not filled.complete:
        source = rng.choice(SOURCES)
        pull = pulls.get(source)
        if pull is None:
            pull = filled.take(source, 0.0)
            if pull is not None:
                pulls[source] = pull
                begun += 1
        elif rng.random() < 0.2:
            pull.silent = rng.random() < 0.5
            pull.slow = rng.random() < 0.5
        elif rng.random() < 0.1:
            filled.release(pulls.pop(source))
        else:
            length = rng.randint(1, min(400, pull.request_end - pull.position))
            if not filled.put(pull, of_holder(source[0], pull.position, length)):
                filled.release(pulls.pop(source))
    for pull in pulls.values():
        filled.release(pull)
    assert sum(end - start for _, start, end in filled.origin) == size
    assert len(filled.origin) <= begun
    assert all(
        filled.buffer[start:end] == holder[:1] * (end - start)
        for holder, start, end in filled.origin
    )
    assert filled.complete
    assert not filled.todo


def test_joined_pull_leads_after_new_bytes():
    slow, quick, third = ((holder, 0) for holder in HOLDERS[:3])
    filled = PartialBlob.of(10)
    first = filled.take(slow, 0.0)
    assert first is not None
    filled.put(first, b"aa")
    assert filled.take(quick, 0.0) is None, "a pull that brings bytes is left alone"
    first.silent = True
    second = filled.take(quick, 0.0)
    assert second is not None
    assert second.start == 2
    assert filled.take(third, 0.0) is None, "one helper at a time"
    assert filled.put(first, b"a"), "the first still leads"
    assert filled.put(second, b"b"), "what is there already is passed over"
    assert filled.put(second, b"bbb")
    assert not filled.put(first, b"a"), "the first has lost the lead for good"
    filled.release(first)
    assert not filled.put(second, b"bbbb")
    filled.release(second)
    assert bytes(filled.buffer) == b"aaabbbbbbb"
    assert filled.origin == [(slow[0], 0, 3), (quick[0], 3, 10)]
