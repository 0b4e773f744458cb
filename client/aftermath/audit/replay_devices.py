"""Decide which devices can replay a share, and in which passes."""

from __future__ import annotations

import torch

from aftermath.optim.schema import Schema
from aftermath.replica.device_kind import device_kind
from aftermath.replica.passes import has_bf16
from aftermath.replica.replica import step_products
from aftermath.rules.announcements import PassSettings


def needs_same_passes(claimed: PassSettings, schema: Schema) -> bool:
    """Return whether only the same kind of device, in the same passes, can replay a share."""
    # bf16 products of two kinds of device differ too much, and Muon amplifies even the rounding of
    # fp32 (`audit.comparison.MUON_BOUNDS`).
    return not claimed.is_fp32 or schema.optimizer.inner_optimizer == "muon"


def why_no_replay(
    claimed: PassSettings, schema: Schema, device: torch.device, *, compiles: bool
) -> str | None:
    """Return why a member on `device` cannot replay a share with these passes, or None.

    `compiles`: whether this member compiles its own passes.
    """
    if not needs_same_passes(claimed, schema):
        return None
    if not claimed.device:
        return "no other machine can repeat the passes of an unknown device"
    if claimed.device != device_kind(device):
        return f"only another {claimed.device} can repeat its passes"
    lacks_bf16 = claimed.products == "bf16" and not has_bf16(device)
    if lacks_bf16 or claimed.steps != step_products(schema, device):
        return f"a {claimed.device} would not use the precision that the member states"
    if claimed.compiled and not compiles:  # a false claim must not start a compiler here
        return "its passes are compiled, and this member does not compile"
    return None
