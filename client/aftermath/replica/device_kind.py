"""The kind of a device: devices of one kind, with equal passes, compute the same bf16 products."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import torch

from aftermath.rules.fields import LONGEST_DEVICE_KIND

_CPU_INFO = Path("/proc/cpuinfo")
_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
"""Instructions that multiply bf16. A virtual machine may hide them."""


@lru_cache(maxsize=8)
def device_kind(device: torch.device) -> str:
    """Return the kind of a device, or an empty string if it is unknown.

    A kind has one model of device and one version of PyTorch, because both choose the kernels.
    """
    hardware = _gpu(device) if device.type == "cuda" else _cpu() if device.type == "cpu" else ""
    if not hardware:
        return ""
    kind = f"{hardware}, torch {torch.__version__}"
    return kind if re.fullmatch(r"[ -~]+", kind) and len(kind) <= LONGEST_DEVICE_KIND else ""


def _gpu(device: torch.device) -> str:
    # A part of a GPU (MIG) has other multiprocessors than the GPU, and another name.
    gpu = torch.cuda.get_device_properties(device)
    return f"{gpu.name} {gpu.major}.{gpu.minor}, {gpu.multi_processor_count} multiprocessors"


def _cpu() -> str:
    try:
        text = _CPU_INFO.read_text()
    except OSError:
        return ""
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    if name is None:
        return ""
    flags = text.split()
    found = [flag for flag in _INSTRUCTIONS if flag in flags]
    capability = torch.backends.cpu.get_cpu_capability()
    return " ".join([name[1].strip(), capability, *found])
