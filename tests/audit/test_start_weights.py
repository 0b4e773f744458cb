"""Test which weights are kept, and that a smaller tier gets the prefixes of its parameters."""

from __future__ import annotations

import torch

from aftermath.audit.start_weights import StartWeights
from audit.audited_rounds import last_share


def test_kept_weights_do_not_change_with_the_replica() -> None:
    weights = StartWeights(None, 1)
    params = {"one": torch.zeros(2, requires_grad=True)}
    weights.keep(3, params)
    with torch.no_grad():
        params["one"] += 1
    found = weights.of(3, {"one": (2,)})
    assert found is not None
    assert not found["one"].any()
    assert not found["one"].requires_grad


def test_smaller_tier_gets_prefixes() -> None:
    large = last_share("adamw", tier=0).share
    small = last_share("adamw", tier=1).share
    weights = StartWeights(None, 1)
    weights.keep(2, large.shared)
    found = weights.of(2, {name: tensor.shape for name, tensor in small.shared.items()})
    assert found is not None
    assert found.keys() == small.shared.keys()
    assert all(torch.equal(found[name], small.shared[name]) for name in found)


def test_only_retained_rounds_are_kept() -> None:
    weights = StartWeights(None, 3)
    for height in range(4):
        weights.keep(height, {"one": torch.zeros(2)})
    weights.retain({0, 3, 9})
    assert [weights.of(height, {"one": (2,)}) is not None for height in range(4)] == [
        True,
        False,
        False,
        True,
    ]
