"""Decide whether a device may use Triton kernels or torch does the work.

A replica with different bits would diverge from all others. So before its first use on a device, a
kernel's output is compared bit by bit with torch's. A kernel that differs or does not compile is
not used, and the reason is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec

import torch

logger = logging.getLogger(__name__)


def works_on(device: torch.device) -> bool:
    """Return whether the device can run Triton kernels."""
    return device.type == "cuda" and torch.cuda.is_available() and find_spec("triton") is not None


def proven(device: torch.device, alike: Callable[[torch.device], bool], what: str) -> bool:
    """Return whether kernels and torch give equal results on a device, according to `alike`. If
    not, log why.

    `what` is the log's wording for a difference, for example "differ from torch".
    """
    try:
        if alike(device):
            return True
    except Exception as error:  # the compiler may raise anything; torch does the same work
        what = f"fail: {(str(error).strip() or repr(error)).splitlines()[0]}"
    logger.warning("Triton kernels on %s %s; using torch instead", device, what)
    return False
