"""What a member needs before it can join: the run's schema, its data, and a way to make replicas of its tier.

Everything a run's accounts ask for that this client cannot do is refused here, in a sentence, before anything is
joined, downloaded or trained.
"""

from __future__ import annotations

from aftermath.base.errors import Unsuitable
from aftermath.config.document import ARCHITECTURES
from aftermath.data.fingerprint import hash_of
from aftermath.data.http import shown
from aftermath.data.source import Source
from aftermath.model.resolve import load_hf_config
from aftermath.optim.agreed import EXCHANGED, agreed_schema
from aftermath.optim.schema import Schema
from aftermath.rules.accounts import Model
from aftermath.rules.state import DataType
from aftermath.train.locations import open_source


def check_model(model: Model, run_id: str) -> None:
    """Unsuitable if the run's accounts, without any download, ask for what this client does not have."""
    if not any(model.schema_hash):
        raise Unsuitable(
            f"run {run_id} is not configured yet",
            f"its owner configures it: aftermath-solana update-config --run-id {run_id} --config-path FILE",
        )
    if model.architecture not in ARCHITECTURES.values():
        raise Unsuitable(
            f"run {run_id} trains an architecture this client does not have; it has {', '.join(ARCHITECTURES)}"
        )
    if model.optimizer.kind not in EXCHANGED:
        raise Unsuitable(
            f"run {run_id} uses AdamW, and members exchange results with {' or '.join(EXCHANGED.values())}"
        )


def schema_of(model: Model, run_id: str) -> Schema:
    """The run's schema, from its checkpoint's config.json and its settings, checked against the chain's hash."""
    check_model(model, run_id)
    schema = agreed_schema(load_hf_config(model.checkpoint), model.tiers, model.optimizer)
    if schema.hash() != model.schema_hash:
        raise Unsuitable(
            f"the checkpoint {model.checkpoint.repo} does not fit run {run_id}: its schema is "
            f"{schema.hash().hex()[:12]}, the run's is {model.schema_hash.hex()[:12]}",
            "the model's config.json was changed after the run was configured; restore it, or update-config again",
        )
    return schema


def check_tier(tier: int, schema: Schema, run_id: str) -> None:
    """Unsuitable if the run has no such tier."""
    if tier >= schema.state.tiers:
        raise Unsuitable(
            f"--matformer-tier {tier}: run {run_id} has tiers 0 to {schema.state.tiers - 1}",
            "choose one of those; a higher tier is a smaller model",
        )


def data_of(model: Model, schema: Schema) -> Source:
    """The run's tokens as this machine has them. Unsuitable if they are not those that the run's owner marked."""
    finetuning = model.data_type == DataType.FINETUNING
    location = model.data_location
    source = open_source(location, model.max_seq_len, schema.state.config.vocab_size, labels=finetuning)
    if location.files_hash and (found := hash_of(source.record()).hex()) != location.files_hash:
        raise Unsuitable(
            f"the data at {shown(location.primary)} is not what the run trains on: its hash is {found[:12]}, the run's "
            f"is {location.files_hash[:12]}",
            "compare its files (aftermath-solana data inspect) with those of other members, and copy them again; where "
            "they were changed on purpose, the run's owner passes the new ones to update-config",
        )
    return source
