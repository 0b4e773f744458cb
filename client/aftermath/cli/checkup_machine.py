"""What `doctor` looks at on this machine alone: Python, torch, memory, disk, the wallet's file, the Hub's token."""

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

from aftermath.cli.checkup import Check, Finding, Subject, broken, dubious, fine

LEAST_DISK = 2 << 30
"""Bytes for caches, logs and locks; a checkpoint comes on top."""
_HUB_SECONDS = 5.0
_DRIVER = Path("/proc/driver/nvidia/version")


async def python(_: Subject) -> Finding:
    """Python, and the packages that this one asks for."""
    try:
        asked = requires("aftermath") or []
    except PackageNotFoundError:
        return dubious("aftermath runs from its source and is not installed", "Install it: make env")
    if wrong := [*_unmet(asked)]:
        return broken(f"packages do not fit: {'; '.join(wrong)}", "Install it anew: make env")
    return fine(f"Python {platform.python_version()}, aftermath {version('aftermath')}, all packages it asks for")


def _unmet(asked: list[str]) -> Iterator[str]:
    for line in asked:
        requirement, _, marker = line.partition(";")
        if "extra" in marker:
            continue
        name = re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]
        bounds = re.findall(r"(>=|==|<)\s*([0-9.]+)", requirement)
        try:
            there = version(name)
        except PackageNotFoundError:
            yield f"{name} is not installed"
            continue
        for sign, bound in bounds:
            ours, theirs = _numbers(there), _numbers(bound)
            met = {">=": ours >= theirs, "<": ours < theirs, "==": ours[: len(theirs)] == theirs}[sign]
            if not met:
                yield f"{name} is {there}, and {sign}{bound} is asked for"


def _numbers(text: str) -> tuple[int, ...]:
    """The release of a version; what follows it counts for nothing."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


async def torch_and_device(subject: Subject) -> Finding:
    """Whether the device is there, and computes the bits that all others compute."""
    import torch

    from aftermath.ranks.mesh import mesh_of
    from aftermath.replica.exactness import exact_device

    mesh_of(subject.device, 0, 1)
    device = exact_device(subject.device)
    said = f"PyTorch {torch.__version__}, {device}"
    if device.type == "cuda":
        said += f" ({torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda})"
    elif device.type == "cpu" and subject.device == "auto" and _has_nvidia_driver():
        return dubious(
            f"{said}: an NVIDIA driver is here, and this PyTorch does not use it",
            "Install a PyTorch built for CUDA (docs/devices.md), or say --device cpu if that is meant",
        )
    return fine(f"{said}: its products are exact")


def _has_nvidia_driver() -> bool:
    return _DRIVER.exists()


async def memory(subject: Subject) -> Finding:
    """What is free, and which tier of the run's model fits into it."""
    from aftermath.replica.fit import first_fitting
    from aftermath.replica.memory import free_bytes
    from aftermath.replica.replica import pick_device

    device = pick_device(subject.device)
    free = free_bytes(device)
    said = f"{free / 1e9:.1f} GB free on {device}"
    needed = _needed(subject, device.type)
    if needed is None:
        return fine(f"{said}; which tier fits is said with --rpc and --run-id")
    sizes = ", ".join(f"{tier}: {size / 1e9:.2f} GB" for tier, size in enumerate(needed))
    said = f"{said}; tiers of the run need, at least, {sizes}"
    fits = first_fitting(needed, free)
    if fits is None:
        return broken(f"{said}: none fits", "Free memory, or take another --device")
    tier = fits if subject.tier is None else subject.tier
    if tier < len(needed) and needed[tier] > free:
        return broken(f"{said}: tier {tier} does not fit", f"Take --matformer-tier {fits}, which does")
    return fine(f"{said}: tier {fits} fits", f"Take --matformer-tier {fits}" if fits != tier else "")


def _needed(subject: Subject, device: str) -> list[int] | None:
    """By tier of the run's model, None where it is not known; why it is not, another check says."""
    from aftermath.base.errors import AftermathError
    from aftermath.replica.fit import needs
    from aftermath.train.outfit import schema_of

    if subject.view is None:
        return None
    run, model = subject.view.run, subject.view.model
    try:
        schema = schema_of(model, run.run_id, access=subject.access())
    except AftermathError:
        return None
    return needs(schema, model.max_seq_len, run.config.init_min_clients, device)


async def disk(_: Subject) -> Finding:
    """Room where caches, errors and temporary files go."""
    from aftermath.base.files import cache_directory, state_directory

    places = {str(place): _free_at(place) for place in (cache_directory(""), state_directory(), Path.cwd())}
    places[tempfile.gettempdir()] = _free_at(Path(tempfile.gettempdir()))
    least, where = min((free, place) for place, free in places.items())
    said = f"{least / 1e9:.1f} GB free at {where}"
    if least < LEAST_DISK:
        return dubious(
            said,
            "Free some, or move caches with XDG_CACHE_HOME, HF_HOME and TMPDIR; a checkpoint has 4 bytes a parameter",
        )
    return fine(said)


def _free_at(place: Path) -> int:
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


async def wallet(subject: Subject) -> Finding:
    """Whether there is a key, and whether only its owner reads it."""
    from aftermath.chain.wallet import DEFAULT_PATH, WALLET_VARIABLE, WalletError, load_wallet

    asked = subject.wallet_path is not None or subject.run_id is not None
    try:
        subject.wallet = load_wallet(subject.wallet_path)
    except WalletError as error:
        return (broken if asked else dubious)(error.message, error.fix)
    key = subject.wallet.pubkey
    if subject.wallet.source == WALLET_VARIABLE:
        return fine(f"{key}, from {WALLET_VARIABLE}")
    path = (subject.wallet_path or DEFAULT_PATH).expanduser()
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return fine(f"{key}, from {path}")
    if subject.mend:
        path.chmod(0o600)
        return fine(f"{key}, from {path}: its mode was {mode:04o} and is 0600 now")
    return broken(
        f"other users may read the key file {path} (mode {mode:04o})", f"Run chmod 600 {path}, or doctor --fix"
    )


async def hub_token(_: Subject) -> Finding:
    """Whether the Hub takes the token; without one only what is public can be read."""
    token = os.environ.get("HF_TOKEN", "")
    if not token:
        return fine("no HF_TOKEN: public repositories can be read, none written")
    import httpx

    from aftermath.base.proxies import ProxyTransport

    base = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    try:
        async with httpx.AsyncClient(timeout=_HUB_SECONDS, transport=ProxyTransport()) as session:
            answer = await session.get(f"{base}/api/whoami-v2", headers={"Authorization": f"Bearer {token}"})
    except (httpx.HTTPError, ValueError) as error:
        return dubious(f"HF_TOKEN is set, and {base} does not answer ({type(error).__name__})", "Check the network")
    if answer.status_code in (401, 403):
        return broken(f"{base} does not take HF_TOKEN", "Make a new one at https://huggingface.co/settings/tokens")
    if answer.status_code != 200:
        return dubious(f"{base} answered {answer.status_code} when asked about HF_TOKEN", "Try again later")
    return fine(f"{base} takes HF_TOKEN")


ON_ANY_MACHINE: tuple[tuple[str, Check], ...] = (
    ("python", python),
    ("torch", torch_and_device),
    ("disk", disk),
    ("hub-token", hub_token),
)
"""What does not depend on a wallet."""
ON_THE_MACHINE: tuple[tuple[str, Check], ...] = (
    ("python", python),
    ("torch", torch_and_device),
    ("disk", disk),
    ("wallet", wallet),
    ("hub-token", hub_token),
)
