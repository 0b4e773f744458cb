"""Read safetensors weights lazily: a tier reads only the rows or columns that it holds.

Names, shapes and types must match the config before a value is read, and values must be finite.
All arithmetic is fp32: half precision is widened, and fp8 is multiplied by its scales.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from aftermath.base.errors import shown
from aftermath.base.text import counted
from aftermath.model.config import ModelConfig
from aftermath.model.documents import (
    INDEX_FILE,
    WEIGHTS_FILE,
    CheckpointError,
    check_readable,
    damaged,
    is_file,
    read_index,
)
from aftermath.model.published import PLAIN, SCALES, FileNames, Form
from aftermath.model.schema import prefix

FP8_KIND = "F8_E4M3"
_SCALE_KINDS = ("F32", "BF16")


# Files are mapped, so a tier touches only the pages that it needs: the rows of a matrix cut by
# rows, every page of one cut by columns, nothing of a skipped layer. Shards with only skipped
# layers may be absent. A single `model.safetensors` wins over an index, as in transformers. A
# stored copy of a tied head must equal the embedding: versions of transformers differ in which one
# they load.
def read_scales(
    files: Sequence[Path], shapes: Mapping[str, tuple[int, ...]], block: tuple[int, int]
) -> dict[str, Tensor]:
    """Return the fp32 scales of these tensors by name. Raises CheckpointError."""
    found: dict[str, Tensor] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for listed in file.keys():  # noqa: SIM118 - it is no dictionary
                    name = listed.removesuffix(SCALES)
                    if name == listed or name not in shapes:
                        continue
                    if name in found:
                        raise CheckpointError(f"{path}: {listed} is also in another shard")
                    part = file.get_slice(listed)
                    wanted = _blocks(shapes[name], block)
                    shape = tuple(part.get_shape())
                    kind = part.get_dtype()
                    if not wanted or shape != wanted or kind not in _SCALE_KINDS:
                        raise CheckpointError(
                            f"{path}: {listed} is {kind} {shape}, config.json says "
                            + (f"F32 {wanted}" if wanted else "that it is none"),
                            "Take weights and config.json from the same checkpoint",
                        )
                    found[name] = part[:].to(torch.float32, copy=True)
                    if bool((found[name] < 0).any()):
                        raise CheckpointError(
                            f"{path}: {listed} has a scale below 0",
                            "Copy or download the checkpoint again",
                        )
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from None
    return found


def scaled(weights: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """fp32 [rows, columns], changed in place, of which each block is multiplied by its scale.

    They may be the first rows and columns of what the scales are of.
    """
    rows, columns = block
    for number, strip in enumerate(weights.split(rows)):
        strip.mul_(scales[number].repeat_interleave(columns)[: weights.shape[1]])
    return weights


def _blocks(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """How many blocks a matrix has; what is none has no scales."""
    return (
        tuple(-(-size // edge) for size, edge in zip(shape, block, strict=True))
        if len(shape) == 2
        else ()
    )


log = logging.getLogger(__name__)
_FLOATS = {"F32", "F16", "BF16", "F64"}


def spared(config: ModelConfig, tier: int, form: Form) -> Callable[[str], bool]:
    """Return whether a name is a tensor that this tier, or the model, does not have."""
    held = config.parameter_shapes(tier)
    names = {config.stored_name(name, 0) for name in config.parameter_shapes() if name not in held}
    without = FileNames(names | {name + SCALES for name in names}, config.base_prefix)
    return lambda name: without.tensor(name) is not None or name.startswith(form.foreign)


def weight_files(
    directory: Path, without: Callable[[str], bool] = lambda name: False
) -> tuple[Path, ...]:
    """The safetensors files of a checkpoint directory: the whole one, or those its index names, or
    all there are.

    Of those in the index, the ones that hold nothing but the tensors `without` which it will do are
    left out.
    """
    whole = directory / WEIGHTS_FILE
    index = directory / INDEX_FILE
    if is_file(whole):
        return (whole,)
    if is_file(index):
        names = read_index(index, without)
        strange = [
            name for name in names if Path(name).name != name or not name.endswith(".safetensors")
        ]
        if strange:
            raise CheckpointError(f"{index} names a file outside its directory: {strange[0]!r}")
        files = tuple(directory / name for name in names)
        absent = [path.name for path in files if not is_file(path)]
        if absent:
            raise CheckpointError(
                f"{directory} lacks {', '.join(absent)}", "Download the checkpoint again"
            )
    else:
        files = tuple(sorted(path for path in directory.glob("*.safetensors") if is_file(path)))
    if not files:
        raise CheckpointError(
            f"{directory} holds no .safetensors file",
            "Name a checkpoint with safetensors weights; no others are read",
        )
    return files


def read_weights(
    files: Sequence[Path], config: ModelConfig, *, stored: int, tier: int, form: Form = PLAIN
) -> dict[str, Tensor]:
    """fp32 tensors of `tier` from files that hold tier `stored` (the same tier, or 0), reading only
    what is needed.

    `form` is what `config.json` says of the files.

    Raises CheckpointError when a tensor is missing, unknown, of another shape or type, or not
    finite everywhere.
    """
    there = config.parameter_shapes(stored)
    wanted = config.parameter_shapes(tier)
    embedding, output = config.tables()
    # a tied head may be there as well
    needed = there.keys()
    head = {output: there[embedding]}
    there, wanted = head | there, head | wanted
    names = {config.stored_name(name, stored): name for name in there}
    params: dict[str, Tensor] = {}
    pieces = config.pieces()
    _require_bytes(files, [there[name] for name in {piece.name for piece in pieces.values()}])
    apart = {piece.name: torch.empty(there[piece.name]) for piece in pieces.values()}
    found: set[str] = set()  # of the pieces
    passed: set[str] = set()  # what the files have and the tier does not hold
    shapes = {listed: there[name] for listed, name in names.items()}
    for path in files:
        check_readable(path)
    scales = read_scales(files, shapes, form.block) if form.block else {}
    parts = _Parts(
        form,
        scales,
        FileNames(names.keys() | pieces.keys(), config.base_prefix, config.ignored_names),
    )
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for listed, tensor in parts.known(file.keys(), path):
                    if (piece := pieces.get(tensor)) is not None:
                        if tensor in found:
                            raise CheckpointError(f"{path}: {listed} is also in another shard")
                        found.add(tensor)
                        piece.of(apart[piece.name]).copy_(
                            parts.read(file, listed, piece.shape, piece.shape, path)
                        )
                        continue
                    name = names[tensor]
                    if name in params or name in passed:
                        raise CheckpointError(f"{path}: {listed} is also in another shard")
                    if name in wanted:
                        params[name] = parts.read(file, listed, there[name], wanted[name], path)
                    else:
                        passed.add(name)
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from None
    if parts.foreign:
        log.warning(
            "%s: %s of layers that predict further tokens are left out",
            files[0].parent,
            counted(parts.foreign, "tensor"),
        )
    lacking = {piece.name for listed, piece in pieces.items() if listed not in found}
    if double := sorted(params.keys() & {pieces[listed].name for listed in found}):
        raise CheckpointError(
            f"{files[0].parent} holds {double[0]} whole and in pieces", "Keep one of the two"
        )
    params |= {name: tensor for name, tensor in apart.items() if name not in lacking}
    missing = sorted((needed & wanted.keys()) - params.keys())
    if missing:
        hint = (
            "Set tie_word_embeddings in config.json if the output head is tied"
            if output in missing
            else ""
        )
        raise CheckpointError(
            f"{files[0].parent} lacks {counted(len(missing), 'tensor')}, first {missing[0]}", hint
        )
    if output not in needed and not torch.equal(
        params.pop(output, params[embedding]), params[embedding]
    ):
        raise CheckpointError(
            f"{files[0].parent}: {output} differs from the embedding, and config.json says tie_word_embeddings",
            "Set tie_word_embeddings to false if the head counts; remove it from the file if it is left over",
        )
    return params


def _require_bytes(files: Sequence[Path], shapes: Iterable[tuple[int, ...]]) -> None:
    """Raise CheckpointError if files are too small for the tensors, before allocation."""
    size = sum(path.stat().st_size for path in files)
    if (numbers := sum(map(math.prod, shapes))) > size:  # a byte a number at least, in fp8
        raise CheckpointError(
            f"{files[0].parent} has {size:,} bytes of weights, and config.json says {numbers:,} numbers",
            "Take weights and config.json from the same checkpoint",
        )


class _Parts:
    """Tensors out of files of a form, one by one."""

    def __init__(self, form: Form, scales: Mapping[str, Tensor], names: FileNames) -> None:
        self._form = form
        self._scales = scales
        self._names = names
        self.foreign = 0  # tensors that are no part of the model

    def known(self, listed: Iterable[str], path: Path) -> list[tuple[str, str]]:
        """(name in the file, name of the tensor) of each parameter. Names that transformers passes
        over, and what the form has in addition to the model, are skipped. Raises CheckpointError
        for any other name.
        """
        known = []
        for name in listed:
            if (tensor := self._names.tensor(name)) is not None:
                known.append((name, tensor))
            elif name.startswith(self._form.foreign):
                self.foreign += 1
            elif not (self._names.is_buffer(name) or name.removesuffix(SCALES) in self._scales):
                raise CheckpointError(
                    f"{path} holds {shown(name)}, which is not part of this model",
                    "Use a checkpoint of plain weights, of the model that config.json describes",
                )
        return known

    def read(
        self, file: Any, name: str, there: tuple[int, ...], wanted: tuple[int, ...], path: Path
    ) -> Tensor:
        """Return the first part [wanted] of a tensor [there] in fp32. Raises CheckpointError."""
        part = file.get_slice(name)
        shape = tuple(part.get_shape())
        kind = part.get_dtype()
        scales = self._scales.get(name)
        if kind not in _FLOATS and not (kind == FP8_KIND and scales is not None):
            raise CheckpointError(
                f"{path}: {name} is of type {kind}, which is not read"
                + (f" without {name}{SCALES}" if kind == FP8_KIND else ""),
                f"Use a checkpoint of {', '.join(sorted(_FLOATS))}",
            )
        if shape != there:
            raise CheckpointError(
                f"{path}: {name} is {kind} {shape}, config.json says {there}",
                "Take weights and config.json from the same checkpoint",
            )
        if kind != FP8_KIND and scales is not None:
            raise CheckpointError(
                f"{path}: {name} is {kind} and has scales of fp8", "Download the checkpoint again"
            )
        tensor: Tensor = (
            part[prefix(wanted)].to(torch.float32, copy=True).contiguous()
        )  # the slice is a view of the mapped file
        if scales is not None and self._form.block is not None:
            scaled(tensor, scales, self._form.block)
        if not torch.isfinite(tensor).all():
            raise CheckpointError(
                f"{path}: {name} holds a value that is not finite", "Use another checkpoint"
            )
        return tensor
