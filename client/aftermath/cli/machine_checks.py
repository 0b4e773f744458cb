"""Checks of this machine alone: Python, PyTorch and the device, disk, the wallet's file, the Hub's
token.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from aftermath.cli.findings import Finding, Subject, broken, dubious, fine

LEAST_DISK = 2 << 30
"""Bytes for caches, logs and locks, without checkpoints."""
_HUB_SECONDS = 5.0
_DRIVER = Path("/proc/driver/nvidia/version")


def python(_: Subject) -> Finding:
    """Check that the packages that aftermath requires are installed in the right versions."""
    try:
        requirements = requires("aftermath") or []
    except PackageNotFoundError:
        return dubious(
            "aftermath runs from its source and is not installed", "Install it: make env"
        )
    if unmet := [*_unmet(requirements)]:
        return broken(f"wrong packages: {'; '.join(unmet)}", "Install them again: make env")
    return fine(
        f"Python {platform.python_version()}, aftermath {version('aftermath')}, all packages it requires"
    )


def _unmet(requirements: list[str]) -> Iterator[str]:
    for line in requirements:
        requirement, _, marker = line.partition(";")
        if "extra" in marker:
            continue
        name = re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]
        bounds = re.findall(r"(>=|==|<)\s*([0-9.]+)", requirement)
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield f"{name} is not installed"
            continue
        for sign, bound in bounds:
            installed_numbers = _numbers(installed)
            bound_numbers = _numbers(bound)
            met = {
                ">=": installed_numbers >= bound_numbers,
                "<": installed_numbers < bound_numbers,
                "==": installed_numbers[: len(bound_numbers)] == bound_numbers,
            }[sign]
            if not met:
                yield f"{name} is {installed}, but {sign}{bound} is required"


def _numbers(text: str) -> tuple[int, ...]:
    """Return the release numbers of a version, without what follows them."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def torch_and_device(subject: Subject) -> Finding:
    """Check that the device exists, and that it computes the same bits as all others."""
    import torch

    from aftermath.parallel.mesh import mesh_of
    from aftermath.replica.exactness import exact_device

    subject.mesh = mesh_of(subject.device, 0, 1)
    device = exact_device(subject.device)
    text = f"PyTorch {torch.__version__}, {device}"
    if device.type == "cuda":
        text += f" ({torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda})"
    elif device.type == "cpu" and subject.device == "auto" and _has_nvidia_driver():
        return dubious(
            f"{text}: this machine has an NVIDIA driver, but this PyTorch does not use it",
            "Install a PyTorch built for CUDA (docs/operations.md#on-a-gpu), or pass --device cpu if you want the CPU",
        )
    return fine(f"{text}: it passed the numerical check")


def _has_nvidia_driver() -> bool:
    return _DRIVER.exists()


def disk(_: Subject) -> Finding:
    """Check the free space for caches, error reports and temporary files."""
    from aftermath.base.files import cache_directory, state_directory

    free_by_path = {
        str(path): _free_at(path) for path in (cache_directory(""), state_directory(), Path.cwd())
    }
    free_by_path[tempfile.gettempdir()] = _free_at(Path(tempfile.gettempdir()))
    least, fullest = min((free, path) for path, free in free_by_path.items())
    text = f"{least / 1e9:.1f} GB free at {fullest}"
    if least < LEAST_DISK:
        return dubious(
            text,
            "Free some space, or move caches with XDG_CACHE_HOME, HF_HOME and TMPDIR; a checkpoint takes 4 bytes per "
            "parameter",
        )
    return fine(text)


def _free_at(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def wallet(subject: Subject) -> Finding:
    """Check that there is a key file, and that only its owner can read it."""
    from aftermath.chain.wallet import (
        DEFAULT_PATH,
        NO_WALLET,
        WALLET_VARIABLE,
        WalletError,
        load_wallet,
    )

    required = subject.wallet_path is not None or subject.run_id is not None
    try:
        loaded = load_wallet(subject.wallet_path)
    except WalletError as error:
        if required or error.message != NO_WALLET:
            return (broken if required else dubious)(error.message, error.fix)
        return fine("skipped, because no wallet was given", "Pass a key file with -w FILE")
    key = loaded.pubkey
    subject.wallet = key
    if loaded.source == WALLET_VARIABLE:
        return fine(f"{key}, from {WALLET_VARIABLE}")
    path = (subject.wallet_path or DEFAULT_PATH).expanduser()
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return fine(f"{key}, from {path}")
    if subject.repair:
        path.chmod(0o600)
        return fine(f"{key}, from {path}: its mode was {mode:04o} and is 0600 now")
    return broken(
        f"other users may read the key file {path} (mode {mode:04o})",
        f"Run chmod 600 {path}, or doctor --fix",
    )


async def hub_token(_: Subject) -> Finding:
    """Check that the Hub accepts the token. Without one, only public repositories can be read."""
    token = os.environ.get("HF_TOKEN", "")
    if not token:
        return fine("no HF_TOKEN: only public repositories can be read, and none written")
    import httpx

    from aftermath.base.proxies import ProxyTransport

    base = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    try:
        async with httpx.AsyncClient(timeout=_HUB_SECONDS, transport=ProxyTransport()) as session:
            answer = await session.get(
                f"{base}/api/whoami-v2", headers={"Authorization": f"Bearer {token}"}
            )
    except (httpx.HTTPError, ValueError) as error:
        return dubious(
            f"HF_TOKEN is set, but {base} does not answer ({type(error).__name__})",
            "Check the network",
        )
    if answer.status_code in (401, 403):
        return broken(
            f"{base} refuses HF_TOKEN",
            "Create a new token at https://huggingface.co/settings/tokens",
        )
    if answer.status_code != 200:
        return dubious(
            f"{base} answered {answer.status_code} when asked about HF_TOKEN", "Try again later"
        )
    return fine(f"{base} accepts HF_TOKEN")
