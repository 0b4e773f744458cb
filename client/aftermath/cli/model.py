"""Commands on checkpoints: inspect, export and merge tiers, verify, push."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.base.outputs import check_directory, refuse_inputs
from aftermath.base.text import counted
from aftermath.cli.command import command
from aftermath.cli.model_init import NEW_DIRECTORY
from aftermath.cli.present import Result, facts, note
from aftermath.rules.limits import MAX_LEVELS

CHECKPOINT = "Checkpoint directory."


@command("model inspect", example="aftermath-solana model inspect --model checkpoints/tiny")
def model_inspect(model: Annotated[Path, typer.Option(help=CHECKPOINT)]) -> Result:
    """Describe a checkpoint and its tiers.

    Prints architecture and shape, and the parameters and state bytes of every tier. Reads only
    config.json and the names of the files; model verify reads everything.
    """
    import math

    from aftermath.model.checkpoint import load_config
    from aftermath.model.config import stored_tier
    from aftermath.model.json_documents import hf_config
    from aftermath.model.levels import ELEMENT_BYTES
    from aftermath.model.manifest import MANIFEST_FILE
    from aftermath.model.weights import weight_files

    directory = model.expanduser()
    config = load_config(directory)
    stored = stored_tier(hf_config(directory / "config.json"))[0]
    width = config.intermediate_size
    tiers = {
        tier: sum(map(math.prod, config.parameter_shapes(tier).values()))
        for tier in range(stored, config.possible_tiers())
    }
    files = weight_files(directory)
    data = {
        "architecture": config.MODEL_TYPE,
        "vocab": config.vocab_size,
        "intermediate_size": width,
        "max_position_embeddings": config.max_position_embeddings,
        "tied": config.tie_word_embeddings,
        "stored_tier": stored,
        "tiers": tiers,
        "state_bytes": {tier: count * ELEMENT_BYTES for tier, count in tiers.items()},
        "weight_files": len(files),
        "weight_bytes": sum(path.stat().st_size for path in files),
        "tokenizer": (directory / "tokenizer.json").is_file(),
        "manifest": (directory / MANIFEST_FILE).is_file(),
    }
    rows = {
        "architecture": config.MODEL_TYPE,
        "stores": "the full model" if stored == 0 else f"the slice of tier {stored}",
        "vocabulary": f"{config.vocab_size:,}"
        + (", input and output tied" if config.tie_word_embeddings else ""),
        "longest text": f"{config.max_position_embeddings:,} tokens",
        "weights": f"{data['weight_bytes']:,} bytes in {len(files)} file"
        + ("s" if len(files) != 1 else ""),
        "tokenizer": data["tokenizer"],
        "manifest of tiers": data["manifest"],
    }
    rows |= {
        f"tier {tier}": f"{count:,} parameters, {count * ELEMENT_BYTES / 1e6:,.1f} MB, {config.kept(tier)}"
        for tier, count in tiers.items()
    }
    return Result(data, facts(rows))


DTYPE = (
    "Type of the exported numbers: float32 or bfloat16 (bf16), which halves the files. bfloat16 rounds, so it needs "
    "--out unless the checkpoint is of bfloat16 itself."
)
_DTYPES = {"float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}


@command("model export", example="aftermath-solana model export --src checkpoints/tiny --tiers 1,2")
def model_export(
    src: Annotated[Path, typer.Option(help="The full checkpoint.")],
    tiers: Annotated[
        str, typer.Option(help=f"Comma-separated tiers to export, 1 to {MAX_LEVELS - 1}.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Output directory. By default the parent of --src."),
    ] = None,
    dtype: Annotated[str, typer.Option(help=DTYPE)] = "float32",
) -> Result:
    """Export tiers of a full checkpoint, with a manifest.

    Writes a directory `<name>-tier<t>` per tier, and a manifest with the SHA-256 of every file.
    They go next to the checkpoint, or into --out together with a copy of it. Use --out for
    checkpoints of a run (`<run>-step<n>`), because the member removes older ones. Copies tokenizer,
    generation config, chat template, license and model card to each tier.
    """
    import torch

    from aftermath.model.checkpoint import load_config
    from aftermath.model.export import export_tiers

    rounded: torch.dtype = getattr(torch, _dtype(dtype))
    tier_numbers = _numbers(tiers)
    directory = src.expanduser()
    most = load_config(directory).possible_tiers() - 1
    if most < max(tier_numbers):
        raise UsageError(
            f"--tiers {max(tier_numbers)}: {src} has only {counted(most, 'tier')} besides the full model",
            f"Choose --tiers from 1 to {most}"
            if most
            else "Name a checkpoint whose FFN width is even",
        )
    exported = export_tiers(directory, tier_numbers, out.expanduser() if out else None, rounded)
    data = {"tiers": [str(path) for path in exported.tiers], "manifest": str(exported.manifest)}
    lines = [f"  {path}" for path in (*data["tiers"], data["manifest"])]
    if exported.manifest.parent != directory.absolute():
        lines.append(f"  {exported.manifest.parent}, a copy of the whole model")
    text = "\n".join(["Wrote", *lines])
    return Result(data, text, made={"checkpoint": exported.manifest.parent})


def _dtype(text: str) -> str:
    """Return the PyTorch name of a dtype. Raises UsageError."""
    if text not in _DTYPES:
        raise UsageError(
            f"--dtype must be float32 or bfloat16, not {text!r}",
            "Pass --dtype bfloat16, or leave it out",
        )
    return _DTYPES[text]


def _numbers(text: str) -> list[int]:
    numbers = [
        int(word) if word.isascii() and word.isdecimal() and len(word) < 4 else 0
        for word in text.split(",")
    ]
    if not all(1 <= number < MAX_LEVELS for number in numbers):
        raise UsageError(
            f"--tiers must be whole numbers from 1 to {MAX_LEVELS - 1}, not {text!r}",
            "Separate them with commas, for example --tiers 1,2; aftermath-solana model export --help explains it",
        )
    return numbers


@command(
    "model merge",
    example="aftermath-solana model merge --into checkpoints/tiny --slice checkpoints/tiny-tier1 --out checkpoints/new",
)
def model_merge(
    into: Annotated[Path, typer.Option(help="The full checkpoint. It is not changed.")],
    slice: Annotated[
        Path,
        typer.Option("--slice", help="A slice of one of its tiers, for example after training."),
    ],
    out: Annotated[Path, typer.Option(help=NEW_DIRECTORY)],
) -> Result:
    """Merge a tier's slice into its full model.

    Writes another checkpoint, in which the slice's tensors replace the first hidden units of the
    full model. An unchanged slice gives the same bits. Warns if the values differ: then the slice
    was trained further, or belongs to another training.
    """

    from aftermath.model.checkpoint import merged
    from aftermath.model.save_checkpoint import read_companions, write_checkpoint

    directory = out.expanduser()
    inputs = [into.expanduser(), slice.expanduser()]
    refuse_inputs(directory, inputs, "Name a new directory with --out")
    check_directory(directory, "model merge")
    config, params = merged(
        into.expanduser(), slice.expanduser(), lambda sentence: note(f"warning: {sentence}")
    )
    companions = read_companions(into.expanduser())
    write_checkpoint(
        directory, params, config, tier=0, companions=companions, made_by="model merge"
    )
    return Result({"out": str(directory)}, f"Wrote {directory}")


@command("model verify", example="aftermath-solana model verify --model checkpoints/tiny")
def model_verify(
    model: Annotated[Path, typer.Option(help="A full checkpoint or an exported tier.")],
) -> Result:
    """Verify every tensor and file of a checkpoint and its tiers.

    Every tensor must be there and finite, every file of the manifest must have its SHA-256, and
    exported tiers must have the full model's values. An exported tier alone is checked against the
    manifest of the full checkpoint next to it. Stops at the first error.
    """
    from aftermath.model.checkpoint import verified

    report = verified(model.expanduser())
    data = {
        "tensors": report.tensors,
        "files": report.files,
        "tiers": list(report.tiers),
        "slice_of": report.slice_of,
    }
    tiers = (
        f"; tiers {', '.join(map(str, report.tiers))} are the same model" if report.tiers else ""
    )
    files = f", {counted(report.files, 'file')} matching the manifest" if report.files else ""
    tier_text = f" of tier {report.slice_of}" if report.slice_of else ""
    return Result(
        data, f"{counted(report.tensors, 'tensor')}{tier_text} complete and finite{files}{tiers}"
    )


@command(
    "model push", example="aftermath-solana model push --model checkpoints/tiny --repo me/tiny"
)
def model_push(
    model: Annotated[Path, typer.Option(help="The full checkpoint.")],
    repo: Annotated[
        str, typer.Option(help="Repository on the Hub, OWNER/NAME. Created if it is missing.")
    ],
    message: Annotated[str, typer.Option(help="Commit message.")] = "a checkpoint",
) -> Result:
    """Upload a checkpoint to the Hugging Face Hub.

    Uploads the exported tiers next to it, too, so that members of a tier fetch only its files.
    Checks all files first. Prints the commit. Needs the token in HF_TOKEN.
    """
    import os

    from aftermath.base.errors import UsageError
    from aftermath.base.text import is_repository
    from aftermath.model.checkpoint import load_config, manifest_files
    from aftermath.model.hub import upload
    from aftermath.model.weights import weight_files

    if not is_repository(repo):
        raise UsageError(
            f"--repo {repo!r} is not a valid repository name",
            "Use OWNER/NAME, for example --repo ada/my-model",
        )
    directory = model.expanduser()
    load_config(directory), weight_files(directory)
    tiers = {tier: files for tier, files in manifest_files(directory).items() if tier}
    exported = sorted(
        {path.parent for files in tiers.values() for path in files.values()}
        - {directory.absolute()}
    )
    commit = upload(
        directory, repo, token=os.environ.get("HF_TOKEN"), message=message, tiers=exported
    )
    text = f"{repo}@{commit}" + (f", with {counted(len(tiers), 'tier')}" if tiers else "")
    return Result({"repo": repo, "commit": commit, "tiers": sorted(tiers)}, text)
