"""A member's replica: its tier of the model and the optimizer's state.

It trains, applies, hashes, and measures the machine's speed, in synchronous torch on one worker
thread. Parameters are fp32 and change only in `apply`, which is exact, so the replicas of all
members stay bit-identical.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from aftermath.base.errors import Unsuitable
from aftermath.model.config import ModelConfig
from aftermath.model.levels import MOMENTUM
from aftermath.model.segments import level_hash
from aftermath.optim import muon
from aftermath.optim.engine import Engine, MakeResult, Trained
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.inner_optimizer import InnerOptimizer, MakeInner
from aftermath.optim.interfaces import Loss
from aftermath.optim.level_votes import Votes
from aftermath.optim.schema import Schema
from aftermath.replica.device_kind import device_kind
from aftermath.replica.memory import LiveBytes, free_bytes, give_back, is_out_of_memory
from aftermath.replica.options import PLAIN, Arithmetic, indices_named
from aftermath.replica.pass_size import OutOfMemory, PassSize, room
from aftermath.replica.passes import Passes
from aftermath.rules.announcements import PassSettings
from aftermath.rules.fields import LARGEST_MICRO_BATCH, Products

_SHORTEST_PASS = 32  # tokens
_DUMMY_GRADIENT = 1e-3  # standard deviation


class Cancelled(Exception):
    """Training was cancelled because the run has moved on."""


class Replica:
    """The model of one tier with its optimizer.

    `weights` has the tier's parameters. Momentum tensors may follow; without them it is zero.
    """

    def __init__(
        self,
        schema: Schema,
        config: ModelConfig,
        tier: int,
        weights: Mapping[str, Tensor],
        *,
        device: torch.device,
        pass_size: PassSize,
        stopwatch: Callable[[], float],
        arithmetic: Arithmetic = PLAIN,
        result: MakeResult = ErrorFeedback,
        inner: MakeInner = InnerOptimizer,
    ) -> None:
        self.schema = schema
        self.tier = tier
        self.device = device
        self._pass_size = pass_size
        self._stopwatch = stopwatch
        own = {name: t for name, t in weights.items() if not name.startswith(MOMENTUM)}
        self.model = config.build(tier, {name: tensor.to(device) for name, tensor in own.items()})
        if not self.model.can_recompute:
            pass_size.forbid_recompute()
        self.passes = Passes(self.model, arithmetic)
        self.params: dict[str, Tensor] = dict(self.model.named_parameters())
        self._pass_sizes: set[tuple[int, bool]] = set()
        """Sizes of the last share's passes, and whether they recomputed layers."""
        self._engine = partial(Engine, schema, tier, self.params, stopwatch, result, inner)
        self.optimizer = self._engine()
        for name, tensor in self.optimizer.momentum.items():
            if name in weights:
                tensor.copy_(weights[name])

    @property
    def shared(self) -> dict[str, Tensor]:
        """Return the tensors that replicas share (`Schema.shared`): parameters and momentum."""
        return self.params | self.optimizer.momentum

    def another(self) -> Replica:
        """Return the replica of another member of this tier, on the same shared tensors.

        It has a private state of its own. Only one of them may train at a time, and only one may
        apply a round's results.
        """
        other = copy.copy(self)
        other.optimizer = self._engine(self.optimizer.momentum)
        return other

    @property
    def levels(self) -> range:
        """Return the levels of this replica, in ascending order."""
        return range(self.tier, self.schema.state.levels)

    def train(
        self,
        sequences: Tensor,
        lr: float,
        ahead_lr: float,
        cancelled: threading.Event,
        measured: bool = False,
        travelling: bool = False,
        dummy_seed: int | None = None,
    ) -> Trained:
        """Train on `sequences` int64 [n, seq_len], or [n, 2, seq_len] with labels, and encode the
        result.

        The parameters do not change. `ahead_lr` is the learning rate of the look-ahead (the
        previous step's). `travelling`: whether this member's last result is not applied to the
        parameters yet. `measured` asks for metrics. With `dummy_seed`, the gradients are noise
        from that seed, and the network does not run. Raises Cancelled between micro-batches, or
        optim.gradient_clip.NonFiniteGradient.
        """
        self._pass_sizes.clear()
        self.passes.begin_share()

        def backward(part: Tensor) -> Loss:
            if dummy_seed is None:
                return self._backward(self.passes, part, cancelled)
            return self._pretend(dummy_seed)

        return self.optimizer.train(
            sequences,
            backward,
            lr,
            ahead_lr,
            measured,
            travelling,
        )

    def _pretend(self, seed: int) -> float:
        """Set all gradients to noise, and return the loss of a uniform prediction."""
        draw = torch.Generator().manual_seed(seed)
        config = self.model.config
        for name, tensor in sorted(self.params.items()):
            # The gradient of a balance vector is a count of choices, and no expert was chosen.
            deviation = 0.0 if config.balances(name) else _DUMMY_GRADIENT
            noise = torch.randn(tensor.shape, generator=draw) * deviation
            tensor.grad = noise.to(tensor.device)
        return math.log(config.vocab_size)

    def news(self) -> tuple[str, ...]:
        """Return changes of the pass size since the last call, as sentences."""
        return self._pass_size.news()

    def _backward(self, passes: Passes, sequences: Tensor, cancelled: threading.Event) -> Loss:
        """Call `accumulate_unread` without old gradients. Use smaller passes if memory runs out."""
        while True:
            try:
                if self._pass_size.unknown:
                    self._fit(sequences[:1], cancelled)
                self.model.recompute = self._pass_size.recompute
                loss = accumulate_unread(passes, sequences, self._pass_size.size, cancelled)
                self._pass_sizes.add((self._pass_size.size, self._pass_size.recompute))
                return loss
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            self.model.zero_grad(set_to_none=True)
            give_back(self.device)
            if not self._pass_size.shrink():
                raise OutOfMemory(
                    f"this machine has too little memory for tier {self.tier}, even with one sequence per pass",
                    "Choose a higher --matformer-tier, which has a smaller model",
                )

    def _fit(self, sequence: Tensor, cancelled: threading.Event) -> None:
        """Find how many sequences fit into a pass, from the memory that one takes."""
        settled = False
        while not settled:
            self.model.recompute = self._pass_size.recompute
            free = free_bytes(self.device)
            with LiveBytes() as live:
                accumulate(self.passes.plain(), sequence, 1, cancelled)
            self.model.zero_grad(set_to_none=True)
            gradients = sum(tensor.nbytes for tensor in self.params.values())
            settled = self._pass_size.settle(live.peak, free - gradients)

    @property
    def at_once(self) -> int:
        """Return the sequences per pass."""
        return self._pass_size.size

    @property
    def pass_settings(self) -> PassSettings:
        """Return what the last share's passes computed with."""
        compiled = self.passes.compiled
        # Another machine cannot know at which inner step the pass size changed. It may recompute
        # layers or not: these are the same operations, unless they are compiled.
        recomputed = any(recompute for _, recompute in self._pass_sizes)
        repeatable = compiled is not None and not (compiled and recomputed)
        return pass_settings(
            self.schema,
            self.at_once,
            self.device,
            bf16=self.passes.arithmetic.bf16,
            compiled=bool(compiled),
            repeatable=repeatable and len(self._pass_sizes) <= 1,
        )

    @property
    def can_be_judged(self) -> bool:
        """Return whether other machines can repeat shares of this replica."""
        bf16 = self.passes.arithmetic.bf16
        return pass_settings(self.schema, 1, self.device, bf16=bf16).can_be_judged

    def has_memory_for(
        self, sequences: Tensor, micro_batch: int, cancelled: threading.Event
    ) -> bool:
        """Return whether the passes of this share, of up to `micro_batch`, fit into memory."""
        free = free_bytes(self.device)
        with LiveBytes() as live:
            accumulate(self.passes.plain(), sequences[:1], 1, cancelled)
        self.model.zero_grad(set_to_none=True)
        gradients = sum(tensor.nbytes for tensor in self.params.values())
        # A pass has sequences of one step only. A member may claim any larger micro-batch size.
        per_step = self.schema.optimizer.sequences_per_step(len(sequences))
        return min(micro_batch, per_step) <= room(live.peak, free - gradients)

    def measure_weight(self, seq_len: int, seconds: float) -> int:
        """Return this machine's throughput in sequences per minute (1..65535), from timed passes.

        The first pass is short and runs twice, to warm up caches and libraries. Each next pass is
        twice as long, up to a micro-batch (which runs twice too). It is left out if it would end
        after `seconds`. Passes are not compiled, because that would take longer than all of them.
        """
        passes = self.passes.plain()
        still = threading.Event()
        if self._pass_size.unknown:
            self._backward(passes, torch.zeros(1, seq_len, dtype=torch.int64), still)
        micro = self.at_once
        vocabulary = self.model.config.vocab_size
        batch = torch.arange(micro * seq_len).remainder_(vocabulary)
        began = self._stopwatch()
        # number of tokens of the longest passes until now, and their best time
        tokens = 0
        best = float("inf")
        for number, (count, length) in enumerate(_passes(micro, seq_len)):
            started = self._stopwatch()
            if number > 1 and started - began + best * (count * length / tokens) > seconds:
                break
            self.model.zero_grad(set_to_none=True)
            float(
                self._backward(passes, batch[: count * length].view(count, length), still)
            )  # reading the loss waits for a GPU
            took = self._stopwatch() - started
            best = min(best, took) if count * length == tokens else took
            tokens = count * length
        self.model.zero_grad(set_to_none=True)
        return weight_of(tokens / seq_len, best)

    def warm_up(self, seq_len: int, labels: bool) -> None:
        """Train one micro-batch, with or without labels, to compile it."""
        micro = self._pass_size.size
        batch = (
            torch.arange(micro * seq_len)
            .remainder_(self.model.config.vocab_size)
            .view(micro, seq_len)
        )
        self._backward(
            self.passes, torch.stack((batch, batch), 1) if labels else batch, threading.Event()
        )
        self.model.zero_grad(set_to_none=True)

    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """Apply one round's accepted results (per level, in seat order) at its learning rate,
        exactly.
        """
        self.optimizer.apply(results, lr)

    def hashes(self) -> dict[int, bytes]:
        """Return the hash of every held level, equal on all members that hold it."""
        return {level: level_hash(self.shared, self.schema.shared, level) for level in self.levels}


