"""Build the run's schema from the config file and the checkpoint that it names.

Settings that the program accepts but this client's members do not support are refused here. One
error lists all of them with their lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aftermath.base.text import is_repository
from aftermath.config.chain_values import checkpoint_of, schedule_of
from aftermath.config.document import RunConfig
from aftermath.config.errors import Mistake
from aftermath.config.recipe_file import missing_file_fix
from aftermath.model.architectures import architecture_of, config_of
from aftermath.model.config import stored_tier
from aftermath.model.json_documents import CheckpointError
from aftermath.model.run_checkpoint import load_hf_config, local_directory
from aftermath.optim.run_schema import agreed_schema
from aftermath.optim.schema import Schema
from aftermath.rules.optimizers import exchanged_shown
from aftermath.rules.schedules import highest_rate
from aftermath.rules.state import CheckpointKind

CODES = {
    "repository-name": "an invalid repository name",
    "labels-not-there": "finetuning on data without labels",
    "sequence-too-short": "sequences of one token",
    "sequence-too-long": "sequences longer than the model allows",
    "optimizer-not-exchanged": "an optimizer whose results members cannot exchange",
    "weight-decay-too-high": "a weight decay that flips the sign of every weight in one step",
    "checkpoint-is-a-slice": "a checkpoint of another tier than 0",
    "architecture-differs": "another architecture than the checkpoint's",
}
"""Stable codes of the mistakes found here, and what they mean."""
_LLM = ("model", "LLM")


@dataclass(frozen=True)
class Shape:
    """A run's schema and the sizes that follow from it."""

    schema: Schema

    @property
    def num_parameters(self) -> int:
        """Parameters of the full model."""
        return self.schema.state.parameters()

    @property
    def vocab_size(self) -> int:
        """Entries of the model's embedding."""
        return self.schema.state.config.vocab_size

    @property
    def bytes_per_round(self) -> list[int]:
        """Return by tier the bytes of a member's result, which goes to every other member in every
        round.
        """
        return [self.schema.results.result_bytes(tier) for tier in range(self.schema.state.tiers)]

    @property
    def size_lines(self) -> list[str]:
        """Return the sizes as text."""
        return [
            f"{size:,} by each member of tier {tier}"
            for tier, size in enumerate(self.bytes_per_round)
        ]

    def to_chain(self) -> dict[str, object]:
        """Return the part `schema` of the program's `UpdateParams`."""
        return {"hash": self.schema.hash(), "tier_widths": list(self.schema.state.widths)}


def shape_of(config: RunConfig, document: Mapping[str, Any] | None = None) -> Shape:
    """Return the schema of the run that `config` describes.

    `document`: the config.json of a checkpoint that does not exist yet. Raises Mistaken for
    unsupported settings, and `model`'s errors if the checkpoint cannot be read or cut into tiers.
    """
    if mistakes := [*invalid_checkpoint_names(config)]:
        raise config.refused(mistakes)
    document = document_of(config) if document is None else document
    if mistakes := [*unsupported_settings(config), *checkpoint_contradictions(config, document)]:
        raise config.refused(mistakes)
    return shape_with(config, document)


def shape_with(config: RunConfig, document: Mapping[str, Any]) -> Shape:
    """Return the schema for this config.json without further checks. Raises `model`'s errors."""
    return Shape(agreed_schema(document, config.llm.matformer.tiers, config.llm.optimizer.settings))


def document_of(config: RunConfig) -> Mapping[str, Any]:
    """Read the checkpoint's config.json.

    Raises Mistaken if a local path in the config is wrong, else like `load_hf_config`.
    """
    try:
        return load_hf_config(checkpoint_of(config.llm.checkpoint))
    except CheckpointError as error:
        if config.llm.checkpoint.Local is None:
            raise
        if command := _command_for_model(config):
            raise config.refused(
                [Mistake((*_LLM, "checkpoint"), error.message, error.code)], command
            ) from error
        reason = ". ".join(filter(None, (error.message, error.fix)))
        raise config.refused([Mistake((*_LLM, "checkpoint"), reason, error.code)]) from error


def _command_for_model(config: RunConfig) -> str:
    """Return the command that makes the Local model. Empty if its directory exists, or no file
    describes it.
    """
    try:
        exists = local_directory(checkpoint_of(config.llm.checkpoint)).exists()
    except CheckpointError:
        return ""
    return "" if exists else missing_file_fix(config.file, "model")


def invalid_checkpoint_names(config: RunConfig) -> Iterator[Mistake]:
    """Yield checkpoint names that are invalid, known without asking anybody."""
    hub = config.llm.checkpoint.Hub
    if hub is not None and not is_repository(hub.repo_id):
        yield Mistake(
            (*_LLM, "checkpoint", "Hub", "repo_id"),
            f'repo_id = "{hub.repo_id}" is not a valid repository name; use OWNER/NAME, for example "ada/my-model"',
            "repository-name",
        )


def unsupported_settings(config: RunConfig) -> Iterator[Mistake]:
    """Yield settings that this client's members do not support."""
    if config.llm.data_type == "Finetuning" and not config.llm.data_location.source.has_labels:
        yield Mistake(
            (*_LLM, "data_type"),
            'data_type = "Finetuning": only data_location = { Preprocessed = "DIR" } has labels; use that, or '
            'use "Pretraining"',
            "labels-not-there",
        )
    if config.llm.max_seq_len < 2:
        message = "max_seq_len = 1: no token is left to predict; use at least 2"
        yield Mistake((*_LLM, "max_seq_len"), message, "sequence-too-short")
    optimizer = config.llm.optimizer.settings
    table = (*_LLM, "optimizer", optimizer.TABLE)
    if not optimizer.EXCHANGED:
        yield Mistake(
            table,
            f"the optimizer {optimizer.shown()} is not supported: members exchange results with "
            f"{exchanged_shown()}; "
            "use [model.LLM.optimizer.Distro], or [model.LLM.optimizer.SparseLoCo] with AdamW as its inner_optimizer",
            "optimizer-not-exchanged",
        )
    rate = highest_rate(schedule_of(config.llm.lr_schedule))
    decay = optimizer.weight_decay
    if optimizer.EXCHANGED and rate * decay > 1:
        yield Mistake(
            (*table, "weight_decay"),
            f"weight_decay = {decay}: it would flip every weight at the highest learning rate, {rate}; use "
            f"at most {1 / rate:g}",
            "weight-decay-too-high",
        )


def checkpoint_contradictions(config: RunConfig, document: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield settings that contradict the checkpoint's config.json (`document`)."""
    stored, _ = stored_tier(document)
    if stored:
        recorded = config.llm.checkpoint.to_chain()
        yield Mistake(
            (*_LLM, "checkpoint", CheckpointKind(recorded["kind"]).name.title()),
            f"checkpoint {recorded['repo']} holds only tier {stored}; use the full checkpoint",
            "checkpoint-is-a-slice",
        )
    architecture = architecture_of(document)
    if config.llm.architecture != architecture:
        yield Mistake(
            (*_LLM, "architecture"),
            f'architecture = "{config.llm.architecture}": the checkpoint has another one; use "{architecture}"',
            "architecture-differs",
        )
    positions = config_of(document).max_position_embeddings
    if config.llm.max_seq_len > positions:
        yield Mistake(
            (*_LLM, "max_seq_len"),
            f"max_seq_len = {config.llm.max_seq_len}: the model has only {positions} positions "
            f"(max_position_embeddings in its config.json); use at most {positions}",
            "sequence-too-long",
        )
