"""Convert a config to the values that members read from the chain, with reals as floats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from aftermath.config.data_sources import DataLocationChoice, DataSource, DummyData
from aftermath.config.document import RunConfig
from aftermath.config.rules import real
from aftermath.config.spec import Spec
from aftermath.config.start_checkpoint import CheckpointChoice
from aftermath.config.tables import Choice, Variant
from aftermath.rules.model import Checkpoint, DataLocation, LrSchedule
from aftermath.rules.optimizer import NoOptimizer
from aftermath.rules.run import Config
from aftermath.rules.state import CheckpointKind, DataKind, ScheduleKind


def rules_of(config: RunConfig) -> Config:
    """Return the run's rules: its timing, quorum and batch size."""
    return Config(**config.to_chain()["config"])


def trained_by(spec: Spec) -> dict[str, Any]:
    """Return the fields of `rules.model.Model` that a training spec sets."""
    values = spec.values()
    return {
        "architecture": values["architecture"],
        "data_type": values["data_type"],
        "data_location": _location(values["data_location"], spec.data_location.source),
        "lr_schedule": schedule_of(spec.lr_schedule),
        "optimizer": spec.optimizer.settings,
    }


def checkpoint_of(chosen: CheckpointChoice) -> Checkpoint:
    """Return the location of the run's model."""
    return Checkpoint(**_read(chosen.to_chain(), Checkpoint, CheckpointKind))


def location_of(chosen: DataLocationChoice) -> DataLocation:
    """Return the location of the run's tokens."""
    return _location(chosen.to_chain(), chosen.source)


def source_of(location: DataLocation) -> DataSource:
    """Return the table that reads a location's tokens."""
    source = location.source
    assert isinstance(source, DataSource)
    return source


def _location(values: Mapping[str, Any], source: DataSource) -> DataLocation:
    return DataLocation(**_read(values, DataLocation, DataKind), source=source)


def schedule_of(chosen: Choice | Variant) -> LrSchedule:
    """Return a learning-rate schedule as members use it."""
    return LrSchedule(**_read(chosen.to_chain(), LrSchedule, ScheduleKind))


def _read(values: Mapping[str, Any], view: type, kind: type) -> dict[str, Any]:
    """Return the arguments of the dataclass `view`.

    A key `X_bits` that is not a field of `view` holds the IEEE bits of the real number X.
    """
    fields = {field.name for field in dataclasses.fields(view)}
    reals = {
        name.removesuffix("_bits"): real(bits)
        for name, bits in values.items()
        if name not in fields
    }
    plain = {name: value for name, value in values.items() if name in fields}
    return plain | reals | {"kind": kind(values["kind"])}


def _zeros(view: type) -> dict[str, Any]:
    return dict.fromkeys((field.name for field in dataclasses.fields(view)), 0)


_NOWHERE = {
    "kind": DataKind.DUMMY,
    "primary": "",
    "secondary": "",
    "shuffle_seed": bytes(32),
    "source": DummyData(),
}
NO_SPEC: Mapping[str, Any] = {
    "architecture": "",
    "data_type": 0,
    "data_location": DataLocation(**_zeros(DataLocation) | _NOWHERE),
    "lr_schedule": LrSchedule(**_zeros(LrSchedule) | {"kind": ScheduleKind.CONSTANT}),
    "optimizer": NoOptimizer(),
    "spec_hash": bytes(32),
    "spec_error": "",
}
"""Fields, hash and error of a run that has no training spec."""
