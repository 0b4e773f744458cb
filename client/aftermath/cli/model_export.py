"""`model export`: tiers of a full checkpoint as directories of their own, with a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.base.text import counted
from aftermath.cli.command import command
from aftermath.cli.present import Result
from aftermath.rules.limits import MAX_LEVELS

DTYPE = (
    "Type of the exported numbers: float32 or bfloat16 (bf16), which halves the files. bfloat16 rounds, so it needs "
    "--out unless the checkpoint is of bfloat16 itself."
)
_DTYPES = {"float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}


@command("model export", example="aftermath-solana model export --src checkpoints/tiny --tiers 1,2")
def model_export(
    src: Annotated[Path, typer.Option(help="The full checkpoint.")],
    tiers: Annotated[str, typer.Option(help=f"Tiers to export, 1 to {MAX_LEVELS - 1}, with commas between them.")],
    out: Annotated[
        Path | None, typer.Option(help="Directory to export to; without it the one that --src lies in.")
    ] = None,
    dtype: Annotated[str, typer.Option(help=DTYPE)] = "float32",
) -> Result:
    """Export tiers of a full checkpoint, with a manifest.

    A tier is a directory, `<name>-tier<t>`, and the manifest has the SHA-256 of every file. They lie beside the
    checkpoint, or with a copy of it in the directory that --out names. A member removes its older checkpoints, so
    those of a run (`<run>-step<n>`) are exported elsewhere only. Tokenizer, generation config, chat template, license
    and model card are copied with each tier.
    """
    import torch

    from aftermath.model.checkpoint import load_config
    from aftermath.model.export import export_tiers

    rounded: torch.dtype = getattr(torch, _dtype(dtype))
    wanted, place = _numbers(tiers), src.expanduser()
    most = load_config(place).possible_tiers() - 1
    if most < max(wanted):
        raise UsageError(
            f"--tiers {max(wanted)}: {src} can be cut into {counted(most, 'tier')} beside the full model",
            f"Choose --tiers from 1 to {most}" if most else "Name a checkpoint whose FFN width is even",
        )
    exported = export_tiers(place, wanted, out.expanduser() if out else None, rounded)
    data = {"tiers": [str(path) for path in exported.tiers], "manifest": str(exported.manifest)}
    told = "\n".join(["Wrote", *(f"  {path}" for path in (*data["tiers"], data["manifest"]))])
    return Result(data, told, made={"checkpoint": exported.manifest.parent})


def _dtype(text: str) -> str:
    """The type's name in PyTorch. Raises UsageError."""
    if text not in _DTYPES:
        raise UsageError(f"--dtype must be float32 or bfloat16, not {text!r}", "Pass --dtype bfloat16, or leave it out")
    return _DTYPES[text]


def _numbers(text: str) -> list[int]:
    numbers = [int(word) if word.isascii() and word.isdecimal() and len(word) < 4 else 0 for word in text.split(",")]
    if not all(1 <= number < MAX_LEVELS for number in numbers):
        raise UsageError(
            f"--tiers must be whole numbers from 1 to {MAX_LEVELS - 1}, not {text!r}",
            "Name them with commas, for example --tiers 1,2; aftermath-solana model export --help explains it",
        )
    return numbers
