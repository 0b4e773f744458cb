"""What a device needs so that it computes the bits that all others compute: set here, once, and then proved.

Decided
- Exact are the apply and the hash; the products of an apply are of float64 (`optim.exact`) or of fp32 (`optim.polar`).
  cuBLAS may emulate these with smaller numbers, which rounds; that is switched off, and products that only plain ones
  get right are compared with the CPU's before anything is joined, and the CPU's with whole numbers. MPS has no
  float64, and leaves them to the CPU.
- fp32 products keep fp32's bits everywhere (no TF32): that is exact, and one machine encodes the same bytes of the same
  gradients.
- cuBLAS sums in one order only if its workspace has a fixed size, which it reads before its first product.
- Training itself may round as it likes: nobody else has to compute it (`optim.parts`).
"""

from __future__ import annotations

import contextlib
import os

import torch
from torch import Tensor

from aftermath.base.directories import cache_directory
from aftermath.base.errors import Unsuitable
from aftermath.optim.basis import COLUMN_SUM_BITS, basis
from aftermath.optim.exact import MEAN_BITS
from aftermath.optim.polar import exact_polar
from aftermath.replica.replica import pick_device

WORKSPACES = (":4096:8", ":16:8")
"""The values of CUBLAS_WORKSPACE_CONFIG with which products are repeatable; the first is set where there is none."""
_EMULATION = ("CUBLAS_EMULATE_DOUBLE_PRECISION", "CUBLAS_EMULATE_SINGLE_PRECISION")
_KEPT = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_EDGE, _ROWS, _SIDE = 64, 4096, 256  # of the products that prove: large enough to be worth emulating


def exact_device(name: str) -> torch.device:
    """The device of that name, set so that it is exact. Raises what `pick_device` does, and Unsuitable if it is not."""
    device = pick_device(name)
    set_exact()
    prove_cpu()
    if device.type == "cuda":
        prove(device)
    return device


def keep_compiled() -> None:
    """Have what torch and Triton compile kept in the user's cache directory, so that the next start compiles nothing.

    They would keep it in /tmp, which is emptied, and may forbid to run anything. What the environment says counts.
    """
    for variable, name in _KEPT.items():
        if variable in os.environ:
            continue
        place = cache_directory(name)
        with contextlib.suppress(OSError):  # a cache that cannot be written is left to them
            place.mkdir(parents=True, exist_ok=True)
            os.environ[variable] = str(place)


def set_exact() -> None:
    """Before anything is computed. Raises Unsuitable for an environment that asks for something else."""
    workspace = os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACES[0])
    if workspace not in WORKSPACES:
        raise Unsuitable(
            f"CUBLAS_WORKSPACE_CONFIG is {workspace}, and products would not be repeatable",
            f"Unset it, or set it to {' or '.join(WORKSPACES)}",
        )
    for variable in _EMULATION:
        if os.environ.setdefault(variable, "0") != "0":
            raise Unsuitable(f"{variable} is set, and what members have to agree on would be rounded", "Unset it")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if is_exact():
        return
    raise Unsuitable("this PyTorch computes fp32 products with TF32 whatever it is told", "Install another version")


def is_exact() -> bool:
    """Whether everything is set that `set_exact` sets."""
    return (
        os.environ.get("CUBLAS_WORKSPACE_CONFIG") in WORKSPACES
        and all(os.environ.get(variable) == "0" for variable in _EMULATION)
        and torch.get_float32_matmul_precision() == "highest"
        and not torch.backends.cuda.matmul.allow_tf32
        and not torch.backends.cudnn.allow_tf32
    )


def prove_cpu() -> None:
    """Compare fp32 products of the CPU with those of whole numbers. Raises Unsuitable if one bit differs.

    oneDNN and MKL multiply in bfloat16 where the environment allows it, on ARM above all.
    """
    numbers = torch.zeros(_SIDE, _SIDE, dtype=torch.int64)
    places = torch.arange(_SIDE)
    numbers[places, places % 16], numbers[places, 16 + places % 7] = 2895 - 2 * places, 2 * places - 2895  # 12 bits
    if not torch.equal(numbers.float() @ numbers.float().mT, (numbers @ numbers.mT).float()):
        raise Unsuitable(
            "this CPU multiplies fp32 with fewer bits, and its replica would part from all others",
            "Unset what asks for it, as DNNL_DEFAULT_FPMATH_MODE, ONEDNN_DEFAULT_FPMATH_MODE or MKL_BLAS_COMPUTE_MODE",
        )


def prove(device: torch.device) -> None:
    """Compare exact products with the CPU's. Raises Unsuitable if one bit differs."""
    here, there = _products(device), _products(torch.device("cpu"))
    for name, product in there.items():
        if not torch.equal(here[name].cpu(), product):
            raise Unsuitable(
                f"{device} does not compute {name} exactly, and its replica would part from all others",
                "Use --device cpu, or another version of PyTorch or of the driver",
            )


def _products(device: torch.device) -> dict[str, Tensor]:
    """By name what plain products alone compute exactly, with numbers up to their very bounds."""
    draws, most = torch.Generator().manual_seed(2), 1 << MEAN_BITS
    means = torch.randint(-most, most + 1, (_ROWS, _EDGE), generator=draws).double()
    signs = basis(_EDGE, torch.float64, torch.device("cpu")).sign().T
    means[:_EDGE] = most * signs  # sums near 2^53
    means[:_EDGE, 1] -= signs[:, 1]  # odd ones, that is, which take all 53 bits
    matrix = torch.randn(_SIDE, _SIDE + 8, generator=draws)
    sums = means.to(device) @ basis(_EDGE, torch.float64, device)
    rounded = sums.mul(2.0**-COLUMN_SUM_BITS).round_()
    return {"sums of votes": sums, "roundings": rounded, "polar factors": exact_polar(matrix.to(device))}
