"""Decide which devices can replay a share: they need the precision of the member's passes."""

from __future__ import annotations

import torch

from aftermath.optim.schema import Schema
from aftermath.replica.device_kind import device_kind
from aftermath.replica.passes import has_bf16
from aftermath.replica.replica import step_products
from aftermath.rules.announcements import PassSettings


def why_not_judge(
    claimed: PassSettings, schema: Schema, device: torch.device, *, compiles: bool
) -> str | None:
    """Return why a member on `device` cannot replay a share with these passes, or None.

    `compiles`: whether this member compiles its own passes.
    """
    # bf16 products of two kinds of device differ too much (`audit.comparison.BOUND`). fp32 products
    # can be replayed on any device, with any micro-batch size.
    steps = step_products(schema, device)
    if claimed.is_fp32:
        if steps == "fp32":
            return None
        return "this device runs Muon in bf16, but the member ran it in fp32"
    if not claimed.device:
        return "no other machine can repeat bf16 products of an unknown device"
    if claimed.device != device_kind(device):
        return f"only another {claimed.device} can repeat its bf16 products"
    if claimed.steps != steps or (claimed.products == "bf16" and not has_bf16(device)):
        return f"a {claimed.device} would not use the precision that the member states"
    if claimed.compiled and not compiles:  # a false claim must not start a compiler here
        return "its bf16 passes are compiled, and this member does not compile"
    return None
