"""Commands that make, describe, download and serve token files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aftermath.base.errors import UsageError
from aftermath.base.outputs import refuse_inputs, refuse_standard_output
from aftermath.base.text import counted
from aftermath.cli.command import command
from aftermath.cli.present import Result, facts, note
from aftermath.data import PORT

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Conversion:
    """Options of data tokenize: input, tokenizer and output."""

    output: Annotated[Path, typer.Option(help="Folder for the token files.")]
    input: Annotated[
        Path | None,
        typer.Option(
            help="Folder of text, or one file: UTF-8 text, JSON lines or parquet, also with gzip. By default the "
            "sources of Python's standard library."
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="A tokenizer.json, or a folder with one. By default one token per byte (257 ids)."
        ),
    ] = None
    end_token: Annotated[
        str | None,
        typer.Option(
            help="Token after every document, for example '</s>'. By default the eos_token of the files next to "
            "--tokenizer, or a common one."
        ),
    ] = None
    text_field: Annotated[
        str,
        typer.Option(
            help="Field with the text in JSON lines and parquet. Records without text there are skipped and counted."
        ),
    ] = "text"
    token_bytes: Annotated[Literal["2", "4"], typer.Option(help="Bytes per token.")] = "2"
    budget_bytes: Annotated[
        int, typer.Option(min=1, help="Size of the default corpus in bytes.")
    ] = 4 << 20
    held_out: Annotated[
        Path | None, typer.Option(help="Second folder, for files that are held out from training.")
    ] = None
    held_out_percent: Annotated[
        int, typer.Option(min=1, max=99, help="Approximate percentage of files in --held-out.")
    ] = 20


@command(
    "data tokenize", example="aftermath-solana data tokenize --input books --output runs/books"
)
def data_tokenize(conversion: Conversion) -> Result:
    """Turn text into token files.

    Writes the end-of-text token after every document: a text file, a JSON line or a parquet row. A
    line of <|endoftext|> in a text file starts a new document. Copies the tokenizer's files next to
    the tokens. Skips and counts records without text in --text-field, and refuses a file if most
    have none. Refuses an output folder that holds token files.
    """
    return convert(conversion)


def convert(chosen: Conversion) -> Result:
    """Write the token files. Raise DataError or UsageError."""
    from aftermath.data.tokenise import (
        check_output_unused,
        folder_documents,
        hold_out,
        standard_library,
        standard_library_root,
    )

    for folder in filter(None, (chosen.output, chosen.held_out)):
        refuse_standard_output(folder, "Name a folder")
        if chosen.input is not None:
            refuse_inputs(folder, [chosen.input], "Name a folder outside the input")
    documents = (
        folder_documents(chosen.input) if chosen.input else standard_library(chosen.budget_bytes)
    )
    encoder = _encoder(chosen.tokenizer, chosen.end_token)
    if chosen.held_out is None:
        data, text = _write(chosen, encoder, documents, chosen.output)
    else:
        if chosen.held_out.absolute() == chosen.output.absolute():
            raise UsageError("--held-out and --output are the same folder", "Name two folders")
        check_output_unused(chosen.held_out)
        root = chosen.input or standard_library_root()
        training, held_out = hold_out(
            documents, root if root.is_dir() else root.parent, chosen.held_out_percent
        )
        data, text = _write(chosen, encoder, training, chosen.output)
        held_out_data, held_out_text = _write(chosen, encoder, held_out, chosen.held_out)
        data |= {"held_out": held_out_data}
        text = f"{text}\n{held_out_text}"
    if encoder.end_token is None:
        note(
            "warning: no end-of-text token is known, so documents follow each other directly. "
            "fix: name it with --end-token, or put the model's tokenizer_config.json next to the tokenizer"
        )
    return Result(data | {"end_token": encoder.end_token}, text)


@dataclass(frozen=True)
class Encoder:
    """A tokenizer, its end-of-text token and its companion files."""

    tokenizer: Tokenizer
    end_token: str | None
    companions: dict[str, bytes]


def _write(
    chosen: Conversion, encoder: Encoder, documents: Sequence[Path], output: Path
) -> tuple[dict[str, object], str]:
    """Write the token files of a folder. Return a summary as JSON types and as text."""
    from aftermath.data.texts import SEPARATOR
    from aftermath.data.tokenise import tokenise

    written = tokenise(
        documents,
        output,
        encoder.tokenizer,
        token_bytes=int(chosen.token_bytes),
        end_token=encoder.end_token,
        text_field=chosen.text_field,
        companions=encoder.companions,
    )
    if written.inline_separators:
        note(
            f"warning: {SEPARATOR} inside a line was kept as text, {counted(written.inline_separators, 'time')}"
        )
    if written.skipped_records:
        records = counted(written.skipped_records, "record")
        note(
            f'warning: skipped {records} without text in "{chosen.text_field}", the first at {written.first_skipped}. '
            "fix: if the text is in another field, name it with --text-field, and write to a new --output"
        )
    data = {
        "documents": written.documents,
        "skipped": written.skipped,
        "skipped_records": written.skipped_records,
        "tokens": written.tokens,
        "vocab_size": written.vocab_size,
    }
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(written.left_out.items()))
    skipped = f" ({counted(written.skipped, 'file')} left out: {kinds})" if written.skipped else ""
    return (
        data | {"files": [str(path) for path in written.files]},
        f"{counted(written.tokens, 'token')} of {counted(written.documents, 'document')} in {output}{skipped}",
    )


def _encoder(path: Path | None, end_token: str | None) -> Encoder:
    """Return the tokenizer of a file, or the byte tokenizer. Raises CheckpointError, UsageError."""
    from aftermath.data.bytelevel import END_TOKEN, byte_tokenizer
    from aftermath.model.tokenizer_files import TOKENIZER_CONFIG, end_id, with_end_token

    companions: dict[str, bytes] = {}
    end_name = end_token
    if path is None:
        tokenizer = byte_tokenizer()
        end_name = END_TOKEN if end_token is None else end_token
    else:
        tokenizer, companions = _tokenizer(path.expanduser())
        end_number = end_id(companions, tokenizer.token_to_id)
        if end_name is None and end_number is not None:
            end_name = tokenizer.id_to_token(end_number)
    if end_name is not None and tokenizer.token_to_id(end_name) is None:
        raise UsageError(
            f"--end-token {end_name!r} is not a token of the tokenizer", "Name one of its tokens"
        )
    return Encoder(
        tokenizer,
        end_name,
        {TOKENIZER_CONFIG: with_end_token(companions.get(TOKENIZER_CONFIG), end_name)},
    )


def _tokenizer(path: Path) -> tuple[Tokenizer, dict[str, bytes]]:
    """Return the tokenizer of a file, and its companion files by name. Raise CheckpointError."""
    from aftermath.model.json_documents import CheckpointError
    from aftermath.model.tokenizer_files import files_of
    from aftermath.model.tokenizer_process import read

    data, companions = files_of(path)
    try:
        return read(data), companions
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not a tokenizer: {error}", "Name a tokenizer.json"
        ) from None


_ANY_VOCABULARY = 1 << 32  # large enough for every token


@command("data inspect", example="aftermath-solana data inspect --data-path runs/light/tokens")
def data_inspect(
    data_path: Annotated[
        Path | None, typer.Option(help="A token file, or a folder of them.")
    ] = None,
    config_path: Annotated[
        Path | None, typer.Option(help="A run's config file: describe its data.")
    ] = None,
    token_bytes: Annotated[Literal["2", "4"], typer.Option(help="Bytes per token.")] = "2",
    seq_len: Annotated[int, typer.Option(min=2, help="Tokens per sequence.")] = 1024,
) -> Result:
    """Describe token files and print their hash.

    Refuses files of another format, width or byte order, or of zeros only. The hash covers every
    file's name, size and sampled blocks, so a large corpus is not read whole. As data_hash in a
    run's config it rejects members with other data.
    """
    from aftermath.config.document import load_config
    from aftermath.data.fingerprint import records_hash
    from aftermath.data.local import open_tokens
    from aftermath.data.source import Source
    from aftermath.data.tokens import TokenFiles
    from aftermath.owner.agreed_data import open_run_data

    if (data_path is None) == (config_path is None):
        raise UsageError(
            "data inspect needs either --data-path or --config-path",
            "Pass --data-path FOLDER or --config-path FILE",
        )
    source: Source
    if config_path is not None:
        source = open_run_data(load_config(config_path), _ANY_VOCABULARY)
    else:
        assert data_path is not None
        source = open_tokens(data_path, int(token_bytes), seq_len, vocab_size=_ANY_VOCABULARY)
    records = source.record()
    data = {
        "files": [
            {"name": record.name, "bytes": record.size, "samples": record.samples}
            for record in records
        ],
        "tokens": source.tokens
        if isinstance(source, TokenFiles)
        else source.sequences * source.seq_len,
        "sequences": source.sequences,
        "seq_len": source.seq_len,
        "hash": records_hash(records).hex(),
    }
    rows = data | {
        "files": [
            f"{record.name}: {record.size:,} bytes, {record.samples[:16]}" for record in records
        ]
    }
    return Result(data, facts(rows))


FINEWEB = "https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main/fineweb_train_{}.bin"
"""Ten billion tokens of FineWeb by GPT-2's tokenizer, in files of a hundred million, numbered from
1.
"""


@command("data fetch", example="aftermath-solana data fetch --output data/fineweb --files 2")
def data_fetch(
    output: Annotated[Path, typer.Option(help="Folder for the files.")],
    files: Annotated[int, typer.Option(min=1, max=100_000, help="Number of files.")] = 1,
    url_template: Annotated[
        str | None,
        typer.Option(
            help="Address of the files, with {} for the number. By default FineWeb's tokens."
        ),
    ] = None,
    start_index: Annotated[int, typer.Option(min=0, help="First file number.")] = 1,
    left_pad_zeros: Annotated[
        int, typer.Option(min=0, max=20, help="Digits of a file number, padded with zeros.")
    ] = 6,
) -> Result:
    """Download the tokens of FineWeb, or numbered token files.

    Skips files that exist, and continues interrupted downloads.
    """
    from aftermath.base.text import counted
    from aftermath.data.http import HttpClient, download, numbered_urls

    refuse_standard_output(output, "Name a folder")
    client = HttpClient()
    paths = []
    for url in numbered_urls(url_template or FINEWEB, start_index, left_pad_zeros, files):
        paths.append(download(url, output, client, lambda _done, _total: None))
        note(f"{paths[-1]}: {paths[-1].stat().st_size:,} bytes")
    data = {
        "files": [str(path) for path in paths],
        "bytes": sum(path.stat().st_size for path in paths),
    }
    return Result(data, f"{counted(len(paths), 'file')} in {output}")


@command(
    "data serve",
    example="aftermath-solana data serve --config data.toml --port 5533",
    until_interrupt=True,
)
async def data_serve(
    config: Annotated[
        Path, typer.Option(help="Settings file with dir, token_size, seq_len and shuffle_seed.")
    ],
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. The default accepts members on other machines; 127.0.0.1 accepts only "
            "this machine."
        ),
    ] = "0.0.0.0",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port; 0 picks a free one.")
    ] = PORT,
) -> Result:
    """Serve token files to a run's members, over TCP.

    The run's config names it as data_location = { Server = "HOST:PORT" }. Everyone who can reach
    the port can read. Runs until Ctrl-C.
    """
    import asyncio

    from aftermath.data.data_server import DataServer, load_server_settings, open_served_files

    settings = load_server_settings(config)
    source = open_served_files(settings)
    async with DataServer(source, settings.token_bytes).listening(host, port) as chosen:
        note(f"{source.sequences:,} sequences of {source.seq_len:,} tokens at {host}:{chosen}")
        await asyncio.Event().wait()
    return Result({}, None)
