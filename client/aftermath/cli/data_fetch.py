"""`data fetch`: download token files, those of FineWeb unless told otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.present import Result, note

FINEWEB = "https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main/fineweb_train_{}.bin"
"""Ten billion tokens of FineWeb by GPT-2's tokenizer, in files of a hundred million, numbered from 1."""


@command("data fetch", example="aftermath-solana data fetch --output data/fineweb --files 2")
def data_fetch(
    output: Annotated[Path, typer.Option(help="Folder for the files.")],
    files: Annotated[int, typer.Option(min=1, max=100_000, help="How many.")] = 1,
    url_template: Annotated[
        str | None, typer.Option(help="Their address, with {} for the number; else that of FineWeb's tokens.")
    ] = None,
    start_index: Annotated[int, typer.Option(min=0, help="The first number.")] = 1,
    left_pad_zeros: Annotated[int, typer.Option(min=0, max=20, help="Digits of a number, with zeros before it.")] = 6,
) -> Result:
    """Download the tokens of FineWeb, or numbered token files elsewhere.

    What is there already is not downloaded again, and a download that was interrupted goes on where it was.
    """
    from aftermath.base.text import counted
    from aftermath.data.download import download
    from aftermath.data.http import HttpClient, numbered

    client = HttpClient()
    paths = []
    for url in numbered(url_template or FINEWEB, start_index, left_pad_zeros, files):
        paths.append(download(url, output, client, lambda here, whole: None))
        note(f"{paths[-1]}: {paths[-1].stat().st_size:,} bytes")
    data = {"files": [str(path) for path in paths], "bytes": sum(path.stat().st_size for path in paths)}
    return Result(data, f"{counted(len(paths), 'file')} in {output}")
