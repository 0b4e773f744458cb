"""Read the program's shares and committees through `inspect`. tests/rules/test_rules_on_chain.py
compares them with the client's.
"""

import random
import struct

import numpy as np
import pytest

from aftermath.rules import bitmap
from programs.harness import World
from programs.scenario import Scenario

_MASK = (1 << 64) - 1


@pytest.fixture(scope="module")
def run() -> Scenario:
    scenario = Scenario(World())
    scenario.create().ok()
    return scenario


def inspect(run: Scenario, which: int) -> bytes:
    outcome = run.world.send(run.instruction("inspect", which, 0)).ok()
    # the runtime's clients cut trailing zeros off return data, but the caller knows the length
    return outcome.returned


def write_round(run: Scenario, rng: random.Random) -> None:
    """Write a random round at ring index 0, with random members."""
    clients = rng.choice([1, 2, 3, 5, 31, 32, 33, 64, 100, 255, 256, rng.randint(1, 256)])
    seats = rng.sample(range(256), clients)
    state = run.world.record("Run", "test")
    members = run.world.record("Members", "test")
    header = state["rounds"][0]
    header["seed"][0] = rng.getrandbits(64)
    header["roster"][0] = bitmap.to_bytes(bitmap.from_seats(seats))
    header["clients"][0] = clients
    gone = rng.sample(range(256), rng.choice([0, 0, 1, 20, rng.randint(0, 256)]))
    state["began"][0] = bitmap.to_bytes(bitmap.from_seats({*seats, *gone}))
    header["batch"][0] = rng.choice([0, 1, clients, 65_535, rng.randint(0, 65_535)])
    state["config"]["verification_percent"] = rng.choice(
        [0, 0, 1, 10, 50, 99, 100, rng.randint(0, 100)]
    )
    scale = rng.choice([1, 60, 65_535])
    members["seats"]["weight"] = np.array([rng.randint(1, scale) for _ in range(256)])
    run.world.store("Run", "test", state)
    run.world.store("Members", "test", members)


def padded(data: bytes, length: int) -> bytes:
    assert len(data) <= length
    return data + bytes(length - len(data))


def test_shares_are_fair_and_cover_whole_batch(run: Scenario) -> None:
    rng = random.Random("fair")
    for _ in range(40):
        write_round(run, rng)
        header = run.run.rounds[0]
        rows = sorted(
            struct.iter_unpack("<HH", padded(inspect(run, 2), 4 * header.began.bit_count()))
        )
        assert sum(length for _, length in rows) == header.batch
        position = 0
        for start, length in rows:
            if length:
                assert start == position
                position += length


def test_inspect_accepts_only_four_views_and_places(run: Scenario) -> None:
    for which, ring in ((4, 0), (0, 4), (255, 255)):
        run.world.send(run.instruction("inspect", which, ring)).refused("UnknownInspection")


def test_generator_low_bits_alternate_and_high_bits_do_not() -> None:
    state = 42
    low = []
    high = []
    for _ in range(64):
        state = (6364136223846793005 * state + 1442695040888963407) & _MASK
        low.append(state & 1)
        high.append(state >> 32 & 1)
    assert low in ([0, 1] * 32, [1, 0] * 32)
    assert high not in ([0, 1] * 32, [1, 0] * 32)
