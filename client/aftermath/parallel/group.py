"""One process in the group of a member's ranks: every rank runs the same methods in the same order.

The first rank announces each method and its arguments, because only it sees the run. The ranks run
on one machine and meet at a file. Their sockets listen on loopback only, because nothing is signed.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from aftermath.base.concurrency import TurnLock
from aftermath.replica.memory import is_out_of_memory
from aftermath.replica.pass_size import OutOfMemory

# Announcements use gloo on every device. Waiting for one then costs no GPU, and never times out:
# the process that started a rank notices its death.
_TIMEOUT = timedelta(days=365)
_BUILD = "__init__"
_broadcast = partial(dist.broadcast, src=0)
S = TypeVar("S", bound="Sharded")
P = ParamSpec("P")
T = TypeVar("T")


class Join(msgspec.Struct, frozen=True):
    """Arguments with which a rank is started."""

    rank: int
    data: int
    tensor: int
    device: str
    threads: int
    store: str
    """Path of the file through which the ranks find each other."""


def out_of_memory(rank: int, device: object) -> OutOfMemory:
    """Return the error that ends a member if a rank runs out of memory."""
    return OutOfMemory(
        f"rank {rank} of this member, on {device}, has too little memory for its part of the model",
        "Pass a lower --micro-batch-size or --activation-checkpointing on, "
        "or choose a smaller model: a higher --matformer-tier",
    )


class Sharded:
    """An object with one part on every rank. `Ranks.build` builds it."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def recover(self) -> None:
        """Recover from a failed share. The first rank calls this before each method."""


