"""Find the hash of a run's data, which is stored on chain with the data location.

It is the config's `data_hash`, or else the hash of the data that this machine reads. An owner need
not hold the data: then the run has no hash, and a message says so. Local files that no member can
train on are refused unless the config has a `data_hash`, because members may have other files.
"""

from __future__ import annotations

import os
from pathlib import Path

from aftermath.base.errors import AftermathError, ConfigError
from aftermath.config.chain_values import location_of
from aftermath.config.document import RunConfig
from aftermath.config.errors import Mistake
from aftermath.config.recipe_file import missing_file_fix
from aftermath.data.fingerprint import records_hash
from aftermath.data.source import DataError, Source, WrongTokens
from aftermath.model.tokenizer_files import TOKENIZER_FILE, same_tokens
from aftermath.train.locations import open_source

_UNCHECKED = "and without data_hash in the config, members with other files go unnoticed"


def open_run_data(config: RunConfig, vocab_size: int) -> Source:
    """Open the data that a config names on this machine. Raises DataError, Unsuitable."""
    llm = config.llm
    labels = llm.data_type == "Finetuning"
    try:
        return open_source(
            location_of(llm.data_location), llm.max_seq_len, vocab_size, labels=labels
        )
    except DataError as error:
        local = llm.data_location.Local
        if local is None or os.path.exists(os.path.expanduser(local.path)):
            raise
        if make := missing_file_fix(config.file, "tokens", "fetch"):
            raise DataError(error.message, make) from None
        raise


def with_agreed_data(config: RunConfig, vocab_size: int) -> tuple[RunConfig, str]:
    """Return the config with the hash of its data, and a warning about the data (empty if there is
    none).

    Raises Mistaken if no member can train on the data with the config's settings.
    """
    agreed_hash = config.llm.data_hash
    try:
        records = open_run_data(config, vocab_size).record()
    except AftermathError as error:
        if isinstance(error, WrongTokens) and not agreed_hash:
            mistake = Mistake(("model", "LLM", "data_location"), error.message, error.code)
            raise config.refused([mistake], error.fix) from error
        reason = ". ".join(filter(None, (error.message, error.fix)))
        unchecked = "" if agreed_hash else f", {_UNCHECKED}"
        return config, f"this machine cannot train on the run's data{unchecked}: {reason}"
    if not records and not agreed_hash:
        return config, ""
    local_hash = records_hash(records).hex()
    if agreed_hash and agreed_hash != local_hash:
        return config, (
            f"this machine cannot train on the run's data: its files have the hash {local_hash}, "
            f"but data_hash is {agreed_hash}"
        )
    warning = warning_about_tokenizer(config)
    if agreed_hash:
        return config, warning
    try:
        return config.with_data_hash(local_hash), warning
    except ConfigError:
        return (
            config,
            "the data's path is too long to store data_hash with it: members with other files go unnoticed",
        )


def warning_about_tokenizer(config: RunConfig) -> str:
    """Return a warning if local tokens and local model have different tokenizers, else ""."""
    data = config.llm.data_location.Local
    model = config.llm.checkpoint.Local
    if data is None or model is None:
        return ""
    try:
        tokens = Path(data.path).expanduser()
        tokens_file = (tokens if tokens.is_dir() else tokens.parent) / TOKENIZER_FILE
        model_file = Path(model.path).expanduser() / TOKENIZER_FILE
        if same_tokens(tokens_file.read_bytes(), model_file.read_bytes()):
            return ""
    except (OSError, RuntimeError, ValueError):  # one of them has no tokenizer on this machine
        return ""
    return (
        f"the tokens in {data.path} and the model in {model.path} have different tokenizers. Run "
        f"aftermath-solana model init --tokenizer {tokens_file} --out DIR, or "
        f"aftermath-solana data tokenize --tokenizer {model_file} --input TEXT --output DIR"
    )