def accumulate(
    passes: Passes, sequences: Tensor, micro_batch: int, cancelled: threading.Event
) -> float:
    """Call `accumulate_unread`, and return the loss as a number."""
    return float(accumulate_unread(passes, sequences, micro_batch, cancelled, read=True))


def accumulate_unread(
    passes: Passes,
    sequences: Tensor,
    micro_batch: int,
    cancelled: threading.Event,
    *,
    read: bool = False,
) -> Loss:
    """Add the gradient of the mean loss over `sequences` [n, seq_len], by micro-batches. Return the
    loss.

    Without `read` the loss stays on a GPU, since reading it waits for the GPU. With labels,
    `sequences` are [n, 2, seq_len], and the mean is over all labels of the share: a micro-batch
    counts as many labels as it has. Raises Cancelled between micro-batches.
    """
    placed = passes.upload(sequences)
    losses = []
    for micro, batch in zip(
        sequences.split(micro_batch), placed.split(micro_batch), strict=True
    ):  # [micro, seq_len]
        if cancelled.is_set():
            raise Cancelled
        loss = share_loss(passes, batch, micro, sequences)
        loss.backward()
        losses.append(loss.detach())
    if not read and passes.device.type == "cuda" and torch.cuda.is_available():
        return torch.stack(losses).double().sum()
    return float(sum(torch.stack(losses).tolist()))  # read once: each read waits for the device


