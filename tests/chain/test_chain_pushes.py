"""What a websocket is believed for is what no member acts on before a node has said it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from aftermath.chain.pushes import is_believed
from aftermath.rules.run import Round, Run
from aftermath.rules.state import RunState
from rules.builders import config, header, run

BELIEVED = {"seq", "model_seq", "members_seq", "seed_slot", "next_seed"}
OF_THE_RUNNING_ROUND = {"attested", "attestations"}
BEFORE = run(RunState.ROUND_TRAIN, rounds=(header(0b111, height=4), header(0b111, height=5)), head=1, seq=7)


def _changed(value: Any) -> Any:
    if isinstance(value, bytes):
        return bytes([1]) * len(value)
    if isinstance(value, tuple):
        return (*value[:-1], _changed(value[-1])) if value else (1,)
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, Round):
        return replace(value, seed=value.seed + 1)
    return config(total_steps=77) if value == BEFORE.config else not value if isinstance(value, bool) else 99


@pytest.mark.parametrize("name", [field.name for field in fields(Run) if field.name != "head"])
def test_of_the_run_little_is_believed(name: str) -> None:
    pushed = replace(BEFORE, **{name: _changed(getattr(BEFORE, name))})
    assert pushed != BEFORE
    assert is_believed(BEFORE, pushed) == (name in BELIEVED)


@pytest.mark.parametrize("name", [field.name for field in fields(Round)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_of_rounds_only_who_has_attested_the_running_one(name: str, place: int) -> None:
    """What closed rounds came to says which results are applied."""
    rounds = list(BEFORE.rounds)
    rounds[place] = replace(rounds[place], **{name: _changed(getattr(rounds[place], name))})
    believed = place == BEFORE.head and name in OF_THE_RUNNING_ROUND
    assert is_believed(BEFORE, replace(BEFORE, rounds=tuple(rounds))) == believed


def test_another_running_round_is_not_believed() -> None:
    assert not is_believed(BEFORE, replace(BEFORE, head=0))
