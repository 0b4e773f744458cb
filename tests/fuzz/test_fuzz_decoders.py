"""Test that decoders return or raise only their declared errors for any input.

Each decoder reads examples of hypothesis and seeded changes of valid messages. The tier sets the
number of examples. There are a hundred changes in the fast tests and a hundred thousand in the
nightly ones.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.data_decoders import DATA
from fuzz.decoder import Decode, Decoder
from fuzz.event_decoders import EVENTS
from fuzz.file_decoders import FILES
from fuzz.member_decoders import MEMBERS
from fuzz.mutations import mutations, nested
from fuzz.node_decoders import NODES
from fuzz.own_file_decoders import OWN
from fuzz.peer_decoders import PEERS

DECODERS = [*PEERS, *NODES, *MEMBERS, *DATA, *FILES, *OWN, *EVENTS]
LONGEST = 20_000  # a config file may contain many mistakes
every = pytest.mark.parametrize("decoder", DECODERS, ids=lambda one: one.name)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Turn off warnings, of which there would be thousands."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def feed(decoder: Decoder, decode: Decode, data: bytes, met: Counter[str]) -> None:
    longest = 0
    try:
        decode(data)
        met["read"] += 1
    except decoder.errors as error:
        met[type(error).__name__] += 1
        longest = max(longest, len(str(error)))
    except Exception as error:
        raise AssertionError(f"{decoder.name} raised {error!r} for {data[:300]!r}") from error
    assert longest < LONGEST, "an error is a sentence, not what a stranger wrote"


@every
def test_decoder_of_mutated_messages_reads_or_refuses(decoder: Decoder) -> None:
    run_through(decoder, seed=1, count=100)


@every
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_decoder_of_very_many_mutated_messages_reads_or_refuses(decoder: Decoder) -> None:
    run_through(decoder, seed=2, count=100_000)


def run_through(decoder: Decoder, *, seed: int, count: int) -> None:
    seeds, decode = decoder.prepare()
    met: Counter[str] = Counter()
    for data in seeds:
        feed(decoder, decode, data, met)
    assert met["read"] > 0, "what is changed was a real message"
    for opening in (
        b"\x91",
        b"\x81\xa1x",
        b"[",
        b'{"a":',
        b"a = [",
        b"a.",
        b'{"id": 1, "result": [',
    ):
        for depth in (20, 500, 3000, 100_000):
            feed(decoder, decode, nested(depth, opening), met)
    chance = random.Random(seed)
    for data in mutations(chance, seeds, count):
        feed(decoder, decode, data, met)


@every
# hypothesis marks only functions that it wraps itself, and the profile sets the number of examples
@pytest.mark.hypothesis
def test_decoder_of_random_bytes_reads_or_refuses(decoder: Decoder) -> None:
    seeds, decode = decoder.prepare()
    met: Counter[str] = Counter()

    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode) | pieces(seeds))
    def anything(data: bytes) -> None:
        feed(decoder, decode, data, met)

    anything()


def pieces(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """Generate parts of valid messages with random bytes between them."""
    parts = [
        seed[start : start + 40] for seed in seeds for start in range(0, min(len(seed), 2000), 40)
    ]
    return st.lists(st.sampled_from(parts) | st.binary(max_size=8), max_size=12).map(b"".join)
