"""What the options of a member name, looked at in one order before anything is opened or written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aftermath.p2p.iroh import check_interface
from aftermath.ranks.mesh import Mesh
from aftermath.replica.arithmetic import Arithmetic
from aftermath.replica.exactness import exact_device
from aftermath.replica.passes import arithmetic_of
from aftermath.train.choices import check_choices, mesh_named
from aftermath.train.keeping import check_hub
from aftermath.train.reach import Reach, on_solana
from aftermath.train.settings import TrainSettings
from aftermath.train.tier import check_alone


@dataclass(frozen=True)
class Named:
    """Where the run is reached, and on what this member trains."""

    reach: Reach
    mesh: Mesh
    arithmetic: Arithmetic
    """Of the passes on these devices."""


def named_by(settings: TrainSettings, reach: Callable[[TrainSettings], Reach] = on_solana) -> Named:
    """Raises UsageError, Unsuitable or WalletError: what in the settings cannot be, or is not to be had here."""
    check_hub(settings)
    check_choices(settings)
    check_interface(settings.bind_p2p_interface)
    mesh = mesh_named(settings)
    check_alone(settings.matformer_tier, mesh)
    exact_device(settings.device)
    found = reach(settings)
    arithmetic = arithmetic_of(mesh.devices[0], settings.precision, settings.compile if mesh.alone else "off")
    return Named(found, mesh, arithmetic)
