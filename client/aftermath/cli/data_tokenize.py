"""`data tokenize`: turn text into token files. The script `scripts/tokenise.py` calls the same function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aftermath.base.errors import UsageError
from aftermath.base.text import counted
from aftermath.cli.command import command
from aftermath.cli.present import Result, note

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Conversion:
    """What is to be tokenised, with what, and where to."""

    output: Annotated[Path, typer.Option(help="Folder for the token files.")]
    input: Annotated[
        Path | None,
        typer.Option(
            help="Folder of text, or one file: UTF-8 text, JSON lines or parquet, also with gzip. Without it the "
            "standard library's sources."
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer.json, or a folder with one; without it one token per byte (257 ids)."),
    ] = None
    end_token: Annotated[
        str | None,
        typer.Option(
            help="Token after every document, for example '</s>'. By default the eos_token of the files beside "
            "--tokenizer, or a usual one."
        ),
    ] = None
    text_field: Annotated[
        str,
        typer.Option(
            help="Field with the text in JSON lines and parquet. Records without text there are skipped and counted."
        ),
    ] = "text"
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
    """Turn text into token files.

    Writes the end-of-text token after every document. A document is a text file, a JSON line or a parquet row. In a
    text file, a line of <|endoftext|> starts a new document. Copies the tokenizer's files next to the tokens, where
    init finds them. Skips JSON lines and parquet rows without text in --text-field, and warns with their number;
    refuses a file if most of its records have no text. Refuses an output folder that already holds token files.
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
    encoder = _encoder(chosen.tokenizer, chosen.end_token)
    if chosen.held_out is None:
        data, text = _write(chosen, encoder, documents, chosen.output)
    else:
        if chosen.held_out.absolute() == chosen.output.absolute():
            raise UsageError("--held-out is --output itself", "Name two folders")
        refuse_older(chosen.held_out)
        root = chosen.input or standard_library_root()
        kept, held_out = hold_out(documents, root if root.is_dir() else root.parent, chosen.held_out_percent)
        data, text = _write(chosen, encoder, kept, chosen.output)
        more, other = _write(chosen, encoder, held_out, chosen.held_out)
        data |= {"held_out": more}
        text = f"{text}\n{other}"
    if encoder.end_token is None:
        note(
            "warning: no end-of-text token is known, so nothing parts the documents. "
            "fix: name it with --end-token, or put the model's tokenizer_config.json beside the tokenizer"
        )
    return Result(data | {"end_token": encoder.end_token}, text)


@dataclass(frozen=True)
class Encoder:
    """A tokenizer, its end-of-text token and the files that go beside it."""

    tokenizer: Tokenizer
    end_token: str | None
    companions: dict[str, bytes]


def _write(
    chosen: Conversion, encoder: Encoder, documents: Sequence[Path], output: Path
) -> tuple[dict[str, object], str]:
    """Fill a folder; return what went into it, for scripts and for people."""
    from aftermath.data.texts import SEPARATOR
    from aftermath.data.tokenise import tokenise

    done = tokenise(
        documents,
        output,
        encoder.tokenizer,
        token_bytes=int(chosen.token_bytes),
        end_token=encoder.end_token,
        text_field=chosen.text_field,
        companions=encoder.companions,
    )
    if done.inline_separators:
        note(f"warning: {SEPARATOR} stayed text where it is not alone in its line: {done.inline_separators} times")
    if done.skipped_records:
        records = counted(done.skipped_records, "record")
        note(
            f'warning: skipped {records} without text in "{chosen.text_field}", the first at {done.first_skipped}. '
            "fix: if the text is in another field, name it with --text-field, and write to a new --output"
        )
    data = {
        "documents": done.documents,
        "skipped": done.skipped,
        "skipped_records": done.skipped_records,
        "tokens": done.tokens,
        "vocab_size": done.vocab_size,
    }
    kinds = ", ".join(f"{count} {what}" for what, count in sorted(done.left_out.items()))
    skipped = f" ({counted(done.skipped, 'file')} left out: {kinds})" if done.skipped else ""
    return (
        data | {"files": [str(path) for path in done.files]},
        f"{counted(done.tokens, 'token')} of {counted(done.documents, 'document')} in {output}{skipped}",
    )


def _encoder(path: Path | None, end_token: str | None) -> Encoder:
    """Return the tokenizer of a file, or that of single bytes. Raises CheckpointError, UsageError."""
    from aftermath.data.bytelevel import END_TOKEN, byte_tokenizer
    from aftermath.model.tokenizer_files import TOKENIZER_CONFIG, end_id, with_end_token

    companions: dict[str, bytes] = {}
    named = end_token
    if path is None:
        tokenizer = byte_tokenizer()
        named = END_TOKEN if end_token is None else end_token
    else:
        tokenizer, companions = _tokenizer(path.expanduser())
        number = end_id(companions, tokenizer.token_to_id)
        if named is None and number is not None:
            named = tokenizer.id_to_token(number)
    if named is not None and tokenizer.token_to_id(named) is None:
        raise UsageError(f"--end-token {named!r} is not a token of the tokenizer", "Name one of its tokens")
    return Encoder(tokenizer, named, {TOKENIZER_CONFIG: with_end_token(companions.get(TOKENIZER_CONFIG), named)})


def _tokenizer(path: Path) -> tuple[Tokenizer, dict[str, bytes]]:
    """Return the tokenizer of a file, and the files beside it by name. Raises CheckpointError."""
    from aftermath.model.documents import CheckpointError
    from aftermath.model.tokenizer_files import files_of
    from aftermath.model.tokenizer_process import read

    data, companions = files_of(path)
    try:
        return read(data), companions
    except ValueError as error:
        raise CheckpointError(f"{path} is not a tokenizer: {error}", "Name a tokenizer.json") from None
