"""What all members of a run must find at its data location, as far as its owner can see it.

Decided: the hash of the files is put on chain with their place wherever it can be had: the file's own `data_hash`, else
that of the data as this machine reads it. An owner need not hold the data, and other clients may read what this one
does not; then the run goes without, which is said.
"""

from __future__ import annotations

import os

from aftermath.base.errors import AftermathError, ConfigError
from aftermath.config.document import RunConfig
from aftermath.config.read import location_of
from aftermath.config.recipe import made_first
from aftermath.data.fingerprint import hash_of
from aftermath.data.source import DataError, Source
from aftermath.train.locations import open_source

_WITHOUT = "and without data_hash in the file nobody finds out that a member has other files"


def source_of(config: RunConfig, vocab_size: int) -> Source:
    """The data that a config file names, as this machine reads it. Raises DataError, Unsuitable."""
    llm = config.llm
    labels = llm.data_type == "Finetuning"
    try:
        return open_source(location_of(llm.data_location), llm.max_seq_len, vocab_size, labels=labels)
    except DataError as error:
        local = llm.data_location.Local
        if local is None or os.path.exists(os.path.expanduser(local.path)):
            raise
        if make := made_first(config.file, "tokens", "fetch"):
            raise DataError(error.message, make) from None
        raise


def with_agreed_data(config: RunConfig, vocab_size: int) -> tuple[RunConfig, str]:
    """The config with the hash of its data, and what is troublesome about that, empty if nothing is."""
    given = config.llm.data_hash
    try:
        records = source_of(config, vocab_size).record()
    except AftermathError as error:
        said = ". ".join(filter(None, (error.message, error.fix)))
        return config, f"a member on this machine could not train{'' if given else f', {_WITHOUT}'}: {said}"
    if not records and not given:
        return config, ""
    found = hash_of(records).hex()
    if given:
        trouble = f"a member on this machine could not train: its data has the hash {found}, and data_hash is another"
        return config, "" if given == found else trouble
    try:
        return config.with_data_hash(found), ""
    except ConfigError:
        return config, "the folder of the data leaves no room for its hash: nobody finds out that a member has others"
