"""Build the config of a new run: a recipe (a packaged config), changed by the owner's options.

An optimizer's learning rate, overlap and batch size depend on each other, so they are copied
together from a recipe with that optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftermath.base.errors import UsageError
from aftermath.cli.model_init import document
from aftermath.config.data_sources import DataLocationChoice, LocalData
from aftermath.config.document import Llm, RunConfig, RunRules
from aftermath.config.recipe_file import recipe_of
from aftermath.config.start_checkpoint import CheckpointChoice, LocalCheckpoint
from aftermath.config.training import LearningRate
from aftermath.data.bytelevel import VOCAB_SIZE
from aftermath.model.architectures import architecture_of, config_of
from aftermath.model.tokenizer_files import TOKENIZER_FILE
from aftermath.rules.optimizers import optimizers
from aftermath.testnet.files import chosen, find

FILES = dict[str, dict[str, Any]]
"""How to make a config's model and tokens: the tables of its NAME.files.toml."""

RECIPE = "solana-test/light-config.toml"


@dataclass(frozen=True)
class NewRunOptions:
    """The owner's choices. None keeps the recipe's value."""

    recipe: str | None = None
    preset: str | None = None
    tiers: int | None = None
    optimizer: str | None = None
    members: int | None = None
    steps: int | None = None
    data_path: Path | None = None


def begin(recipe: str) -> tuple[RunConfig, FILES]:
    """Return a recipe's config and its files tables. Raises UsageError, ConfigError."""
    path = find(Path(recipe))
    return chosen(path).config, recipe_of(path)


def apply_options(
    config: RunConfig, files: FILES, new_options: NewRunOptions, directory: str
) -> tuple[RunConfig, FILES]:
    """Return the config and files tables after the owner's choices. Raises UsageError.

    `directory`: directory for the model and the tokens.
    """
    steps = new_options.steps or config.config.total_steps
    rules, llm = _with_optimizer(config, new_options.optimizer, steps)
    if new_options.tiers is not None:
        llm = llm.model_copy(
            update={"matformer": llm.matformer.model_copy(update={"tiers": new_options.tiers})}
        )
    files = {name: dict(options) for name, options in files.items()}
    if new_options.preset is not None:
        described = document(new_options.preset, None, {}, tied=False, entries=None)
        files = _with_preset(files, new_options.preset, described)
        architecture = architecture_of(described)
        length = min(llm.max_seq_len, config_of(described).max_position_embeddings)
        llm = llm.model_copy(update={"architecture": architecture, "max_seq_len": length})
    if "model" in files:
        if llm.matformer.tiers > 1:
            files["model"]["tiers"] = llm.matformer.tiers
        llm = llm.model_copy(
            update={
                "checkpoint": CheckpointChoice(Local=LocalCheckpoint(path=f"{directory}/model"))
            }
        )
    llm, files = _with_data(llm, files, new_options.data_path, directory)
    rules = _with_members(
        rules,
        new_options.members,
        llm.optimizer.settings.inner_steps or 1,
    )
    rules = rules.model_copy(update={"total_steps": steps})
    model = config.model.model_copy(update={"LLM": llm})
    return config.model_copy(update={"config": rules, "model": model}), files


def _with_optimizer(config: RunConfig, optimizer: str | None, steps: int) -> tuple[RunRules, Llm]:
    """Return the rules and the model table with the optimizer and a schedule of `steps`.

    If the optimizer is not the config's own, also use the batch sizes and overlap of its recipe.
    """
    rules = config.config
    llm = config.llm
    if optimizer is None or optimizer == optimizer_name(config):
        schedule = scale_schedule(llm.lr_schedule, rules.total_steps, steps)
        return rules, llm.model_copy(update={"lr_schedule": schedule})
    recipe, _ = begin(optimizers()[optimizer].RECIPE)
    keys = ("overlap", "global_batch_size_start", "global_batch_size_end")
    rules = rules.model_copy(update={name: getattr(recipe.config, name) for name in keys})
    schedule = scale_schedule(recipe.llm.lr_schedule, recipe.config.total_steps, steps)
    return rules, llm.model_copy(
        update={"optimizer": recipe.llm.optimizer, "lr_schedule": schedule}
    )


def _with_data(llm: Llm, files: FILES, data_path: Path | None, directory: str) -> tuple[Llm, FILES]:
    """Return the model table and the files tables with the owner's tokens, or those to be made."""
    tokens_path = f"{directory}/tokens" if files.keys() & {"tokens", "fetch"} else None
    if data_path is not None:
        tokens_path = str(data_path)
        files = {name: options for name, options in files.items() if name == "model"}
        tokenizer = _tokenizer_of(data_path)
        if "model" in files and tokenizer is not None:
            files["model"]["tokenizer"] = str(tokenizer)
    if tokens_path is None:
        return llm, files
    local_data = llm.data_location.Local
    local = (
        LocalData(path=tokens_path)
        if local_data is None
        else local_data.model_copy(update={"path": tokens_path})
    )
    return llm.model_copy(
        update={"data_location": DataLocationChoice(Local=local), "data_hash": ""}
    ), files


def _tokenizer_of(data: Path) -> Path | None:
    """Return the tokenizer.json next to token files, or None."""
    path = (data if data.is_dir() else data.parent) / TOKENIZER_FILE
    return path if path.is_file() else None


def optimizer_name(config: RunConfig) -> str | None:
    """Return a config's optimizer, or None for one without exchange."""
    optimizer = config.llm.optimizer.settings
    return optimizer.kind() if optimizer.EXCHANGED else None


def scale_schedule(rates: LearningRate, steps: int, new_steps: int) -> LearningRate:
    """Scale a learning-rate schedule, and all its parts, from `steps` to `new_steps` steps."""
    if steps == new_steps:
        return rates
    name = next(name for name in type(rates).model_fields if getattr(rates, name) is not None)
    schedule = rates.chosen
    scaled = {
        field: getattr(schedule, field) * new_steps // steps
        for field in type(schedule).model_fields
        if field.endswith("_steps")
    }
    if rates.WarmupStableDecay is not None:  # the stable part takes up rounding errors
        fields = ("warmup_steps", "stable_steps", "cosine_decay_steps", "linear_decay_steps")
        rounding = (
            new_steps
            + sum(getattr(schedule, field) for field in fields)
            - steps
            - sum(scaled[field] for field in fields)
        )
        scaled["stable_steps"] += rounding
    return LearningRate.model_validate({name: schedule.model_dump() | scaled})


def _with_preset(files: FILES, preset: str, described: Mapping[str, Any]) -> FILES:
    """Return the files of another model. Tokens of a larger vocabulary become tokens of single
    bytes.
    """
    other_tables = {name: options for name, options in files.items() if name != "model"}
    if described["vocab_size"] == VOCAB_SIZE:
        other_tables = {"tokens": other_tables.get("tokens", {})}
    return {"model": {"preset": preset}} | other_tables


def _with_members(rules: RunRules, members: int | None, inner_steps: int) -> RunRules:
    """Set the number of members. Allow a third to leave, and give each one a sequence per step."""
    if members is None:
        return rules
    least = members * inner_steps
    batch = {
        name: max(getattr(rules, name), least)
        for name in ("global_batch_size_start", "global_batch_size_end")
    }
    if least > 65535:
        raise UsageError(
            f"--members {members} needs a batch of {least} sequences, and the limit is 65535",
            "Choose fewer members",
        )
    return rules.model_copy(
        update={"init_min_clients": members, "min_clients": max(1, members - members // 3)} | batch
    )
