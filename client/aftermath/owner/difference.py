"""List what a new configuration changes in a run: each key with its old and its new value.

Both sides have the form of `json-dump-run`, whose paths are the keys, so no key is forgotten.
Consequences of a change, such as the missing hashes of a new checkpoint, are not listed. For a run
without a config, keys with their default values are listed separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from aftermath.chain.dump import plain
from aftermath.config.read import checkpoint_of, rules_of, trained_by
from aftermath.owner.change import Change
from aftermath.rules.model import Metadata, Model
from aftermath.rules.run import Run
from aftermath.rules.state import ModelSource

Table = TypeVar("Table", bound=BaseModel)


@dataclass(frozen=True)
class Difference:
    """A key, with its values as JSON types; None where it does not exist."""

    key: str
    old: Any
    new: Any


def differences(change: Change, run: Run, model: Model) -> list[Difference]:
    """Return the keys that the change modifies."""
    old = dict(_flat({"run": plain(run), "model": plain(model)}))
    new = dict(
        _flat({"run": plain(_run(change, run, model)), "model": plain(_model(change, model))})
    )
    return [
        Difference(key, old.get(key), new.get(key))
        for key in old | new
        if old.get(key) != new.get(key)
    ]


def default_keys(change: Change, run: Run, model: Model) -> frozenset[str] | None:
    """Return the keys that a run's first config leaves at their defaults.

    None if the change does not set a first config.
    """
    if change.config is None or model.configured:
        return None
    names: set[str] = set()
    config = _with_defaults(change.config, names)
    all_default = replace(change, config=config)
    values, defaults = (
        dict(_flat({"run": plain(_run(one, run, model)), "model": plain(_model(one, model))}))
        for one in (change, all_default)
    )
    defaults["model.tiers"] = config.llm.matformer.tiers  # `_model` takes tiers from the shape
    return frozenset(
        key
        for key, value in values.items()
        if key.split(".")[-1] in names and defaults.get(key) == value
    )


def _with_defaults(table: Table, names: set[str]) -> Table:
    """Return a table with its optional keys left out, and add their names to `names`."""
    defaults: dict[str, Any] = {}
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if isinstance(value, BaseModel):
            defaults[name] = _with_defaults(value, names)
        elif not field.is_required():
            names.add(name)
            defaults[name] = field.get_default(call_default_factory=True)
    return table.model_copy(update=defaults)


def _run(change: Change, run: Run, model: Model) -> Run:
    """Return the run after the change."""
    if change.config is not None:
        run = replace(run, config=rules_of(change.config))
    if change.restart_from_step is not None:
        progress = change.progress(run)
        run = replace(
            run,
            epoch=progress["epoch"],
            step=progress["step"],
            data_index=progress["data_index"],
            backlog=0,
        )
    reshaped = change.shape is not None and change.shape.schema.hash() != model.schema_hash
    return (
        replace(run, model_source=ModelSource.CHECKPOINT)
        if change.switch_to_hub or reshaped
        else run
    )


def _model(change: Change, model: Model) -> Model:
    """Return the model after the change."""

    if change.config is not None:
        llm = change.config.llm
        model = replace(
            model,
            **trained_by(llm.spec),
            spec_error="",
            max_seq_len=llm.max_seq_len,
            cold_start_warmup_steps=llm.cold_start_warmup_steps,
            checkpoint=change.kept_checkpoint(model) or checkpoint_of(llm.checkpoint),
            tiers=llm.matformer.tiers,
        )
    if change.config is not None and change.shape is not None:
        widths = tuple(change.shape.schema.state.widths)
        model = replace(
            model, schema_hash=change.shape.schema.hash(), tier_widths=widths, tiers=len(widths)
        )
    if metadata := change.metadata_after(model):
        model = replace(model, metadata=Metadata(**metadata))
    return (
        model
        if change.client_version is None
        else replace(model, client_version=change.client_version)
    )


def _flat(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested tables."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
