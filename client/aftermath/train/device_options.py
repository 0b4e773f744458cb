"""Resolve the device options of a member.

This is the first check that needs PyTorch. It runs once the coordinator would admit the member.
"""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.base.errors import UsageError
from aftermath.evals.suite import check_known
from aftermath.parallel.mesh import Mesh, mesh_of
from aftermath.replica.exactness import exact_device, keep_compiled
from aftermath.replica.options import Arithmetic
from aftermath.replica.passes import arithmetic_of
from aftermath.train.connection import Reach
from aftermath.train.option_checks import asked_of
from aftermath.train.settings import TrainSettings
from aftermath.train.tier import check_alone


@dataclass(frozen=True)
class Named:
    """A member's backend, devices and arithmetic."""

    reach: Reach
    mesh: Mesh
    arithmetic: Arithmetic
    """Arithmetic of the passes on these devices."""


def named_by(settings: TrainSettings, reach: Reach) -> Named:
    """Resolve the device options. Raises UsageError or Unsuitable if this machine lacks one."""
    if (asked := asked_of(settings)) is not None:
        check_known(asked)
    mesh = mesh_named(settings)
    check_alone(settings.matformer_tier, mesh)
    exact_device(settings.device)
    keep_compiled()
    arithmetic = arithmetic_of(
        mesh.devices[0], settings.precision, settings.compile if mesh.alone else "off"
    )
    return Named(reach, mesh, arithmetic)


def mesh_named(settings: TrainSettings) -> Mesh:
    """Return the devices that the options name. Raises UsageError or Unsuitable."""
    mesh = mesh_of(settings.device, settings.data_parallelism, settings.tensor_parallelism)
    if not mesh.alone and settings.compile == "on":
        raise UsageError("--compile on: passes on several devices are not compiled", "Leave it out")
    return mesh
