"""One process in the group of a member's ranks: how they meet and what they exchange.

The ranks run on one machine and meet at a file. Their sockets listen on loopback only, because
nothing is signed. Commands and sequences use gloo on every device: waiting for a command costs no
GPU and never times out. The process that started a rank notices its death.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from aftermath.base.concurrency import TurnLock
from aftermath.optim.moments import Kind
from aftermath.parallel.commands import Join, Order

_PATIENCE = timedelta(days=365)
Arrived = Callable[[], None]
"""Waits until something that is under way arrived. Raises RuntimeError where a rank is not there
any more.
"""


class Ranks:
    """This process's end of the group. Collective is what does not speak of one other rank, nor of
    what it is told.
    """

    def __init__(self, join: Join) -> None:
        """Meet the others; returns when all are here."""
        self.rank, self.tensor, self.size = join.rank, join.tensor, join.data * join.tensor
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, loopback)
        self.turn = TurnLock()
        """Of who gives orders."""
        self.holder: object = None
        """Whose optimizer's state the ranks hold."""
        self.reserved = 0
        """Bytes of this rank's device for this state, in addition to what exists from the start."""
        self.device = device = torch.device(join.device)
        if device.type == "cuda":
            torch.cuda.init()
            torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        there = Path(join.store).as_uri()
        dist.init_process_group(
            backend, there, rank=join.rank, world_size=self.size, timeout=_PATIENCE
        )
        self.mesh: DeviceMesh = init_device_mesh(
            device.type, (join.data, join.tensor), mesh_dim_names=("data", "tensor")
        )

    def tell(self, order: Order) -> None:
        """The first rank says what is to be done."""
        said = torch.frombuffer(bytearray(msgspec.msgpack.encode(order)), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(said)]), 0)
        dist.broadcast(said, 0)

    def hear(self) -> Order:
        """What the first rank says."""
        dist.broadcast(length := torch.zeros(1, dtype=torch.int64), 0)
        dist.broadcast(said := torch.empty(int(length), dtype=torch.uint8), 0)
        order: Order = msgspec.msgpack.decode(said.numpy().tobytes(), type=Order)
        return order

    def sequences(self, given: Tensor) -> Tensor:
        """The first rank's sequences, int64 on the CPU; of the others only the shape counts."""
        dist.broadcast(shared := given.to("cpu").contiguous(), 0)
        return shared

    def figures(self, own: Tensor) -> Tensor:
        """What every rank says, float64 [n] on the CPU: [n, ranks]."""
        said = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(said, own)
        return torch.stack(said, 1)

    def send(self, tensor: Tensor, rank: int) -> None:
        """To one other, who receives it."""
        if tensor.numel():
            dist.send(tensor.to("cpu").contiguous(), rank)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, rank: int) -> Tensor:
        """What one other sends, of this shape and on the CPU."""
        found = torch.empty(shape, dtype=dtype)
        if found.numel():
            dist.recv(found, rank)
        return found

    def post(self, tensor: Tensor, rank: int) -> Arrived:
        """Begin to send to one other, who receives it; until it arrived, the tensor must stay as it
        is.
        """
        return _arrival(dist.isend(tensor.to("cpu").contiguous(), rank) if tensor.numel() else None)

    def expect(self, into: Tensor, rank: int) -> Arrived:
        """Begin to receive what one other sends, in its order, into a contiguous tensor on the CPU."""
        return _arrival(dist.irecv(into, rank) if into.numel() else None)

    def told(
        self, own: Iterable[Tensor], kinds: Callable[[int], Iterable[Kind]]
    ) -> list[list[Tensor]]:
        """What every rank tells the first one, on the CPU: its `own`, and what the others send, of
        these kinds.
        """
        others = (
            [self.receive(*kind, rank) for kind in kinds(rank)] for rank in range(1, self.size)
        )
        return [[tensor.to("cpu") for tensor in own], *others]

    def require_holder(self, one: object) -> None:
        """Raises RuntimeError if the ranks hold another one's state."""
        if self.holder is not one:
            raise RuntimeError("the ranks hold another replica's state by now")


def _arrival(work: dist.Work | None) -> Arrived:
    def wait() -> None:
        if work is not None:
            work.wait()

    return wait


def octets(data: bytes) -> Tensor:
    """Bytes as ranks send them to each other."""
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )
