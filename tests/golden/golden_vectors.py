"""Recompute what a refactoring must not change: bytes on the wire and on chain, and names that
scripts use.

`python tests/golden/golden_vectors.py` (with tests/ in PYTHONPATH) writes vectors.json again. Do
that only for a change that is meant to alter the vectors, and say in the commit which ones and why.
"""

from __future__ import annotations

import hashlib
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from aftermath.cli.error_report import EXITS
from aftermath.cli.index import Index
from aftermath.cli.main import SOLANA
from aftermath.config.keys import keys
from aftermath.events.event_types import MEMBER_EVENTS
from aftermath.model.segments import level_hash
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Engine
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.schema import Schema
from aftermath.server.index import CENTRALIZED
from optim.optim_oracle import RAGGED, toy_inner, toy_schema
from programs.harness import World
from programs.scenario import Scenario, wallet

VECTORS = Path(__file__).with_name("vectors.json")
EVERY_NUMBER = {"topk": 4096, "topk_embeddings": 4096}
SCHEMAS: Mapping[str, Schema] = {
    "distro, signs": toy_schema(),
    "distro, signs, padded": toy_schema(**RAGGED),
    "distro, floats": toy_schema(quantize_1bit=False),
    "sparseloco, 2 bits": toy_inner(),
    "sparseloco, 1 bit": toy_inner(bits=1),
    "sparseloco, every number": toy_inner(divisor="all", **EVERY_NUMBER, **RAGGED),
    "sparseloco, polar factor": toy_inner(
        orthogonal_lr=1.5, inner_optimizer="muon", **EVERY_NUMBER
    ),
    "sparseloco, outer momentum": toy_inner(outer_momentum=0.6, outer_lr=0.7, **RAGGED),
}
ROUNDS = 2
MEMBERS = 3
RATE = 2.0**-10
_COMMON = ("help", "json_output", "quiet", "verbose")


def payloads_and_hashes(schema: Schema) -> dict[str, Any]:
    """Return the SHA-256 of payloads and the level hashes after each apply, for rounds of fixed
    pseudo-gradients.
    """
    params = numbers(schema, 0)
    engine = Engine(schema, 0, params)
    members = [
        ErrorFeedback(schema.results, 0, params, schema.optimizer.decay) for _ in range(MEMBERS)
    ]
    rounds = []
    for number in range(ROUNDS):
        seeds = range(1 + number * MEMBERS, 1 + (number + 1) * MEMBERS)
        sent = [
            own.compress(PseudoGradient(numbers(schema, seed), 2.0**-6, 0.0))
            for own, seed in zip(members, seeds, strict=True)
        ]
        votes = {
            level: [decode_level(own[level], schema.results, level) for own in sent]
            for level in sent[0]
        }
        engine.apply(votes, RATE)
        shared = params | engine.momentum
        hashes = [level_hash(shared, schema.shared, level).hex() for level in votes]
        rounds.append(
            {"payloads": [_digest(b"".join(own.values())) for own in sent], "levels": hashes}
        )
    return {"schema": schema.hash().hex(), "rounds": rounds}


def numbers(schema: Schema, seed: int) -> dict[str, Tensor]:
    """Return multiples of 2^-12 in the shapes of all tensors. Every machine draws the same ones."""
    draws = np.random.default_rng(seed)
    shapes = schema.state.config.parameter_shapes()
    drawn = {name: draws.integers(-(1 << 14), 1 << 14, shape) for name, shape in shapes.items()}
    return {
        name: torch.from_numpy((whole / 4096).astype(np.float32)) for name, whole in drawn.items()
    }


def accounts() -> dict[str, Any]:
    """Return size and SHA-256 of a run's accounts, when it is new and in its first warm-up."""
    scenario = Scenario(World())
    by_moment: dict[str, Any] = {}

    def note(moment: str) -> None:
        addresses = {
            name: scenario.accounts[name] for name in ("run", "model", "members", "witnesses")
        }
        if scenario.membership(0):
            addresses["membership"] = scenario.membership_key(wallet(0))
        data = {name: scenario.world.data(key) for name, key in addresses.items()}
        by_moment[moment] = {
            name: [len(content), _digest(content)] for name, content in data.items()
        }

    scenario.create().ok()
    note("made")
    scenario.configure().ok()
    scenario.authorize().ok()
    scenario.owner("set_paused", False).ok()
    for index in range(3):
        scenario.join(index, tier=index).ok()
    scenario.world.advance(30)
    scenario.tick().ok()
    note("first warm-up")
    return by_moment


def events() -> dict[str, list[str]]:
    """Return the JSON lines of each kind of event: one with all fields, and one with the required
    fields only.
    """
    lines_by_kind = {}
    for kind in typing.get_args(MEMBER_EVENTS):
        full = kind(**{one.name: sample(one.type) for one in msgspec.structs.fields(kind)})
        needed = {
            one.name: sample(one.type) for one in msgspec.structs.fields(kind) if one.required
        }
        lines = [msgspec.json.encode(event).decode() for event in (full, kind(**needed))]
        lines_by_kind[kind.__struct_config__.tag] = lines
    return lines_by_kind


def sample(kind: Any) -> Any:
    """Return a value of a field's type."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is typing.Annotated:
        return sample(arguments[0])
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return sample(next(one for one in arguments if one is not type(None)))
    if origin in (tuple, list) or (
        origin and issubclass(origin, typing.Collection) and not issubclass(origin, Mapping)
    ):
        inner = [one for one in arguments if one is not Ellipsis]
        return tuple(sample(one) for one in inner)
    if origin and issubclass(origin, Mapping):
        return {sample(arguments[0]): sample(arguments[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{one.name: sample(one.type) for one in msgspec.structs.fields(kind)})
    return {int: 7, float: 0.5, str: "text", bool: True, bytes: b"bytes"}[kind]


def commands(index: Index) -> dict[str, str]:
    """Return the arguments and options of each command, as a command line names them."""
    parameters_by_command = {}
    for name in index.entries:
        parameters = [
            parameter for parameter in index.load(name).params if parameter.name not in _COMMON
        ]
        parameters_by_command[name] = " ".join(
            "/".join(_names(parameter)) for parameter in parameters
        )
    return parameters_by_command


def _names(parameter: Any) -> list[str]:
    if parameter.param_type_name == "argument":
        return [str(parameter.name)]
    return [*parameter.opts, *parameter.secondary_opts]


def config_keys() -> list[str]:
    """Return every key of a run's config file, with the kind of its value."""
    return [re.sub(r"\s+", " ", f"{key.name}: {key.kind}") for key in keys()]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


PARTS: Mapping[str, Callable[[], Any]] = {
    **{name: partial(payloads_and_hashes, schema) for name, schema in SCHEMAS.items()},
    "accounts": accounts,
    "events": events,
    "commands of aftermath-solana": partial(commands, SOLANA),
    "commands of aftermath-centralized": partial(commands, CENTRALIZED),
    "config keys": config_keys,
    "exit codes": lambda: dict(sorted(EXITS.items())),
}
"""The vectors, by name."""


def main() -> None:
    VECTORS.write_text(
        json.dumps({name: part() for name, part in PARTS.items()}, indent=1) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
