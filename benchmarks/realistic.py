"""Compute what members are worth when a step of one machine takes realistic time.

worth.py prints it for each size whose steps have at least 4,096 tokens of a machine.
"""

# How it is computed:
# - worth = tokens worth * share of a round spent training. Tokens worth are the steps that one
#   machine alone needs to the members' loss, over the steps of a member (worth.py).
# - The length of a member's step is given, since a CPU trains a step of such a small model in a
#   tenth of a second. `step_over_adamw` is how many times as long as a step of one machine with
#   AdamW it took, as measured, with encoding and applying. Worth does not count it.
# - The rest of a round is the protocol's time by the model of protocol_time.py: lines of 110 Mb/s
#   up and 500 Mb/s down, and results that go straight to every other member. They have the size of
#   this model's results.
# - With several seeds, losses and worth are of the mean loss. A range has the best and the worst
#   seed of the members, against one machine's single seed.
# - Losses are quotients: 1.02 is 2 % more than one machine with all tokens in each step.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arms import Training, arms, recommended, result_bytes, step_tokens
from protocol_time import DOWN, UP, protocol_seconds

STEP_TOKENS = 4096
STEP_SECONDS = {"2s": 2.0, "0.5s": 0.5}
ALONE = ("adamw", "muon")
_OF_A_RUN = ("members", "total_batch", "steps")
"""Options of `train-local` in an arm that are not settings of its optimizer."""


def realistic(report: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures by parameters, from those of worth.py by size. Sizes with shorter steps
    are absent.
    """
    return {
        size.partition("-")[0]: _of_size(size, figures["arms"])
        for size, figures in report.items()
        if step_tokens(size) >= STEP_TOKENS
    }


def _of_size(size: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    ends = {
        name: end for name in ALONE for end in measured.get(f"{name}-8x", {"ends": []})["ends"][-1:]
    }
    rows = {
        arm.name: _of_arm(first, measured[arm.name], bounds=ends)
        for arm in arms()
        for first in [one for one in arm.trainings if one.size == size][:1]
        if arm.name in measured and first.members > 1
    }
    chosen = {members: name for members, name in recommended(size).items() if name in rows}
    eight = rows.get(chosen.get("8", ""), {})
    return {
        "size": size,
        "line": f"{UP * 8 / 1e6:.0f}/{DOWN * 8 / 1e6:.0f} Mb/s",
        "recommended": chosen,
        **{
            f"worth_{name}": {
                members: rows[arm][f"worth_{name}"] for members, arm in chosen.items()
            }
            for name in ALONE
        },
        **{
            key: eight.get(key)
            for key in ("loss_over_adamw", "loss_over_muon", "bytes_per_parameter_step")
        },
        "alone": {
            name: {str(end["steps"]): end["held_out"] for end in measured[name]["ends"]}
            for name in (*ALONE, *(f"{name}-8x" for name in ALONE))
            if name in measured
        },
        "arms": rows,
    }


def _of_arm(
    first: Training, measured: Mapping[str, Any], bounds: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    end = measured["ends"][-1]
    sent, _ = result_bytes(first)
    row: dict[str, Any] = {
        "members": first.members,
        "settings": {name: value for name, value in first.said.items() if name not in _OF_A_RUN},
        "bytes_per_parameter_step": measured["bytes_per_parameter_step"],
        "steps": end["steps"],
        "held_out": end["held_out"],
        "held_out_range": _range(list(end["by_seed"].values()), digits=4),
        "lr": end["lr"],
        "seeds": len(end["by_seed"]),
        "step_over_adamw": _step_over_adamw(end, first.members),
    }
    for name in ALONE:
        against = end.get(f"against_{name}", {})
        efficiency = against.get("token_efficiency")
        tokens = None if efficiency is None else first.members * efficiency
        row[f"tokens_worth_{name}"] = None if tokens is None else round(tokens, 2)
        reached = [one * first.members for one in against.get("token_efficiency_range") or ()]
        row[f"tokens_worth_{name}_range"] = _range(reached, digits=2)
        row[f"worth_{name}"] = {
            label: None if tokens is None else round(tokens * training_share(first, sent, step), 2)
            for label, step in STEP_SECONDS.items()
        }
        same = name in bounds and bounds[name]["steps"] == end["steps"] and first.members == 8
        row[f"loss_over_{name}"] = (
            round(end["held_out"] / bounds[name]["held_out"], 4) if same else None
        )
    return row


def _range(values: Sequence[float], digits: int) -> list[float] | None:
    """Return the least and the greatest of several values; None for a single one."""
    if len(values) < 2:
        return None
    return [round(min(values), digits), round(max(values), digits)]


def _step_over_adamw(end: Mapping[str, Any], members: int) -> dict[str, float]:
    """Return the seconds of a member's step over those of one machine with AdamW, by processor."""
    against = end.get("against_adamw", {"token_efficiency": None})
    if against["token_efficiency"] is None:
        return {}
    tokens = members * against["token_efficiency"]
    return {
        machine: round(tokens / found["worth_without_protocol"], 2)
        for machine, found in against["by_processor"].items()
    }


def training_share(training: Training, sent: int, step_seconds: float) -> float:
    """Return the share of a round spent training, if a step takes so long.

    `sent` are the bytes of a result.
    """
    trains = training.inner_steps * step_seconds
    protocol = protocol_seconds(training.members, sent)
    return trains / (max(trains, protocol) if training.overlap else trains + protocol)
