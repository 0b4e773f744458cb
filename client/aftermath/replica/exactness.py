"""Settings and self-tests that make a device compute the same bits as all others.

The apply (`optim.exact_signs`, `optim.integer_polar`) and the hash must be exact. Training may
round, because no other member repeats it (`optim.interfaces`).
"""

from __future__ import annotations

import contextlib
import os

import torch
from torch import Tensor

from aftermath.base.errors import Unsuitable
from aftermath.base.files import cache_directory
from aftermath.optim.dct_basis import COLUMN_SUM_BITS, basis
from aftermath.optim.exact_signs import MEAN_BITS
from aftermath.optim.integer_polar import exact_polar
from aftermath.replica.replica import pick_device

WORKSPACES = (":4096:8", ":16:8")
"""Values of CUBLAS_WORKSPACE_CONFIG with repeatable products. The first is the default."""
_EMULATION = ("CUBLAS_EMULATE_DOUBLE_PRECISION", "CUBLAS_EMULATE_SINGLE_PRECISION")
_KEPT = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
# Sizes of the test products, large enough that a library would emulate them.
_EDGE = 64
_ROWS = 4096
_SIDE = 256


def exact_device(name: str) -> torch.device:
    """Return the device of that name after configuring it to be exact.

    Raises Unsuitable, and what `pick_device` raises.
    """
    device = pick_device(name)
    set_exact()
    prove_cpu()
    if device.type == "cuda":
        prove(device)
    return device


def keep_compiled() -> None:
    """Keep torch's and Triton's compiled code in the user's cache directory.

    Their default, /tmp, may be emptied and may forbid execution. Environment variables override
    this.
    """
    for variable, name in _KEPT.items():
        if variable in os.environ:
            continue
        directory = cache_directory(name)
        with contextlib.suppress(OSError):  # if it is not writable, torch and Triton use /tmp
            directory.mkdir(parents=True, exist_ok=True)
            os.environ[variable] = str(directory)


def set_exact() -> None:
    """Configure torch before its first product. Raises Unsuitable if the environment forbids it."""
    # Forbid cuBLAS to emulate float64 and fp32 products with smaller numbers, because that rounds.
    # It sums in a fixed order only with a workspace of fixed size, which it reads before its first
    # product. Without TF32, a machine encodes equal gradients as equal bytes.
    workspace = os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACES[0])
    if workspace not in WORKSPACES:
        raise Unsuitable(
            f"CUBLAS_WORKSPACE_CONFIG is {workspace}, which makes products nondeterministic",
            f"Unset it, or set it to {' or '.join(WORKSPACES)}",
        )
    for variable in _EMULATION:
        if os.environ.setdefault(variable, "0") != "0":
            raise Unsuitable(
                f"{variable} is set, which rounds values that members must agree on", "Unset it"
            )
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_accumulation = False
    if is_exact():
        return
    raise Unsuitable(
        "this PyTorch computes fp32 products with TF32 although it is disabled",
        "Install another version of PyTorch",
    )


def is_exact() -> bool:
    """Return whether everything that `set_exact` sets is set."""
    return (
        os.environ.get("CUBLAS_WORKSPACE_CONFIG") in WORKSPACES
        and all(os.environ.get(variable) == "0" for variable in _EMULATION)
        and torch.get_float32_matmul_precision() == "highest"
        and not torch.backends.cuda.matmul.allow_tf32
        and not torch.backends.cudnn.allow_tf32
        and not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        and not torch.backends.cuda.matmul.allow_fp16_accumulation
    )


def prove_cpu() -> None:
    """Compare the CPU's fp32 products with integer products. Raises Unsuitable if one bit differs.

    oneDNN and MKL multiply in bfloat16 if the environment allows it, especially on ARM.
    """
    numbers = torch.zeros(_SIDE, _SIDE, dtype=torch.int64)
    places = torch.arange(_SIDE)
    # 12 bits
    numbers[places, places % 16] = 2895 - 2 * places
    numbers[places, 16 + places % 7] = 2 * places - 2895
    if not torch.equal(numbers.float() @ numbers.float().mT, (numbers @ numbers.mT).float()):
        raise Unsuitable(
            "this CPU multiplies fp32 with reduced precision, so its replica would diverge",
            "Unset the variables that enable it: DNNL_DEFAULT_FPMATH_MODE, "
            "ONEDNN_DEFAULT_FPMATH_MODE or MKL_BLAS_COMPUTE_MODE",
        )


def prove(device: torch.device) -> None:
    """Compare a device's exact products with the CPU's. Raises Unsuitable if one bit differs."""
    products = _products(device)
    expected = _products(torch.device("cpu"))
    for name, product in expected.items():
        if not torch.equal(products[name].cpu(), product):
            raise Unsuitable(
                f"{device} does not compute {name} exactly, so its replica would diverge",
                "Use --device cpu, or another version of PyTorch or the driver",
            )


def _products(device: torch.device) -> dict[str, Tensor]:
    """Return, by name, products that only plain arithmetic computes exactly, up to their bounds."""
    draws = torch.Generator().manual_seed(2)
    most = 1 << MEAN_BITS
    means = torch.randint(-most, most + 1, (_ROWS, _EDGE), generator=draws).double()
    signs = basis(_EDGE, torch.float64, torch.device("cpu")).sign().T
    means[:_EDGE] = most * signs  # sums near 2^53
    means[:_EDGE, 1] -= signs[:, 1]  # odd sums, which take all 53 bits
    matrix = torch.randn(_SIDE, _SIDE + 8, generator=draws)
    sums = means.to(device) @ basis(_EDGE, torch.float64, device)
    rounded = sums.mul(2.0**-COLUMN_SUM_BITS).round_()
    return {
        "sums of votes": sums,
        "roundings": rounded,
        "polar factors": exact_polar(matrix.to(device)),
    }