def on_all_ranks(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Run a method on every rank when the first one calls it. Return this rank's result.

    All ranks get the positional arguments: numbers, strings, bytes, lists and dicts. Keyword
    arguments are the first rank's own, so the others get the defaults. Raises RuntimeError if the
    ranks hold another object by now.
    """

    @wraps(method)
    def call(self: S, /, *arguments: P.args, **own: P.kwargs) -> T:
        if self.ranks.rank:
            return method(self, *arguments, **own)
        with self.ranks.leading():
            self.recover()
            self.ranks.announce(self, method.__name__, *arguments)
            return method(self, *arguments, **own)

    return call


class Ranks:
    """This process's end of the group.

    All ranks must call a method together, unless it names another rank or reads only local state.
    """

    def __init__(self, join: Join) -> None:
        """Connect to the other ranks. Return when all are connected."""
        self.rank = join.rank
        self.tensor = join.tensor
        self.size = join.data * join.tensor
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, loopback)
        self.turn = TurnLock()
        """Held by the thread of the first rank whose method runs on all ranks."""
        self._is_out_of_memory = False
        self.reserved = 0
        """Bytes that the state will need on this rank's device, beyond what is allocated."""
        self._objects: dict[str, Callable[[], Sharded | None]] = {}
        """Objects by the names of their classes, in the order in which they were built."""
        self.device = device = torch.device(join.device)
        if device.type == "cuda":
            torch.cuda.init()
            torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store = Path(join.store).as_uri()
        dist.init_process_group(
            backend, store, rank=join.rank, world_size=self.size, timeout=_TIMEOUT
        )
        self.mesh: DeviceMesh = init_device_mesh(
            device.type, (join.data, join.tensor), mesh_dim_names=("data", "tensor")
        )

    def build(self, kind: type[S], *arguments: Any, **own: Any) -> S:
        """Build an object on every rank, with arguments as for `on_all_ranks`.

        It replaces the object of its class and all objects that were built after that one.
        """
        with self.leading():
            _write_message([kind.__name__, _BUILD, arguments], _broadcast)
            return self._build(kind, arguments, own)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Let one thread of the first rank at a time run a method on all ranks.

        Raises OutOfMemory if the first rank runs out of memory, or did so before: the other ranks
        may still wait inside that method.
        """
        with self.turn:
            if self._is_out_of_memory:
                raise out_of_memory(self.rank, self.device)
            try:
                yield
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._is_out_of_memory = True
                raise out_of_memory(self.rank, self.device) from error

    def _build(self, kind: type[S], arguments: Sequence[Any], own: Mapping[str, Any]) -> S:
        names = list(self._objects)
        if kind.__name__ in names:  # free memory first, because two states do not fit
            for name in names[names.index(kind.__name__) :]:
                del self._objects[name]
        new = kind(self, *arguments, **own)
        # The replica on the first rank decides how long its objects live.
        self._objects[kind.__name__] = (lambda: new) if self.rank else weakref.ref(new)
        return new

    def current(self, kind: type[S]) -> S | None:
        """Return the object of a class that the ranks hold."""
        instance = self._objects.get(kind.__name__, lambda: None)()
        return instance if isinstance(instance, kind) else None

    def announce(self, target: Sharded, method: str, *arguments: Any) -> None:
        """Have the other ranks run a method. Raises RuntimeError, and announces nothing, if they
        hold another object.
        """
        kind = type(target)
        if self.current(kind) is not target:
            raise RuntimeError("the ranks now hold the state of another replica")
        _write_message([kind.__name__, method, arguments], _broadcast)

    def follow(self, kinds: Sequence[type[Sharded]]) -> NoReturn:
        """Run the methods that the first rank announces, of objects of these classes."""
        classes = {kind.__name__: kind for kind in kinds}
        while True:
            name, method, arguments = _read_message(_broadcast)
            if method == _BUILD:
                self._build(classes[name], arguments, {})
            else:
                getattr(self.current(classes[name]), method)(*arguments)

    def gather_figures(self, figures: Tensor) -> Tensor:
        """Gather float64 [n] of every rank on the CPU. Return [n, ranks]."""
        gathered = [torch.empty_like(figures) for _ in range(self.size)]
        dist.all_gather(gathered, figures)
        return torch.stack(gathered, 1)

    def gather(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Gather each rank's own named tensors on the first rank's CPU. Other ranks return []."""
        if self.rank:
            self.send(tensors, 0)
            return []
        own = {name: tensor.to("cpu") for name, tensor in tensors.items()}
        return [own, *(self.receive(rank) for rank in range(1, self.size))]

    def scatter(self, tensors: Sequence[Mapping[str, Tensor]] | None) -> Mapping[str, Tensor]:
        """Return this rank's named tensors. The first rank gives those of every rank."""
        if tensors is None:
            return self.receive(0)
        for rank in range(1, self.size):
            self.send(tensors[rank], rank)
        return tensors[0]

    def send(self, tensors: Mapping[str, Tensor], rank: int) -> None:
        """Send named tensors to a rank, which must receive them."""
        kinds = [
            (name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in tensors.items()
        ]
        _write_message(kinds, partial(dist.send, dst=rank))
        for tensor in tensors.values():
            if tensor.numel():
                dist.send(tensor.to("cpu").contiguous(), rank)

    def receive(self, rank: int) -> dict[str, Tensor]:
        """Return the tensors that a rank sends, on the CPU."""
        tensors: dict[str, Tensor] = {}
        for name, shape, dtype in _read_message(partial(dist.recv, src=rank)):
            tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            if tensors[name].numel():
                dist.recv(tensors[name], rank)
        return tensors


# Messages are not pickled as torch's object collectives do: another user of this machine who wins
# the race for a connection could then run code as the member.
def _write_message(message: Any, transfer: Callable[[Tensor], object]) -> None:
    data = as_byte_tensor(msgspec.msgpack.encode(message))
    transfer(torch.tensor([len(data)]))
    transfer(data)


def _read_message(transfer: Callable[[Tensor], object]) -> Any:
    length = torch.zeros(1, dtype=torch.int64)
    transfer(length)
    data = torch.empty(int(length), dtype=torch.uint8)
    transfer(data)
    return msgspec.msgpack.decode(data.numpy().tobytes())


def as_byte_tensor(data: bytes) -> Tensor:
    """Return bytes as a uint8 tensor."""
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))
