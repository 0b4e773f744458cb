"""What `doctor` looks at on this machine, without any network but loopback."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from aftermath.base.directories import cache_directory, state_directory
from aftermath.base.errors import AftermathError
from aftermath.chain.wallet import DEFAULT_PATH, WALLET_VARIABLE, Wallet, load_wallet
from aftermath.cli.findings import Findings
from aftermath.model.store import RESERVE

PACKAGE = "aftermath"
SPARE_DISK = 5 << 30
"""Free bytes below which a warning is due: checkpoints, data and logs all need some."""
_DRIVER = Path("/proc/driver/nvidia/version")


def look_at_packages(findings: Findings) -> None:
    """Python, and every package that this one requires."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    about = metadata.metadata(PACKAGE)
    version = sys.version.split()[0]
    if version in SpecifierSet(about["Requires-Python"], prereleases=True):
        findings.ok("python", version)
    else:
        findings.fail("python", f"{version}, and {about['Requires-Python']} is needed", "Install a newer Python")
    wrong = []
    for requirement in map(Requirement, metadata.requires(PACKAGE) or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement} is missing")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement} is needed, and {found} is there")
    if wrong:
        findings.fail("packages", "; ".join(wrong), "Install what is needed: make env, or pip install aftermath anew")
    else:
        findings.ok("packages", f"{PACKAGE} {metadata.version(PACKAGE)} has all that it requires")


def look_at_device(findings: Findings, device: str) -> int | None:
    """torch and the device; free bytes of its memory, None if there is no such device."""
    import torch

    from aftermath.ranks.place import place_of
    from aftermath.replica.exactness import exact_device
    from aftermath.replica.memory import free_bytes

    with findings.failing("device"):
        place = place_of(device, 0, 1)
        exact_device(device)
        names = [_named(one) for one in place.devices]
        findings.ok("device", f"{', '.join(names)}; torch {torch.__version__}, exact")
        if place.devices[0].type == "cpu" and device == "auto" and _DRIVER.exists():
            findings.warn(
                "driver",
                "the driver of an NVIDIA GPU is loaded, and torch sees no GPU",
                "Install a PyTorch for this driver (pytorch.org says which), or name --device cpu",
            )
        free = sum(free_bytes(one) for one in place.devices)
        findings.ok("memory", f"{free / 1e9:.1f} GB of {place.devices[0].type.upper()} memory are free")
        return free
    return None


def _named(device: object) -> str:
    import torch

    assert isinstance(device, torch.device)
    if device.type != "cuda":
        return f"{device} ({os.cpu_count()} cores)" if device.type == "cpu" else str(device)
    first = _DRIVER.read_text().partition("\n")[0].strip() if _DRIVER.exists() else "driver unknown"
    return f"{device} ({torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, {first})"


def look_at_disk(findings: Findings) -> None:
    """Room where this client, the Hub's library and the system keep files."""
    hub = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    places = {
        "cache": cache_directory(""),
        "errors": state_directory(),
        "Hub": hub,
        "temporary": Path(tempfile.gettempdir()),
    }
    short = []
    for name, place in places.items():
        there = next(part for part in (place, *place.parents) if part.exists())
        free = shutil.disk_usage(there).free
        if not os.access(there, os.W_OK):
            findings.fail("disk", f"{there} ({name}) cannot be written", "Make it writable to you", "file")
        elif free < RESERVE:
            findings.fail("disk", f"{free / 1e9:.1f} GB are free at {there} ({name})", "Make room there", "file")
        elif free < SPARE_DISK:
            short.append(f"{free / 1e9:.1f} GB at {there} ({name})")
    if short:
        findings.warn("disk", "not much is free: " + ", ".join(short), "Make room for checkpoints and data")
    if findings.all_ok("disk"):
        findings.ok("disk", f"{shutil.disk_usage(Path.cwd()).free / 1e9:.1f} GB are free here, and enough elsewhere")


def look_at_wallet(findings: Findings, path: Path | None, *, mend: bool) -> Wallet | None:
    """The wallet's key file: whether it is one, and is nobody else's to read; `mend` makes it so."""
    file = path.expanduser() if path is not None else None
    if file is None and not os.environ.get(WALLET_VARIABLE):
        file = DEFAULT_PATH.expanduser()
        if not file.exists():
            findings.warn(
                "wallet",
                "no wallet was named, and the Solana CLI has none",
                "Name it with -w FILE; a new one is made by: aftermath-solana show-identity --create -w FILE",
            )
            return None
    try:
        open_to = _open_to_others(file) if file is not None and file.is_file() else 0
        wallet = load_wallet_quietly(file)
    except AftermathError as error:
        findings.fail("wallet", error.message, error.fix, error.code)
        return None
    if file is None or not open_to:
        findings.ok("wallet", f"{wallet.pubkey}, from {wallet.source}" + (", mode 0600" if file else ""))
    elif mend:
        file.chmod(0o600)
        findings.ok("wallet", f"{wallet.pubkey}, from {file}; its mode was {open_to:04o} and is 0600 now")
    else:
        findings.warn(
            "wallet",
            f"other users can read {file} (mode {open_to:04o})",
            f"Take that from them: chmod 600 {file}, or aftermath-solana doctor --fix",
        )
    return wallet


def load_wallet_quietly(file: Path | None) -> Wallet:
    """As `load_wallet`, whose warning is a finding here."""
    import logging

    logger = logging.getLogger("aftermath.chain.wallet")
    was, logger.disabled = logger.disabled, True
    try:
        return load_wallet(file)
    finally:
        logger.disabled = was


def _open_to_others(file: Path) -> int:
    mode = stat.S_IMODE(file.stat().st_mode)
    return mode if mode & (stat.S_IRWXG | stat.S_IRWXO) else 0


def look_at_hub(findings: Findings) -> None:
    """The token of the Hub."""
    token = os.environ.get("HF_TOKEN", "")
    if not token:
        findings.ok("hub token", "HF_TOKEN is not set: public checkpoints can be read, and none be written")
    elif not token.startswith("hf_") or token != token.strip():
        findings.warn("hub token", "HF_TOKEN is not what a token looks like", "Set it to one of yours (hf_…)")
    else:
        findings.unknown("hub token", "HF_TOKEN is set; what it may do was not asked of the Hub")


def look_at_port(findings: Findings, port: int) -> None:
    """The UDP port that peers are to find."""
    if not port:
        findings.ok("port", "UDP: the system chooses a free one (--bind-p2p-port fixes it)")
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            findings.fail(
                "port",
                f"UDP port {port} cannot be had: {error.strerror}",
                "Stop the program that has it, or choose another with --bind-p2p-port (0 lets the system choose)",
                "bind",
            )
        else:
            findings.ok("port", f"UDP {port} is free")
