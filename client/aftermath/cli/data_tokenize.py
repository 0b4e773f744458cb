"""`data tokenize`: turn text into token files. The script `scripts/tokenise.py` calls the same function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aftermath.base.counted import counted
from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.present import Result

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Conversion:
    """What is to be tokenised, with what, and where to."""

    output: Annotated[Path, typer.Option(help="Folder for the token files.")]
    input: Annotated[
        Path | None, typer.Option(help="Folder of UTF-8 text; without it the standard library's sources.")
    ] = None
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json; without it one token per byte (257 ids).")
    ] = None
    token_bytes: Annotated[Literal["2", "4"], typer.Option(help="Bytes of a token.")] = "2"
    budget_bytes: Annotated[int, typer.Option(min=1, help="Size of the default corpus.")] = 4 << 20
    held_out: Annotated[Path | None, typer.Option(help="Second folder, for files that are not to be trained on.")] = (
        None
    )
    held_out_percent: Annotated[
        int, typer.Option(min=1, max=99, help="About so many percent of the files go there.")
    ] = 20


@command("data tokenize", example="aftermath-solana data tokenize --input books --output runs/books")
def data_tokenize(conversion: Conversion) -> Result:
    """Turn a folder of text into token files.

    The tokenizer is written beside them. Existing token files are never mixed with new ones.
    """
    return convert(conversion)


def convert(chosen: Conversion) -> Result:
    """Do it. Raises DataError, UsageError."""
    from aftermath.data.tokenise import (
        folder_documents,
        hold_out,
        refuse_older,
        standard_library,
        standard_library_root,
    )

    documents = folder_documents(chosen.input) if chosen.input else standard_library(chosen.budget_bytes)
    if chosen.held_out is None:
        return Result(*_write(chosen, documents, chosen.output))
    if chosen.held_out.absolute() == chosen.output.absolute():
        raise UsageError("--held-out is --output itself", "Name two folders")
    refuse_older(chosen.held_out)
    kept, held_out = hold_out(documents, chosen.input or standard_library_root(), chosen.held_out_percent)
    data, text = _write(chosen, kept, chosen.output)
    more, other = _write(chosen, held_out, chosen.held_out)
    return Result(data | {"held_out": more}, f"{text}\n{other}")


def _write(chosen: Conversion, documents: Sequence[Path], output: Path) -> tuple[dict[str, object], str]:
    """Fill a folder; what went into it, for scripts and for people."""
    from aftermath.data.tokenise import tokenise

    done = tokenise(documents, output, _tokenizer(chosen.tokenizer), token_bytes=int(chosen.token_bytes))
    data = {"documents": done.documents, "skipped": done.skipped, "tokens": done.tokens, "vocab_size": done.vocab_size}
    skipped = f" ({counted(done.skipped, 'file')} left out: no UTF-8 text)" if done.skipped else ""
    return (
        data | {"files": [str(path) for path in done.files]},
        f"{counted(done.tokens, 'token')} of {counted(done.documents, 'document')} in {output}{skipped}",
    )


def _tokenizer(path: Path | None) -> Tokenizer:
    from tokenizers import Tokenizer

    from aftermath.data.bytelevel import byte_tokenizer
    from aftermath.data.source import DataError

    if path is None:
        return byte_tokenizer()
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8-sig"))
    except Exception as error:  # the library raises plain Exception for a bad file
        raise DataError(f"cannot read the tokenizer {path}: {error}", "Name a tokenizer.json") from None
