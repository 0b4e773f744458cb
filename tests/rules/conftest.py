"""Views that several test files use."""

from __future__ import annotations

import pytest

from aftermath.config.chain_values import location_of
from aftermath.config.data_sources import DataLocationChoice, LocalData
from aftermath.rules.distro import Distro
from aftermath.rules.model import Checkpoint, Metadata, Model
from aftermath.rules.state import CheckpointKind, ScheduleKind
from rules.builders import schedule


@pytest.fixture
def configured_model() -> Model:
    """Return a model of three tiers with a constant rate and ten steps of cold start."""
    return Model(
        metadata=Metadata("test", "", 0, 0),
        client_version="",
        architecture="HfLlama",
        data_type=0,
        max_seq_len=64,
        cold_start_warmup_steps=10,
        checkpoint=Checkpoint(CheckpointKind.LOCAL, "model", ""),
        checkpoint_step=0,
        checkpoint_hashes=(bytes(32),) * 3,
        checkpoint_data_index=0,
        earlier=(),
        data_location=location_of(DataLocationChoice(Local=LocalData(path="tokens"))),
        lr_schedule=schedule(ScheduleKind.CONSTANT),
        optimizer=Distro(),
        schema_hash=b"\x01" * 32,
        spec_hash=b"\x02" * 32,
        tiers=3,
        tier_widths=(256, 128, 64),
    )
