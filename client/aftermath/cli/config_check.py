"""Check a run's config file with what this machine has.

Mistakes are what `update-config` and `train` would refuse. Warnings are about unusual settings, and
about files that this machine lacks. Uses no network, so a checkpoint on the Hub is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftermath.base.errors import AftermathError, ConfigError
from aftermath.cli.main import SOLANA, load
from aftermath.cli.model_init import SIZES, byte_tokens, document, tokens_of
from aftermath.cli.usage import ParserError, usage_error
from aftermath.config.chain_values import location_of, rules_of, schedule_of
from aftermath.config.document import RunConfig, load_config
from aftermath.config.errors import LocatedMistake, Mistake, Mistaken
from aftermath.config.recipe_file import RECIPE_SUFFIX, recipe_of
from aftermath.data.fingerprint import records_hash
from aftermath.data.source import WrongTokens
from aftermath.owner import warnings as owner_warnings
from aftermath.owner.agreed_data import open_run_data, warning_about_tokenizer
from aftermath.owner.schema import (
    Shape,
    checkpoint_contradictions,
    document_of,
    invalid_checkpoint_names,
    shape_with,
    unsupported_settings,
)
from aftermath.testnet.files import flags
from aftermath.train.locations import check_place

_LLM = ("model", "LLM")
_INIT = "model init"
_ANY_VOCABULARY = 2  # any size will do, because missing files have no tokens to read


@dataclass(frozen=True)
class Checked:
    """A file's mistakes by line, (code, sentence) of each warning, and what was not checked."""

    mistakes: tuple[LocatedMistake, ...]
    warnings: tuple[tuple[str, str], ...] = ()
    unchecked: tuple[str, ...] = ()


def check(path: Path) -> Checked:
    """Check a file. Raise ConfigError only if it, or the file next to it, cannot be read."""
    _refuse_other_kinds(path)
    try:
        config = load_config(path)
    except Mistaken as error:
        return Checked(error.found)
    return check_config(config, recipe_of(path))


def _refuse_other_kinds(path: Path) -> None:
    """Raise ConfigError for a recipe file or a wallet's key file."""
    config = f"{path.name.removesuffix(RECIPE_SUFFIX)}.toml"
    if path.name.endswith(RECIPE_SUFFIX):
        raise ConfigError(
            f"{path} is the recipe for run-files, not a run's config",
            f"Name the config: {path.with_name(config)}",
        )
    if path.suffix == ".json":
        raise ConfigError(
            f"{path} is a JSON file, and a run's config is TOML", "Name the config, as run.toml"
        )


def check_config(config: RunConfig, recipe: Mapping[str, Any]) -> Checked:
    """Check a config. `recipe` says what its model and tokens will be made of."""
    unchecked: list[str] = []
    mistakes = [
        *invalid_checkpoint_names(config),
        *unsupported_settings(config),
        *_location_mistakes(config),
    ]
    model_document = None
    if not any(one.code == "repository-name" for one in mistakes):
        model_document = _model(config, recipe, mistakes, unchecked)
    shape = None if model_document is None else _shape(config, model_document, mistakes)
    warnings = owner_warnings.warnings_by_code(
        schedule_of(config.llm.lr_schedule), rules_of(config), shape
    )
    # Without a model, only missing data files are reported: a check of tokens needs the vocabulary.
    data_warning = ""
    if shape is not None:
        data_warning = _data(config, shape.vocab_size, recipe, mistakes, unchecked)
    elif _is_missing(config):
        data_warning = _data(config, _ANY_VOCABULARY, recipe, mistakes, unchecked)
    if data_warning:
        warnings.append(("data-here", data_warning))
    located = config.refused(mistakes).found if mistakes else ()
    return Checked(located, tuple(warnings), tuple(unchecked))


def _location_mistakes(config: RunConfig) -> list[Mistake]:
    try:
        check_place(location_of(config.llm.data_location))
    except AftermathError as error:
        return [_mistake_from(error, "data_location")]
    return []


def _mistake_from(error: AftermathError, *key: str) -> Mistake:
    return Mistake((*_LLM, *key), ". ".join(filter(None, (error.message, error.fix))), error.code)


