"""The passes of a share: their precision, compilation, and the upload of tokens.

Weights, gradients and their sums are always fp32. With bf16, autocast computes matrix products in
bf16; the loss, norms, the residual stream and the choice of experts stay fp32. The formats of
results and the apply do not depend on the precision.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from aftermath.base.errors import Unsuitable
from aftermath.model.network import LanguageModel
from aftermath.replica.memory import is_out_of_memory
from aftermath.replica.options import PLAIN, Arithmetic, Compile, Precision

log = logging.getLogger(__name__)


def arithmetic_of(device: torch.device, precision: Precision, compiled: Compile) -> Arithmetic:
    """Return the arithmetic of the options on a device. Raises Unsuitable for bf16 without
    support.
    """
    has_it = has_bf16(device)
    if precision == "bf16" and not has_it:
        raise Unsuitable(
            f"--precision bf16: {device} does not support bf16", "Use --precision fp32 or auto"
        )
    use_bf16 = precision == "bf16" or (precision == "auto" and has_it and device.type != "cpu")
    return Arithmetic(use_bf16, compiled == "on" or (compiled == "auto" and device.type == "cuda"))


def has_bf16(device: torch.device) -> bool:
    """Return whether the device supports autocast to bf16: all CPUs, and GPUs with bf16 units."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" or bool(torch.backends.mps.is_macos_or_newer(14, 0))


class Passes:
    """The forward passes of one model."""

    def __init__(self, model: LanguageModel, arithmetic: Arithmetic = PLAIN) -> None:
        self._model = model
        self.arithmetic = arithmetic
        self._compiled: Callable[..., Tensor] | None = None
        if arithmetic.compiled:
            self._compiled = torch.compile(model.loss)
        self._kind: tuple[bool, int, bool] | None = None
        self._tried: set[tuple[torch.Size, bool]] = set()
        self._ran: list[tuple[bool, bool]] = []
        """The kinds of passes of this share, in order: of several sequences, and compiled."""

    def plain(self) -> Passes:
        """Return the same passes without compilation, for few passes or for many shapes."""
        return Passes(self._model, replace(self.arithmetic, compiled=False))

    def begin_share(self) -> None:
        """Forget which passes were compiled."""
        self._ran.clear()

    @property
    def compiled(self) -> bool | None:
        """Return whether this share's passes were compiled, or None if new passes would differ."""
        # New passes compile the kind of the first pass, and no other.
        if not any(compiled for _, compiled in self._ran):
            return False
        first, _ = self._ran[0]
        return True if all(compiled == (kind == first) for kind, compiled in self._ran) else None

    @property
    def device(self) -> torch.device:
        """Return the model's device."""
        return next(self._model.parameters()).device

    def upload(self, sequences: Tensor) -> Tensor:
        """Copy a share's tokens to the model's device. A GPU copies from pinned memory without
        waiting.
        """
        if self.device.type != "cuda":
            return sequences.to(self.device)
        return sequences.pin_memory().to(self.device, non_blocking=True)

    def loss(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return `LanguageModel.loss` of tokens [B, T] on the device, with a gradient for the
        parameters.
        """
        with self.cast():
            compiled = None
            if self._compiled is not None and self._compiles(self._compiled, input_ids, labels):
                compiled = self._compiled
            kind = len(input_ids) > 1, compiled is not None
            if kind not in self._ran:
                self._ran.append(kind)
            return (compiled or self._model.loss)(input_ids, labels)

    def cast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which passes compute."""
        if not self.arithmetic.bf16:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _compiles(
        self, compiled: Callable[..., Tensor], input_ids: Tensor, labels: Tensor | None
    ) -> bool:
        """Return whether to use the compiled pass. If compiling fails, disable compilation."""
        # Compile only the first kind of pass: one sequence, or several, of one length. Otherwise a
        # share with a remainder would make a round wait for the compiler. Try each new shape with a
        # whole pass, forward and backward. Report a failure once and continue without compilation.
        several = len(input_ids) > 1
        length = input_ids.shape[1]
        self._kind = self._kind or (several, length, labels is None)
        if self._kind != (several, length, labels is None):
            return False
        for tensor in (input_ids, labels) if several else ():
            if tensor is not None:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        tried = input_ids.shape, self._model.recompute
        if tried in self._tried:
            return True
        parameters = [
            parameter for parameter in self._model.parameters() if parameter.requires_grad
        ]
        if not compiles(lambda: compiled(input_ids, labels), parameters):
            self._compiled = None
            return False
        self._tried.add(tried)
        return True


def compiles(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> bool:
    """Return whether a compiled forward and backward pass works. If not, log why."""
    try:
        torch.autograd.grad(loss(), parameters, allow_unused=True)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        log.warning("training without torch.compile, which failed: %s", first_line(error))
        return False
    return True


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
