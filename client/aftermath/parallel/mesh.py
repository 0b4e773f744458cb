"""The devices of one member, and how they divide the work.

Data parallelism uses the devices that tensor parallelism leaves. A CPU counts as any number of
devices, for tests and experiments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aftermath.base.errors import Unsuitable, UsageError
from aftermath.base.text import counted
from aftermath.parallel import MOST_RANKS
from aftermath.replica.options import indices_named
from aftermath.replica.replica import pick_device


@dataclass(frozen=True)
class Mesh:
    """The devices of one member, one rank each, in `data` groups of `tensor` ranks."""

    devices: tuple[torch.device, ...]
    data: int
    tensor: int

    @property
    def alone(self) -> bool:
        """Return whether there is only one rank."""
        return len(self.devices) == 1


def mesh_of(name: str, data: int, tensor: int) -> Mesh:
    """Return the mesh for `--device`, `--data-parallelism` and `--tensor-parallelism`.

    `data` = 0 means as many as the named devices allow. Raises UsageError if the numbers do not fit
    together, and Unsuitable if this machine lacks the devices.
    """
    first = pick_device(name)
    indices = indices_named(name)
    if len(indices) > 1:
        devices = tuple(pick_device(f"cuda:{index}") for index in indices)
        return _mesh_of_devices(devices, name, data or max(1, len(devices) // tensor), tensor)
    ranks = (data or 1) * tensor
    if ranks > MOST_RANKS:
        raise UsageError(
            f"a member can have at most {MOST_RANKS} ranks, not {ranks}",
            "Lower --data-parallelism or --tensor-parallelism",
        )
    if ranks == 1:
        return Mesh((first,), 1, 1)
    if first.type == "cpu":
        return Mesh((first,) * ranks, data or 1, tensor)
    if first.type != "cuda":
        raise Unsuitable(
            f"{ranks} ranks cannot share one {first.type.upper()} device",
            "Use --device cpu or cuda:0,1",
        )
    if indices:
        return _mesh_of_devices((first,), name, data or 1, tensor)
    gpus = torch.cuda.device_count()
    if ranks > gpus:
        raise Unsuitable(
            f"{ranks} ranks need {ranks} GPUs, but this machine has {gpus}",
            "Lower --data-parallelism",
        )
    return Mesh(tuple(torch.device("cuda", index) for index in range(ranks)), data or 1, tensor)


def _mesh_of_devices(devices: tuple[torch.device, ...], name: str, data: int, tensor: int) -> Mesh:
    if data * tensor != len(devices):
        raise UsageError(
            f"--device {name} names {counted(len(devices), 'device')}, but --data-parallelism {data} with "
            f"--tensor-parallelism {tensor} needs {data * tensor}",
            f"Name {counted(data * tensor, 'device')}, or change the parallelism",
        )
    return Mesh(devices, data, tensor)
