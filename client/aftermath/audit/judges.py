"""Decide who can judge a share: a replay needs the precision of the member's passes."""

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
    """Return why a member on `device` cannot judge a share with these passes, or None.

    `compiles`: whether its own passes are compiled.
    """
    # No bound separates bf16 shares of two kinds of device (`audit.comparison.BOUND`). With fp32
    # products, any device and any micro-batch may judge.
    steps = step_products(schema, device)
    if claimed.is_fp32:
        return None if steps == "fp32" else "Muon computes in bf16 here, but the result in fp32"
    if not claimed.device:
        return "no other machine can repeat its bf16 products"
    if claimed.device != device_kind(device):
        return f"its products are in bf16, which only another {claimed.device} can repeat"
    if claimed.steps != steps or (claimed.products == "bf16" and not has_bf16(device)):
        return f"a {claimed.device} does not compute with the precision that the member states"
    if claimed.compiled and not compiles:  # a false claim must not start a compiler here
        return "its bf16 passes are compiled, and this member compiles none"
    return None
