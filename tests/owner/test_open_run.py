"""Test the requirements of a run that everybody may join."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aftermath.owner.open_run import OpenRunRefused, check_open_run, check_opening
from aftermath.rules.model import Checkpoint
from aftermath.rules.state import CheckpointKind
from rules import builders

COMMIT = "0123456789abcdef" * 2 + "01234567"
PINNED = Checkpoint(CheckpointKind.HUB, "team/model", COMMIT)
GOOD: dict[str, Any] = {"overlap": 1, "init_min_clients": 64, "checkpoint": PINNED}


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({}, None),
        ({"checkpoint": None}, None),
        ({"checkpoint": Checkpoint(CheckpointKind.LOCAL, "model", "")}, None),
        ({"overlap": 0}, "overlap = 0"),
        ({"init_min_clients": 65}, "init_min_clients = 65"),
        ({"checkpoint": replace(PINNED, revision="")}, "not a commit hash"),
        ({"checkpoint": replace(PINNED, revision="main")}, "not a commit hash"),
        ({"checkpoint": replace(PINNED, revision=COMMIT[:7])}, "not a commit hash"),
    ],
)
def test_open_run_with_weak_rules_is_refused(changed: dict[str, Any], refusal: str | None) -> None:
    if refusal is None:
        check_open_run("demo", **(GOOD | changed))
        return
    with pytest.raises(OpenRunRefused, match=refusal) as refused:
        check_open_run("demo", **(GOOD | changed))
    assert refused.value.fix


def test_run_is_opened_only_after_epoch_of_named_members() -> None:
    nobody = builders.members({0: builders.seat(0)})
    check_opening("demo", replace(nobody, established=1))
    for run_id, members in (("demo", nobody), ("demo", None), (None, None)):
        with pytest.raises(OpenRunRefused) as refused:
            check_opening(run_id, members)
        assert "--authorizer KEY" in str(refused.value.fix)
