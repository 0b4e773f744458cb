"""Choose the tier of a member with `--matformer-tier auto`.

A wallet that is already a member keeps its tier, because its optimizer state belongs to that tier.
Other members take the largest tier that fits into memory (`replica.tier_memory`) and is fast enough
by measurement, else the smallest. PyTorch is imported late, because options use names defined here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aftermath.base.errors import UsageError
from aftermath.base.text import shortage

if TYPE_CHECKING:
    from torch import device as Device

    from aftermath.coordinator.ports import View
    from aftermath.optim.schema import Schema
    from aftermath.parallel.mesh import Mesh
    from aftermath.replica.options import Arithmetic
    from aftermath.train.settings import TrainSettings

AUTO_TIER = -1
"""The tier value that means "choose one"."""


@dataclass(frozen=True)
class ChosenTier:
    """A tier, and the reason for the choice."""

    tier: int
    why: str


def check_alone(tier: int, mesh: Mesh) -> None:
    """Raise UsageError for --matformer-tier auto with several devices.

    Their combined memory and speed are not computed.
    """
    if tier == AUTO_TIER and not mesh.alone:
        raise UsageError(
            "--matformer-tier auto works with one device only",
            "Pass a tier, for example --matformer-tier 0",
        )


def held_tier(view: View, wallet: bytes) -> int | None:
    """Return the tier of a wallet in the run, or None if it is not a member."""
    seat = view.members.find(wallet)
    return None if seat is None else view.members.seats[seat].tier


def chosen(
    view: View,
    wallet: bytes,
    schema: Schema,
    device: str,
    free: int,
    measure: Callable[[int], int | None],
) -> ChosenTier:
    """Choose the tier of a wallet. Raises OutOfMemory if not even the smallest tier fits.

    `free` is the free memory in bytes. `measure` returns a tier's sequences per minute, or None if
    memory runs out.
    """
    from aftermath.member.measured_speed import too_slow
    from aftermath.replica.pass_size import OutOfMemory
    from aftermath.replica.tier_memory import first_fitting, needs

    current = held_tier(view, wallet)
    if current is not None:
        return ChosenTier(current, "this wallet is already a member with it")
    needed = needs(schema, view.model.max_seq_len, view.run.config.init_min_clients, device)
    first = first_fitting(needed, free)
    last = len(needed) - 1
    if first is None:
        least, room = shortage(needed[last], free)
        raise OutOfMemory(
            f"tier {last}, the smallest, takes {least}, but only {room} are free",
            "Free memory, or use another --device",
        )
    fits = f"it fits ({{:.2f}} of {free / 1e9:.1f} GB)"
    for tier in range(first, last + 1):
        weight = measure(tier)
        if weight is None:
            continue
        if not too_slow(view, wallet, weight):
            return ChosenTier(
                tier,
                f"{fits.format(needed[tier] / 1e9)} and is fast enough ({weight} sequences/min)",
            )
    return ChosenTier(
        last,
        f"{fits.format(needed[last] / 1e9)}; no tier is fast enough here, so this is the smallest",
    )


def check_memory(view: View, schema: Schema, tier: int, devices: Sequence[Device]) -> None:
    """Raise OutOfMemory if a tier's minimum memory exceeds the free memory of all devices."""
    from aftermath.replica.memory import free_bytes
    from aftermath.replica.pass_size import OutOfMemory
    from aftermath.replica.tier_memory import first_fitting, needs

    kind = devices[0].type
    needed = needs(schema, view.model.max_seq_len, view.run.config.init_min_clients, kind)
    free = sum(free_bytes(device) for device in set(devices))
    if needed[tier] <= free:
        return
    fits = first_fitting(needed, free)
    least, room = shortage(needed[tier], free)
    raise OutOfMemory(
        f"tier {tier} takes at least {least}, but only {room} are free on {kind}",
        "Free memory, or use another --device"
        + (f", or --matformer-tier {fits}" if fits is not None else ""),
    )


def choose_tier_here(
    view: View, wallet: bytes, schema: Schema, settings: TrainSettings, arithmetic: Arithmetic
) -> ChosenTier:
    """Choose the tier of a wallet for this machine's device. Print measurements on stderr."""
    from aftermath.replica.memory import free_bytes
    from aftermath.replica.replica import pick_device

    device = pick_device(settings.device)

    def measure(tier: int) -> int | None:
        return speed_here(schema, tier, view.model.max_seq_len, settings, arithmetic)

    return chosen(view, wallet, schema, device.type, free_bytes(device), measure)


def speed_here(
    schema: Schema, tier: int, seq_len: int, settings: TrainSettings, arithmetic: Arithmetic
) -> int | None:
    """Measure the sequences per minute of a tier. Return None if memory runs out.

    Announces the benchmark on stderr.
    """
    import time

    from aftermath.base.stdio import say
    from aftermath.replica.memory import give_back, is_out_of_memory
    from aftermath.replica.origin import Origin
    from aftermath.replica.pass_size import OutOfMemory, PassSize
    from aftermath.replica.replica import pick_device

    device = pick_device(settings.device)
    say(f"benchmarking tier {tier}: about 10 s once the model is made")
    size = PassSize(settings.micro_batch_size, settings.activation_checkpointing)
    origin = Origin(
        schema, tier, settings.matformer_load_strategy, device, size, time.monotonic, arithmetic
    )
    try:
        return origin.measure_weight(origin.stand_in(), seq_len)
    except OutOfMemory:
        return None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        give_back(device)
