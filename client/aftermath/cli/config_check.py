"""Check a run's config file with what this machine has.

Mistakes are what `update-config` and `train` would refuse. Warnings are about unusual settings, and
about files that this machine lacks. Uses no network, so a checkpoint on the Hub is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftermath.base.errors import AftermathError
from aftermath.cli.main import SOLANA, load
from aftermath.cli.model_init import SIZES, byte_tokens, document, tokens_of
from aftermath.cli.usage import ParserError, explained
from aftermath.config.document import RunConfig, load_config
from aftermath.config.errors import LocatedMistake, Mistake, Mistaken
from aftermath.config.read import location_of, rules_of, schedule_of
from aftermath.config.recipe import recipe_of
from aftermath.data.fingerprint import records_hash
from aftermath.data.source import WrongTokens
from aftermath.owner import warnings as owner_warnings
from aftermath.owner.agreed_data import source_of, warning_about_tokenizer
from aftermath.owner.schema import Shape, document_of, not_done, not_fitting, not_there, shape_with
from aftermath.testnet.configs import flags
from aftermath.train.locations import check_place

_LLM = ("model", "LLM")
_INIT = "model init"
_ANY_VOCABULARY = 2  # no token is read from files that are missing


@dataclass(frozen=True)
class Checked:
    """A file's mistakes by line, (code, sentence) of each warning, and what was not checked."""

    mistakes: tuple[LocatedMistake, ...]
    warnings: tuple[tuple[str, str], ...] = ()
    unseen: tuple[str, ...] = ()


def check(path: Path) -> Checked:
    """Check a file. Raise ConfigError only if it, or the file next to it, cannot be read."""
    try:
        config = load_config(path)
    except Mistaken as error:
        return Checked(error.found)
    return look(config, recipe_of(path))


def look(config: RunConfig, recipe: Mapping[str, Any]) -> Checked:
    """Check a config. `recipe` says what its model and tokens will be made of."""
    unseen: list[str] = []
    mistakes = [*not_there(config), *not_done(config), *_place(config)]
    described = None
    if not any(one.code == "repository-name" for one in mistakes):
        described = _model(config, recipe, mistakes, unseen)
    shape = None if described is None else _shape(config, described, mistakes)
    warnings = owner_warnings.coded(schedule_of(config.llm.lr_schedule), rules_of(config), shape)
    # Without a model, only missing data files are reported: a check of tokens needs the vocabulary.
    trouble = ""
    if shape is not None:
        trouble = _data(config, shape.vocab_size, recipe, mistakes, unseen)
    elif _is_missing(config):
        trouble = _data(config, _ANY_VOCABULARY, recipe, mistakes, unseen)
    if trouble:
        warnings.append(("data-here", trouble))
    found = config.refused(mistakes).found if mistakes else ()
    return Checked(found, tuple(warnings), tuple(unseen))


def _place(config: RunConfig) -> list[Mistake]:
    try:
        check_place(location_of(config.llm.data_location))
    except AftermathError as error:
        return [_told(error, "data_location")]
    return []


def _told(error: AftermathError, *key: str) -> Mistake:
    return Mistake((*_LLM, *key), ". ".join(filter(None, (error.message, error.fix))), error.code)


def _model(
    config: RunConfig, recipe: Mapping[str, Any], mistakes: list[Mistake], unseen: list[str]
) -> Mapping[str, Any] | None:
    """Return the model's config.json, or None after adding the reason to one of the lists."""
    chosen = config.llm.checkpoint
    away = chosen.Dummy is not None and chosen.Dummy.repo_id and not _is_here(chosen.Dummy.repo_id)
    if chosen.Hub is not None or away:
        unseen.append(
            "the model: the Hub is not asked; update-config will find out whether it fits"
        )
        return None
    try:
        planned = planned_document(config, recipe, unseen)
        return document_of(config) if planned is None else planned
    except Mistaken as error:
        mistakes.append(
            Mistake((*_LLM, "checkpoint"), error.found[0].sentence, error.found[0].code)
        )
    except AftermathError as error:
        mistakes.append(_told(error, "checkpoint"))
    return None


def planned_document(
    config: RunConfig, recipe: Mapping[str, Any], unseen: list[str]
) -> Mapping[str, Any] | None:
    """Return the config.json of a model that the recipe will make, and note that in `unseen`.

    None if the model exists or has no recipe. Raises UsageError.
    """
    chosen = config.llm.checkpoint.Local
    if chosen is None or "model" not in recipe or _is_here(chosen.path):
        return None
    unseen.append(f"the model: {chosen.path} is not there yet; it is taken as it is to be made")
    return _planned(recipe["model"])


def _is_missing(config: RunConfig) -> bool:
    """Return whether the config names local data that this machine does not have."""
    path = config.llm.data_location.source.local_path()
    return bool(path) and not _is_here(path)


def _is_here(place: str) -> bool:
    try:
        return Path(place).expanduser().exists()
    except (RuntimeError, ValueError):  # an unknown ~NAME, or an invalid file name
        return False


def _planned(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of `model init`. Raises UsageError, CheckpointError."""
    try:
        given = load(_INIT).make_context(_INIT, ["--out", "model", *flags(options)]).params
    except ParserError as error:
        raise explained(error, SOLANA.name, _INIT, SOLANA.kinds(_INIT)) from None
    sizes = {name: given[name] for name in SIZES if given[name] is not None}
    tokens = tokens_of(given["tokenizer"]) if given["tokenizer"] is not None else byte_tokens()
    return document(
        given["preset"],
        given["architecture"],
        sizes,
        tied=given["tied"],
        entries=given["matformer_tiers"],
        tokens=tokens,
    )


def _shape(
    config: RunConfig, described: Mapping[str, Any], mistakes: list[Mistake]
) -> Shape | None:
    try:
        mistakes += not_fitting(config, described)
        return shape_with(config, described) if not mistakes else None
    except AftermathError as error:
        mistakes.append(_told(error, "matformer", "tiers"))
    return None


def _data(
    config: RunConfig,
    vocab_size: int,
    recipe: Mapping[str, Any],
    mistakes: list[Mistake],
    unseen: list[str],
) -> str:
    """Return why a member on this machine could not train on the data. Empty if it could, or if
    that is unknown.

    If no member can train on the data with these settings, add a mistake, because update-config
    refuses the config.
    """
    chosen = config.llm.data_location
    if chosen.source.is_remote:
        unseen.append("the data: nobody is asked for it")
        return ""
    if (
        chosen.Local is not None
        and not _is_here(chosen.Local.path)
        and recipe.keys() & {"tokens", "fetch"}
    ):
        unseen.append(f"the data: {chosen.Local.path} is not there yet; it is to be made")
        return ""
    try:
        records = source_of(config, vocab_size).record()
        if (given := config.llm.data_hash) and (found := records_hash(records).hex()) != given:
            return f"its data has the hash {found}, and data_hash is another"
    except AftermathError as error:
        if isinstance(error, WrongTokens) and not config.llm.data_hash:
            mistakes.append(_told(error, "data_location"))
            return ""
        return ". ".join(filter(None, (error.message, error.fix)))
    return warning_about_tokenizer(config)
