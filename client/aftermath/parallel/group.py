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
from aftermath.parallel.commands import Command, Join

_PATIENCE = timedelta(days=365)
Wait = Callable[[], None]
"""Wait until a transfer is complete. Raise RuntimeError if the other rank is gone."""


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
        """Held by the thread that sends commands."""
        self.holder: object = None
        """The optimizer whose state the ranks hold."""
        self.reserved = 0
        """Bytes that this state will need on this rank's device, beyond what is allocated."""
        self.device = device = torch.device(join.device)
        if device.type == "cuda":
            torch.cuda.init()
            torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store = Path(join.store).as_uri()
        dist.init_process_group(
            backend, store, rank=join.rank, world_size=self.size, timeout=_PATIENCE
        )
        self.mesh: DeviceMesh = init_device_mesh(
            device.type, (join.data, join.tensor), mesh_dim_names=("data", "tensor")
        )

    def send_command(self, command: Command) -> None:
        """Send a command from the first rank to all others."""
        data = torch.frombuffer(bytearray(msgspec.msgpack.encode(command)), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(data)]), 0)
        dist.broadcast(data, 0)

    def receive_command(self) -> Command:
        """Return the next command of the first rank."""
        length = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(length, 0)
        data = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(data, 0)
        command: Command = msgspec.msgpack.decode(data.numpy().tobytes(), type=Command)
        return command

    def broadcast_sequences(self, sequences: Tensor) -> Tensor:
        """Return the first rank's sequences, int64 on the CPU. Other ranks give only the shape."""
        dist.broadcast(shared := sequences.to("cpu").contiguous(), 0)
        return shared

    def gather_figures(self, figures: Tensor) -> Tensor:
        """Gather float64 [n] of every rank on the CPU. Return [n, ranks]."""
        gathered = [torch.empty_like(figures) for _ in range(self.size)]
        dist.all_gather(gathered, figures)
        return torch.stack(gathered, 1)

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor to a rank, which must receive it."""
        if tensor.numel():
            dist.send(tensor.to("cpu").contiguous(), rank)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, rank: int) -> Tensor:
        """Return a tensor of this shape from a rank, on the CPU."""
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.numel():
            dist.recv(tensor, rank)
        return tensor

    def isend(self, tensor: Tensor, rank: int) -> Wait:
        """Begin to send a tensor to a rank. It must not change until the transfer is complete."""
        return _arrival(dist.isend(tensor.to("cpu").contiguous(), rank) if tensor.numel() else None)

    def irecv(self, into: Tensor, rank: int) -> Wait:
        """Begin to receive a tensor from a rank into a contiguous tensor on the CPU."""
        return _arrival(dist.irecv(into, rank) if into.numel() else None)

    def gather_replies(
        self, replies: Iterable[Tensor], kinds: Callable[[int], Iterable[Kind]]
    ) -> list[list[Tensor]]:
        """Return the tensors of every rank on the CPU: `replies`, then those that the others send.

        `kinds(rank)` gives the shapes and types that a rank sends.
        """
        from_others = (
            [self.receive(*kind, rank) for kind in kinds(rank)] for rank in range(1, self.size)
        )
        return [[tensor.to("cpu") for tensor in replies], *from_others]

    def require_holder(self, optimizer: object) -> None:
        """Raise RuntimeError if the ranks hold another optimizer's state."""
        if self.holder is not optimizer:
            raise RuntimeError("the ranks now hold the state of another replica")


def _arrival(work: dist.Work | None) -> Wait:
    def wait() -> None:
        if work is not None:
            work.wait()

    return wait


def as_byte_tensor(data: bytes) -> Tensor:
    """Return bytes as a uint8 tensor."""
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )
