"""Decide who can judge a share: a replay needs the precision of the member's passes."""

from __future__ import annotations

import torch

from aftermath.optim.schema import Schema
from aftermath.replica.replica import pass_settings
from aftermath.rules.announcements import PassSettings


def why_not_judge(claimed: PassSettings, schema: Schema, device: torch.device) -> str | None:
    """Return why a member on `device` cannot judge a share with these passes, or None."""
    # No bound separates bf16 shares of two devices (`audit.comparison.BOUND`). With fp32 products,
    # any device and any micro-batch may judge.
    if claimed.products != "fp32":
        return f"its products are in {claimed.products}, which other devices cannot repeat"
    if pass_settings(schema, 1, device, bf16=False).products != "fp32":
        return "Muon computes in bf16 on this device, but the result in fp32"
    return None
