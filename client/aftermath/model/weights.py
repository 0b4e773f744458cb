"""Read safetensors weights lazily: a tier reads only the rows or columns that it holds.

Names, shapes and types must match the config before a value is read, and values must be finite.
All arithmetic is fp32: half precision is widened, and fp8 is multiplied by its scales.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from aftermath.base.errors import short_repr
from aftermath.base.text import counted
from aftermath.model.config import ModelConfig
from aftermath.model.json_documents import (
    INDEX_FILE,
    MOMENTUM_FILE,
    WEIGHTS_FILE,
    CheckpointError,
    check_readable,
    damaged,
    is_file,
    read_index,
)
from aftermath.model.levels import prefix
from aftermath.model.published_checkpoints import PLAIN, SCALES, FileNames, Form

FP8_KIND = "F8_E4M3"
_SCALE_KINDS = ("F32", "BF16")


# Files are mapped, so a tier reads only the pages that it needs. It reads its own rows of a matrix
# cut by rows, all of a matrix cut by columns, and nothing of a skipped layer. Shards with only
# skipped layers may be absent. A single `model.safetensors` wins over an index, as in transformers.
# A stored copy of a tied head must equal the embedding, because versions of transformers differ in
# which of the two they load.
def read_scales(
    files: Sequence[Path], shapes: Mapping[str, tuple[int, ...]], block: tuple[int, int]
) -> dict[str, Tensor]:
    """Return the fp32 scales of these tensors by name. Raises CheckpointError."""
    scales: dict[str, Tensor] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for listed in file.keys():  # noqa: SIM118 - it is not a dictionary
                    name = listed.removesuffix(SCALES)
                    if name == listed or name not in shapes:
                        continue
                    if name in scales:
                        raise CheckpointError(f"{path}: {listed} is also in another shard")
                    part = file.get_slice(listed)
                    names = _blocks(shapes[name], block)
                    shape = tuple(part.get_shape())
                    kind = part.get_dtype()
                    if not names or shape != names or kind not in _SCALE_KINDS:
                        raise CheckpointError(
                            f"{path}: {listed} is {kind} {shape}, but config.json "
                            + (f"requires F32 {names}" if names else "allows no scale here"),
                            "Take weights and config.json from the same checkpoint",
                        )
                    scales[name] = part[:].to(torch.float32, copy=True)
                    if bool((scales[name] < 0).any()):
                        raise CheckpointError(
                            f"{path}: {listed} has a negative scale",
                            "Copy or download the checkpoint again",
                        )
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from None
    return scales


def scaled(weights: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """Multiply each block of fp32 [rows, columns] by its scale, in place, and return the tensor.

    `weights` may be the first rows and columns of the tensor that the scales belong to.
    """
    rows, columns = block
    for number, strip in enumerate(weights.split(rows)):
        strip.mul_(scales[number].repeat_interleave(columns)[: weights.shape[1]])
    return weights


def _blocks(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Return the number of blocks per dimension; empty unless `shape` is a matrix."""
    return (
        tuple(-(-size // edge) for size, edge in zip(shape, block, strict=True))
        if len(shape) == 2
        else ()
    )


log = logging.getLogger(__name__)
_FLOATS = {"F32", "F16", "BF16", "F64"}


def absent_from(config: ModelConfig, tier: int, form: Form) -> Callable[[str], bool]:
    """Return a predicate: whether a name is a tensor that this tier or model does not have."""
    shapes = config.parameter_shapes(tier)
    names = {
        config.stored_name(name, 0) for name in config.parameter_shapes() if name not in shapes
    }
    without = FileNames(names | {name + SCALES for name in names}, config.base_prefix)
    return lambda name: without.tensor(name) is not None or name.startswith(form.foreign)


def weight_files(
    directory: Path, without: Callable[[str], bool] = lambda name: False
) -> tuple[Path, ...]:
    """Return a checkpoint's safetensors files: `model.safetensors`, else the index's, else all.

    Skip files of the index that hold only tensors accepted by `without`.
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
        every = sorted(path for path in directory.glob("*.safetensors") if is_file(path))
        files = tuple(path for path in every if path.name != MOMENTUM_FILE)
    if not files:
        raise CheckpointError(
            f"{directory} has no .safetensors file",
            "Name a checkpoint with safetensors weights; other formats are not supported",
        )
    return files


def read_weights(
    files: Sequence[Path], config: ModelConfig, *, stored: int, tier: int, form: Form = PLAIN
) -> dict[str, Tensor]:
    """Return the fp32 tensors of `tier` from files of tier `stored` (the same tier, or 0).

    Read only the needed bytes. `form` describes the files, as `config.json` does. Raises
    CheckpointError for a missing, unknown or misshapen tensor, or a value that is not finite.
    """
    stored_shapes = config.parameter_shapes(stored)
    shapes = config.parameter_shapes(tier)
    embedding, output = config.tables()
    needed = stored_shapes.keys() & shapes.keys()
    head = {output: stored_shapes[embedding]}  # the file may also have a tied head
    is_tied = output not in stored_shapes
    stored_shapes = head | stored_shapes
    shapes = head | shapes
    names = {config.stored_name(name, stored): name for name in stored_shapes}
    params: dict[str, Tensor] = {}
    pieces = config.pieces()
    joined_shapes = {piece.name: stored_shapes[piece.name] for piece in pieces.values()}
    _require_bytes(files, joined_shapes.values())
    joined = {name: torch.empty(shape) for name, shape in joined_shapes.items()}
    read_pieces: set[str] = set()
    skipped: set[str] = set()  # in the files, but not in the tier
    listed_shapes = {listed: stored_shapes[name] for listed, name in names.items()}
    parts = _open_parts(files, config, form, listed_shapes=listed_shapes, pieces=pieces.keys())
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for listed, tensor in parts.known(file.keys(), path):
                    if (piece := pieces.get(tensor)) is not None:
                        if tensor in read_pieces:
                            raise CheckpointError(f"{path}: {listed} is also in another shard")
                        read_pieces.add(tensor)
                        data = parts.read(file, listed, piece.shape, piece.shape, path)
                        piece.of(joined[piece.name]).copy_(data)
                        continue
                    name = names[tensor]
                    if name in params or name in skipped:
                        raise CheckpointError(f"{path}: {listed} is also in another shard")
                    if name in shapes:
                        params[name] = parts.read(
                            file, listed, stored_shapes[name], shapes[name], path
                        )
                    else:
                        skipped.add(name)
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from None
    directory = files[0].parent
    parts.warn_about_foreign(directory)
    if double := sorted(params.keys() & {pieces[listed].name for listed in read_pieces}):
        raise CheckpointError(
            f"{directory} holds {double[0]} both whole and in pieces", "Remove one of the two"
        )
    incomplete = {piece.name for listed, piece in pieces.items() if listed not in read_pieces}
    params |= {name: tensor for name, tensor in joined.items() if name not in incomplete}
    _require_tensors(params, needed, output, directory)
    if is_tied:
        _require_tied_head(params, embedding, output, directory)
    return params


def _require_tensors(
    params: Mapping[str, Tensor], needed: Iterable[str], output: str, directory: Path
) -> None:
    """Raise CheckpointError if a needed tensor is missing."""
    missing = sorted(name for name in needed if name not in params)
    if not missing:
        return
    hint = (
        "Set tie_word_embeddings in config.json if the output head is tied"
        if output in missing
        else ""
    )
    raise CheckpointError(
        f"{directory} lacks {counted(len(missing), 'tensor')}, first {missing[0]}", hint
    )


def _require_tied_head(
    params: dict[str, Tensor], embedding: str, output: str, directory: Path
) -> None:
    """Remove a stored copy of a tied head. Raises CheckpointError if it differs."""
    if not torch.equal(params.pop(output, params[embedding]), params[embedding]):
        raise CheckpointError(
            f"{directory}: {output} differs from the embedding, but config.json sets tie_word_embeddings",
            "Set tie_word_embeddings to false to use the head, or remove the head from the file",
        )


def _require_bytes(files: Sequence[Path], shapes: Iterable[tuple[int, ...]]) -> None:
    """Raise CheckpointError if files are too small for the tensors, before allocation."""
    size = sum(path.stat().st_size for path in files)
    if (numbers := sum(map(math.prod, shapes))) > size:  # fp8 takes one byte per number
        raise CheckpointError(
            f"{files[0].parent} has {size:,} bytes of weights, too few for the {numbers:,} numbers of config.json",
            "Take weights and config.json from the same checkpoint",
        )


class _Parts:
    """Reads single tensors from files of one published form."""

    def __init__(self, form: Form, scales: Mapping[str, Tensor], names: FileNames) -> None:
        self._form = form
        self._scales = scales
        self._names = names
        self.foreign = 0  # number of tensors that are not part of the model

    def known(self, listed: Iterable[str], path: Path) -> list[tuple[str, str]]:
        """Return (name in the file, name of the tensor) of each parameter.

        Skip the names that transformers ignores and the form's additional tensors. Raises
        CheckpointError for any other name.
        """
        known = []
        for name in listed:
            if (tensor := self._names.tensor(name)) is not None:
                known.append((name, tensor))
            elif name.startswith(self._form.foreign):
                self.foreign += 1
            elif not (self._names.is_buffer(name) or name.removesuffix(SCALES) in self._scales):
                raise CheckpointError(
                    f"{path} holds {short_repr(name)}, which is not part of this model",
                    "Use a checkpoint with plain weights of the model that config.json describes",
                )
        return known

    def warn_about_foreign(self, directory: Path) -> None:
        """Log how many tensors were skipped because they are not part of the model."""
        if self.foreign:
            log.warning(
                "%s: skipped %s of multi-token prediction layers",
                directory,
                counted(self.foreign, "tensor"),
            )

    def read(
        self, file: Any, name: str, there: tuple[int, ...], tier_shape: tuple[int, ...], path: Path
    ) -> Tensor:
        """Return the part of shape `tier_shape` at the start of a tensor stored with shape `there`,
        in fp32. Raises CheckpointError.
        """
        part = file.get_slice(name)
        shape = tuple(part.get_shape())
        kind = part.get_dtype()
        scales = self._scales.get(name)
        if kind not in _FLOATS and not (kind == FP8_KIND and scales is not None):
            raise CheckpointError(
                f"{path}: {name} is of type {kind}, which is not supported"
                + (f" without {name}{SCALES}" if kind == FP8_KIND else ""),
                f"Use a checkpoint of {', '.join(sorted(_FLOATS))}",
            )
        if shape != there:
            raise CheckpointError(
                f"{path}: {name} is {kind} {shape}, but config.json says {there}",
                "Take weights and config.json from the same checkpoint",
            )
        if kind != FP8_KIND and scales is not None:
            raise CheckpointError(
                f"{path}: {name} is {kind}, but has fp8 scales", "Download the checkpoint again"
            )
        tensor: Tensor = (
            part[prefix(tier_shape)].to(torch.float32, copy=True).contiguous()
        )  # the slice is a view of the mapped file
        if scales is not None and self._form.block is not None:
            scaled(tensor, scales, self._form.block)
        if not torch.isfinite(tensor).all():
            raise CheckpointError(
                f"{path}: {name} has a value that is not finite", "Use another checkpoint"
            )
        return tensor


def _open_parts(
    files: Sequence[Path],
    config: ModelConfig,
    form: Form,
    *,
    listed_shapes: Mapping[str, tuple[int, ...]],
    pieces: Set[str],
) -> _Parts:
    """Return the reader of the files' tensors. Raises CheckpointError if a file is unreadable.

    `listed_shapes`: shapes of whole tensors by their names in files. `pieces`: names of the others.
    """
    for path in files:
        check_readable(path)
    scales = read_scales(files, listed_shapes, form.block) if form.block else {}
    names = FileNames(listed_shapes.keys() | pieces, config.base_prefix, config.ignored_names)
    return _Parts(form, scales, names)
