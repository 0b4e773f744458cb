"""A fresh world and an opened run for every test."""

import pytest

from programs.harness import World
from programs.scenario import Scenario


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def run(world: World) -> Scenario:
    """A run of three tiers that waits for members; anyone may join."""
    return Scenario(world).start()
