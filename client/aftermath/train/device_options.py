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
from aftermath.train.connection import MemberBackend
from aftermath.train.option_checks import eval_request_of
from aftermath.train.settings import TrainSettings
from aftermath.train.tier import check_alone


@dataclass(frozen=True)
class DeviceSetup:
    """A member's backend, devices and arithmetic."""

    backend: MemberBackend
    mesh: Mesh
    arithmetic: Arithmetic
    """Arithmetic of the passes on these devices."""


def device_setup(settings: TrainSettings, backend: MemberBackend) -> DeviceSetup:
    """Resolve the device options. Raises UsageError or Unsuitable if this machine lacks one."""
    if (request := eval_request_of(settings)) is not None:
        check_known(request)
    mesh = device_mesh(settings)
    check_alone(settings.matformer_tier, mesh)
    exact_device(settings.device)
    keep_compiled()
    arithmetic = arithmetic_of(
        mesh.devices[0], settings.precision, settings.compile if mesh.alone else "off"
    )
    return DeviceSetup(backend, mesh, arithmetic)


def device_mesh(settings: TrainSettings) -> Mesh:
    """Return the devices that the options name. Raises UsageError or Unsuitable."""
    mesh = mesh_of(settings.device, settings.data_parallelism, settings.tensor_parallelism)
    if not mesh.alone and settings.compile == "on":
        raise UsageError("--compile on does not work with several devices", "Omit --compile")
    return mesh
