"""`decode-gradients`: show the results in files of `train --write-gradients-dir`.

A file may come from anybody, so its contents are checked. So is the size of its tensors before one
is allocated: a short payload can describe a model that fits no machine.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.errors import UsageError
from aftermath.base.outputs import refuse_inputs
from aftermath.cli.command import command
from aftermath.cli.present import CommandError, Result, listing

if TYPE_CHECKING:
    from aftermath.optim.level_votes import Votes
    from aftermath.optim.result_file import GradientFile

COLUMNS = ("file", "run", "step", "member", "level", "bytes", "votes", "values")
LARGEST_TENSOR = 16 << 30
"""Bytes of the largest tensor that --out makes."""


@command(
    "decode-gradients",
    example="aftermath-solana decode-gradients step-000012-member-3.safetensors --out dense",
)
def decode_gradients(
    files: Annotated[
        list[Path], typer.Argument(help="Files that train --write-gradients-dir wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for dense tensors in the parameters' shapes: one file of the same name for each."
        ),
    ] = None,
) -> Result:
    """Show the results in files that train --write-gradients-dir wrote.

    Values are votes of 1 and -1, or numbers, as the run counts them. With --out they are tensors of
    the full model, transformed back, and zero where nothing was sent.
    """
    from aftermath.optim.result_file import read_gradient_file

    if out is not None and len({path.name for path in files}) < len(files):
        raise UsageError(
            "two files have the same name, so --out would write both to one file",
            "Decode them one at a time, into different directories",
        )
    if out is not None:
        for path in files:
            refuse_inputs(out / path.name, files, "Name another directory")
    results = []
    for path in files:
        file = read_gradient_file(path)
        votes = _votes(path, file)
        if out is not None:
            _check_room(path, file, out)
        result = _result_data(path, file, votes)
        if out is None:
            results.append(result)
            continue
        results.append(result | {"out": str(_write(out / path.name, file, votes))})
    return Result(results, _results_table(results))


def _votes(path: Path, file: GradientFile) -> dict[int, Votes]:
    from aftermath.optim.codec import BadPayload

    try:
        return file.votes()
    except BadPayload as error:
        raise CommandError(
            f"{path} is not a valid result: {error.message}",
            "Copy the file again from the member that wrote it",
        ) from None


def _result_data(path: Path, file: GradientFile, votes: Mapping[int, Votes]) -> dict[str, Any]:
    from aftermath.optim.parts import parts_of

    levels = {}
    for level, vote in votes.items():
        values = parts_of(file.schema.optimizer).counted(vote, file.origin.learning_rate)
        least, most = (float(values.min()), float(values.max())) if len(values) else (None, None)
        levels[str(level)] = {
            "bytes": len(file.payloads[level]),
            "votes": len(values),
            "of": file.schema.results.entries(level),
            "least": least,
            "most": most,
        }
    return {
        "file": str(path),
        **asdict(file.origin),
        "schema_hash": file.schema.hash().hex(),
        "levels": levels,
    }


def _results_table(results: Sequence[Mapping[str, Any]]) -> Any:
    rows = [
        (
            *(entry[name] for name in ("file", "run_id", "step", "seat")),
            level,
            f"{counts['bytes']:,}",
            f"{counts['votes']:,} of {counts['of']:,}",
            None if counts["least"] is None else f"{counts['least']:.6g} to {counts['most']:.6g}",
        )
        for entry in results
        for level, counts in entry["levels"].items()
    ]
    return listing(COLUMNS, rows)


# --- dense tensors


def _check_room(path: Path, file: GradientFile, out: Path) -> None:
    """Create the directory. Raise CommandError if a tensor is too large or the disk lacks space."""
    from aftermath.model.save_checkpoint import writing
    from aftermath.optim.vote_tensors import dense_shapes

    sizes = {name: 4 * math.prod(shape) for name, shape in dense_shapes(file.schema).items()}
    name = max(sizes, key=lambda one: sizes[one])
    if sizes[name] > LARGEST_TENSOR:
        raise CommandError(
            f"{path}: {name} would take {sizes[name]:,} bytes, more than the limit of {LARGEST_TENSOR:,}",
            "Leave out --out to show only the votes",
        )
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
    if sum(sizes.values()) >= free:
        raise CommandError(
            f"{path} needs {sum(sizes.values()):,} bytes for its tensors, but {out} has only {free:,} free",
            "Free some space, or name a directory on another disk",
        )


def _write(target: Path, file: GradientFile, votes: Mapping[int, Votes]) -> Path:
    """Write a result's dense tensors one by one, and return the file's path."""
    from aftermath.base.outputs import output_file
    from aftermath.base.safetensors_header import header
    from aftermath.model.save_checkpoint import writing
    from aftermath.optim.vote_tensors import dense, dense_shapes

    shapes = {name: ("F32", shape) for name, shape in dense_shapes(file.schema).items()}
    origin = file.origin
    facts = {
        "run_id": origin.run_id,
        "step": str(origin.step),
        "seat": str(origin.seat),
        "format": "pt",
    }
    facts |= {"levels": " ".join(map(str, votes)), "schema_hash": file.schema.hash().hex()}
    with (
        writing(target.parent),
        output_file(target, lambda head: b'"schema_hash"' in head) as stream,
    ):
        stream.write(header(shapes, facts))
        for _, tensor in dense(file.schema, votes, origin.learning_rate):
            stream.write(tensor.numpy().astype("<f4", copy=False).data)
    return target