def share_loss(passes: Passes, batch: Tensor, micro: Tensor, sequences: Tensor) -> Tensor:
    """Return a micro-batch's part of the share's mean loss. `batch` is `micro` on the device."""
    if batch.dim() == 3:
        return passes.loss(*batch.unbind(1)) * (_learnt(micro) / max(1, _learnt(sequences)))
    return passes.loss(batch) * (len(micro) / len(sequences))


def _learnt(sequences: Tensor) -> int:
    """Return the number of learnt labels [n, 2, seq_len], without each sequence's first label."""
    return int((sequences[:, 1, 1:] >= 0).sum())


def pass_settings(
    schema: Schema,
    micro_batch: int,
    device: torch.device,
    *,
    bf16: bool,
    compiled: bool = False,
    repeatable: bool = True,
) -> PassSettings:
    """Return the settings of passes of `micro_batch` sequences on a device.

    `repeatable`: whether a new replica of that kind of device computes the same with them.
    """
    return PassSettings(
        micro_batch=min(micro_batch, LARGEST_MICRO_BATCH),
        products="bf16" if bf16 else "fp32",
        steps=step_products(schema, device),
        compiled=compiled,
        device=device_kind(device) if repeatable and micro_batch <= LARGEST_MICRO_BATCH else "",
    )


def step_products(schema: Schema, device: torch.device) -> Products:
    """Return the precision of products in the inner optimizer on a device."""
    in_bf16 = schema.optimizer.may_step_in_bf16 and muon.at_once(device)
    return "bf16" if in_bf16 else "fp32"


def _passes(micro: int, seq_len: int) -> Iterator[tuple[int, int]]:
    """Yield (sequences, tokens of each) of the measuring passes. The last is a micro-batch."""
    length = min(_SHORTEST_PASS, seq_len)
    yield 1, length
    while length < seq_len:
        yield 1, length
        length = min(2 * length, seq_len)
    count = 1
    while count < micro:
        yield count, seq_len
        count = min(2 * count, micro)
    yield micro, seq_len
    yield micro, seq_len


def weight_of(sequences: float, seconds: float) -> int:
    """Return the sequences per minute that a member declares when it joins."""
    return max(1, min(65535, round(60 * sequences / max(seconds, 1e-6))))


def pick_device(name: str) -> torch.device:
    """Return the torch device for auto, cpu, mps, cuda or cuda:X,Y (the first index).

    Raises UsageError as `indices_named` does, Unsuitable if there is no such device here.
    """
    indices = indices_named(name)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if gpus else "mps" if mps else "cpu")
    kind = name.partition(":")[0]
    if not {"cpu": True, "mps": mps, "cuda": gpus > 0}[kind]:
        raise Unsuitable(
            f"--device {name}: this machine has no {kind.upper()} device", "Use cpu or auto"
        )
    if not indices:
        return torch.device(kind)
    if indices[0] >= gpus:
        raise Unsuitable(
            f"--device {name} does not exist",
            f"Use one of this machine's devices, cuda:0 to cuda:{gpus - 1}",
        )
    return torch.device(kind, indices[0])
