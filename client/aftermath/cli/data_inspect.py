"""`data inspect`: what a member would read, and what marks it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from aftermath.cli.command import command
from aftermath.cli.present import Result, facts


@command("data inspect", example="aftermath-solana data inspect --data-path runs/light/tokens")
def data_inspect(
    data_path: Annotated[Path, typer.Option(help="A token file, or a folder of them.")],
    token_bytes: Annotated[Literal["2", "4"], typer.Option(help="Bytes of a token.")] = "2",
    seq_len: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")] = 1024,
) -> Result:
    """Say what token files are, and what marks them.

    Two members have the same files if they are shown the same hash: it is over every file's name, size and sampled
    blocks, so a large corpus is not read whole.
    """
    from aftermath.data.fingerprint import hash_of
    from aftermath.data.local import open_tokens

    source = open_tokens(data_path, int(token_bytes), seq_len, vocab_size=1 << 32)
    records = source.record()
    data = {
        "files": [{"name": one.name, "bytes": one.size, "samples": one.samples} for one in records],
        "tokens": source.tokens,
        "sequences": source.sequences,
        "hash": hash_of(records).hex(),
    }
    shown = data | {"files": [f"{one.name}: {one.size:,} bytes, {one.samples[:16]}" for one in records]}
    return Result(data, facts(shown))
