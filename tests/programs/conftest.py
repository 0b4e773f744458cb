"""Give every test a new world and a started run."""

import pytest

from programs.harness import World
from programs.scenario import Scenario


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def run(world: World) -> Scenario:
    """Return a run of three tiers that waits for members. Anyone may join."""
    return Scenario(world).start()