def _model(
    config: RunConfig, recipe: Mapping[str, Any], mistakes: list[Mistake], unchecked: list[str]
) -> Mapping[str, Any] | None:
    """Return the model's config.json, or None after adding the reason to one of the lists."""
    checkpoint = config.llm.checkpoint
    on_hub = (
        checkpoint.Dummy is not None
        and checkpoint.Dummy.repo_id
        and not _is_here(checkpoint.Dummy.repo_id)
    )
    if checkpoint.Hub is not None or on_hub:
        unchecked.append("the model, because it is on the Hub; update-config checks it")
        return None
    try:
        planned = planned_document(config, recipe, unchecked)
        return document_of(config) if planned is None else planned
    except Mistaken as error:
        mistakes.append(
            Mistake((*_LLM, "checkpoint"), error.found[0].sentence, error.found[0].code)
        )
    except AftermathError as error:
        mistakes.append(_mistake_from(error, "checkpoint"))
    return None


def planned_document(
    config: RunConfig, recipe: Mapping[str, Any], unchecked: list[str]
) -> Mapping[str, Any] | None:
    """Return the config.json of a model that the recipe will make, and note that in `unchecked`.

    None if the model exists or has no recipe. Raises UsageError.
    """
    local = config.llm.checkpoint.Local
    if local is None or "model" not in recipe or _is_here(local.path):
        return None
    unchecked.append(f"the model {local.path}, which does not exist yet; its recipe was checked")
    return _init_document(recipe["model"])


def _is_missing(config: RunConfig) -> bool:
    """Return whether the config names local data that this machine does not have."""
    path = config.llm.data_location.source.local_path()
    return bool(path) and not _is_here(path)


def _is_here(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (RuntimeError, ValueError):  # an unknown ~NAME, or an invalid file name
        return False


def _init_document(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of `model init`. Raises UsageError, CheckpointError."""
    try:
        parameters = load(_INIT).make_context(_INIT, ["--out", "model", *flags(options)]).params
    except ParserError as error:
        raise usage_error(error, SOLANA.name, _INIT, SOLANA.kinds(_INIT)) from None
    sizes = {name: parameters[name] for name in SIZES if parameters[name] is not None}
    tokens = (
        tokens_of(parameters["tokenizer"]) if parameters["tokenizer"] is not None else byte_tokens()
    )
    return document(
        parameters["preset"],
        parameters["architecture"],
        sizes,
        tied=parameters["tied"],
        entries=parameters["matformer_tiers"],
        tokens=tokens,
    )


def _shape(
    config: RunConfig, model_document: Mapping[str, Any], mistakes: list[Mistake]
) -> Shape | None:
    try:
        mistakes += checkpoint_contradictions(config, model_document)
        return shape_with(config, model_document) if not mistakes else None
    except AftermathError as error:
        mistakes.append(_mistake_from(error, "matformer", "tiers"))
    return None


def _data(
    config: RunConfig,
    vocab_size: int,
    recipe: Mapping[str, Any],
    mistakes: list[Mistake],
    unchecked: list[str],
) -> str:
    """Return why a member on this machine could not train on the data. Empty if it could, or if
    that is unknown.

    If no member can train on the data with these settings, add a mistake, because update-config
    refuses the config.
    """
    location = config.llm.data_location
    if location.source.is_remote:
        unchecked.append("the data, because it is remote")
        return ""
    if (
        location.Local is not None
        and not _is_here(location.Local.path)
        and recipe.keys() & {"tokens", "fetch"}
    ):
        unchecked.append(f"the data: {location.Local.path}, which does not exist yet")
        return ""
    try:
        records = open_run_data(config, vocab_size).record()
        if (agreed_hash := config.llm.data_hash) and (
            local_hash := records_hash(records).hex()
        ) != agreed_hash:
            return f"the data has the hash {local_hash}, but data_hash is {agreed_hash}"
    except AftermathError as error:
        if isinstance(error, WrongTokens) and not config.llm.data_hash:
            mistakes.append(_mistake_from(error, "data_location"))
            return ""
        return ". ".join(filter(None, (error.message, error.fix)))
    return warning_about_tokenizer(config)
