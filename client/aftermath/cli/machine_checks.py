"""Checks of this machine and of its network to other members, for `cli.check_list`.

Only a relay can report how other machines see this one. The checks contact no member.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import platform
import re
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from aftermath.cli.findings import Finding, Subject, broken, dubious, fine

LEAST_DISK = 2 << 30
"""Bytes for caches, logs and locks, without checkpoints."""
_HUB_SECONDS = 5.0
_DRIVER = Path("/proc/driver/nvidia/version")
CONNECT_SECONDS = 4.0
RELAY_SECONDS = 4.5
"""Timeouts. Closing the endpoints takes the rest of 5 seconds each."""
_NO_RELAY = (
    "pass members with --peer KEY@HOST:PORT, or forward a UDP port of the router to --bind-p2p-port"
)


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
    least_free, fullest_path = min((free, path) for path, free in free_by_path.items())
    text = f"{least_free / 1e9:.1f} GB free at {fullest_path}"
    if least_free < LEAST_DISK:
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


def metrics_port(subject: Subject) -> Finding | None:
    """Check that the port for metrics is free."""
    from aftermath.events.metrics import ADDRESS

    port = subject.metrics_port
    if port is None:
        return None
    try:
        socket.create_server((ADDRESS, port)).close()
    except OSError as error:
        return broken(
            f"cannot listen on TCP port {port} of {ADDRESS} for metrics: {error.strerror}",
            "Stop the program that uses it, or choose another with --metrics-port",
        )
    return fine(f"TCP port {port} is free for metrics")


async def udp(subject: Subject) -> Finding:
    """Check that two QUIC endpoints of this machine reach each other, the first at the member's
    port.
    """
    from aftermath.p2p.iroh import IrohTransport, check_interface, open_iroh
    from aftermath.p2p.transport import BindFailed

    check_interface(subject.interface)
    endpoints: list[IrohTransport] = []
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            for port in (subject.bind_port, 0):
                try:
                    transport = await open_iroh(
                        secrets.token_bytes(32),
                        bind_port=port,
                        bind_host=subject.interface,
                        relay="disabled",
                        discovery="local",
                        discovery_dir=Path(directory) / "peers",
                    )
                except BindFailed as error:
                    return broken(error.message, error.fix)
                stack.push_async_callback(transport.close)
                endpoints.append(transport)
            for transport in endpoints:
                transport.set_members([endpoint.node_id for endpoint in endpoints])
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    while not all(endpoint.reachable() for endpoint in endpoints):
                        await asyncio.sleep(0.02)
            except TimeoutError:
                return broken(
                    f"UDP is blocked: two endpoints of this machine do not reach each other in {CONNECT_SECONDS:.0f} s",
                    "Let the firewall of this machine pass UDP, on loopback as well",
                )
    port_text = (
        f"UDP port {subject.bind_port}" if subject.bind_port else "a UDP port that the system chose"
    )
    interface_text = f" of {subject.interface}" if subject.interface else ""
    return fine(
        f"QUIC works on this machine, at {port_text}{interface_text}; "
        "whether other machines reach it cannot be tested from here",
        "If they do not: forward a UDP port of the router and pass it as --bind-p2p-port, pass members of your own "
        "network as --peer KEY@HOST:PORT, or use a relay: --iroh-relay n0 or its URL",
    )


async def relay(subject: Subject) -> Finding:
    """Check that the relay of `train` accepts this machine, and sees a UDP address that others
    could reach.
    """
    from aftermath.p2p.iroh import reachable_via_relay
    from aftermath.p2p.relay import AUTO, DISABLED, N0

    chosen = subject.relay
    # without a cluster, contact a relay only if the user names one
    if chosen == AUTO and (subject.chain is None or not subject.answers):
        return fine(
            "no relay was tested",
            "Pass --iroh-relay n0 or --iroh-relay URL, or pass --rpc with a cluster that answers",
        )
    if chosen == AUTO:
        assert subject.chain is not None
        chosen = DISABLED if subject.chain.pool.is_local else N0
    if chosen == DISABLED:
        return fine(
            "no relay is used: members have to reach each other directly",
            f"If they do not, {_NO_RELAY}",
        )
    reached = await reachable_via_relay(chosen, subject.interface, RELAY_SECONDS)
    return relay_finding(
        chosen, None if reached is None else reached.addresses, is_named=subject.relay != AUTO
    )


def relay_finding(chosen: str, addresses: Sequence[str] | None, *, is_named: bool) -> Finding:
    """Judge a relay by the addresses at which it sees this machine. None: the relay did not accept
    it.

    `is_named`: the user passed this relay, so its absence is a failure.
    """
    from aftermath.p2p.relay import N0

    name = "n0's relay" if chosen == N0 else f"the relay {chosen}"
    if addresses is None:
        return (broken if is_named else dubious)(
            f"{name} did not accept this machine within {RELAY_SECONDS} s: members can reach it only directly",
            _unreached(chosen),
        )
    if public := [address for address in addresses if _is_public(address)]:
        return fine(
            f"{name} accepts this machine, which others may also reach directly at {', '.join(public)}"
        )
    return (dubious if chosen == N0 else fine)(
        f"{name} accepts this machine but sees no public UDP address of it: it relays members elsewhere",
        "For direct connections let the firewall pass UDP to port 7842 of the relay and to members; your own relay "
        "needs TLS and enable_quic_addr_discovery = true. Members of one network need none of this",
    )


def _unreached(chosen: str) -> str:
    """Return the fix for a relay that is out of reach."""
    from urllib.parse import urlsplit

    from aftermath.p2p.relay import N0

    if chosen == N0:
        return (
            "Let the firewall pass TCP port 443, or use your own relay: --iroh-relay URL; "
            f"without a relay, {_NO_RELAY}"
        )
    parts = urlsplit(chosen)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return (
        f"Check that iroh-relay runs at {parts.hostname}, that firewalls pass TCP port {port}, and that this machine "
        "trusts its certificate; or pass --iroh-relay n0 or disabled"
    )


def _is_public(address: str) -> bool:
    return ipaddress.ip_address(address.rpartition(":")[0].strip("[]").partition("%")[0]).is_global
