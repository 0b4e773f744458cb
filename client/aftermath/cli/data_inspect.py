"""`data inspect`: what a member would read, and what marks it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.present import Result, facts

_ANY = 1 << 32  # a vocabulary that takes every token


@command("data inspect", example="aftermath-solana data inspect --data-path runs/light/tokens")
def data_inspect(
    data_path: Annotated[Path | None, typer.Option(help="A token file, or a folder of them.")] = None,
    config_path: Annotated[Path | None, typer.Option(help="A run's config file, whose data is looked at.")] = None,
    token_bytes: Annotated[Literal["2", "4"], typer.Option(help="Bytes of a token.")] = "2",
    seq_len: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")] = 1024,
) -> Result:
    """Describe token files and print their hash.

    Files that would train a model on garbage are refused: other formats, another width or byte order, only zeros. Two
    members with the same hash have the same files. It is over every file's name, size and sampled blocks, so a large
    corpus is not read whole. As data_hash in a run's config file it rejects members with other data.
    """
    from aftermath.config.document import load_config
    from aftermath.data.fingerprint import hash_of
    from aftermath.data.local import open_tokens
    from aftermath.data.source import Source
    from aftermath.data.tokens import TokenFiles
    from aftermath.owner.agreed_data import source_of

    if (data_path is None) == (config_path is None):
        raise UsageError("one place of data is looked at", "Pass --data-path FOLDER or --config-path FILE")
    source: Source
    if config_path is not None:
        source = source_of(load_config(config_path), _ANY)
    else:
        assert data_path is not None
        source = open_tokens(data_path, int(token_bytes), seq_len, vocab_size=_ANY)
    records = source.record()
    data = {
        "files": [{"name": one.name, "bytes": one.size, "samples": one.samples} for one in records],
        "tokens": source.tokens if isinstance(source, TokenFiles) else source.sequences * source.seq_len,
        "sequences": source.sequences,
        "seq_len": source.seq_len,
        "hash": hash_of(records).hex(),
    }
    shown = data | {"files": [f"{one.name}: {one.size:,} bytes, {one.samples[:16]}" for one in records]}
    return Result(data, facts(shown))
