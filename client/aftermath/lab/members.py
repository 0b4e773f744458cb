"""Settings that all members of a training share: optimizer defaults and their overrides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from aftermath.base.errors import UsageError
from aftermath.lab.settings import ALONE, LabSettings, OptimizerName
from aftermath.optim.run_schema import settings_of
from aftermath.optim.schema import Settings
from aftermath.rules.limits import MAX_OUTER_RATE
from aftermath.rules.model import Optimizer

_RESULTS = ("topk", "topk_embeddings", "feedback_decay")
_INNER = ("inner_steps", "inner_optimizer", "value_bits", "outer_lr", "mean", "orthogonal_lr")


def agreed_settings(
    said: LabSettings, optimizer: OptimizerName, numbers: Optimizer
) -> Settings | None:
    """Return the settings that all members share, or None for an optimizer of one machine.

    Raises UsageError or SchemaError.
    """
    if optimizer in ALONE:
        _refuse(said, (*_RESULTS, *_INNER), optimizer, "results of members")
        return None
    decay = said.feedback_decay
    outer = said.outer_lr
    if decay is not None and not 0 <= decay < 1:
        raise UsageError(
            f"--feedback-decay {decay} is not what a run takes",
            "It is from 0 to below 1, for example 0.95",
        )
    if outer is not None and not (math.isfinite(outer) and 0 < outer <= MAX_OUTER_RATE):
        raise UsageError(
            f"--outer-lr {outer} is no rate",
            f"It is above 0 and at most {MAX_OUTER_RATE:g}, for example 1",
        )
    orthogonal = said.orthogonal_lr
    if orthogonal is not None and not (
        math.isfinite(orthogonal) and 0 <= orthogonal <= MAX_OUTER_RATE
    ):
        raise UsageError(
            f"--orthogonal-lr {orthogonal} is no rate",
            f"It is from 0 to {MAX_OUTER_RATE:g}, for example 15",
        )
    _check_block(said, numbers)
    embeddings = said.topk_embeddings or numbers.compression_topk_embeddings or said.topk
    changed = {"topk": said.topk, "topk_embeddings": embeddings, "decay": decay}
    if optimizer == "distro":
        _refuse(said, _INNER, optimizer, "inner steps of sparseloco")
        return _changed(settings_of(numbers), **changed)
    return _changed(
        settings_of(numbers),
        **changed,
        inner_steps=said.inner_steps,
        inner_optimizer=said.inner_optimizer,
        bits=int(said.value_bits) if said.value_bits else None,
        outer_lr=outer,
        divisor=said.mean,
        orthogonal_lr=orthogonal,
    )


def _check_block(said: LabSettings, numbers: Optimizer) -> None:
    """Raise UsageError if top-k exceeds a block's coefficients, as a run would refuse it."""
    size = numbers.compression_chunk**2
    for option, count in (("--topk", said.topk), ("--topk-embeddings", said.topk_embeddings)):
        if count is not None and count > size:
            raise UsageError(
                f"{option} {count}: a block has {size} coefficients", f"Pass {size} or less"
            )


def _changed(settings: Settings, **said: Any) -> Settings:
    return replace(settings, **{name: value for name, value in said.items() if value is not None})


def _refuse(said: LabSettings, names: tuple[str, ...], optimizer: str, what: str) -> None:
    for name in names:
        if getattr(said, name) is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} means {what}, and {optimizer} has none", "Leave it out")
