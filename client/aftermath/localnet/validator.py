"""The real `solana-test-validator` as a local network, which ends with its parent.

The binary is that of AFTERMATH_VALIDATOR, else of PATH, else ~/.cache/aftermath/bin. Ports other
than RPC and websocket are chosen free, so that several validators can run at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from solders.pubkey import Pubkey

from aftermath.base.files import cache_directory
from aftermath.localnet.config import LocalnetConfig
from aftermath.localnet.errors import LocalnetError
from aftermath.localnet.free_ports import free_ports, is_free
from aftermath.localnet.preloaded_programs import read_program
from aftermath.localnet.slots import RealTime

NAME = "solana-test-validator"
VARIABLE = "AFTERMATH_VALIDATOR"
START_SECONDS = 90.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.1
TICK_MS = 6.25
OTHER_PORTS = 36
_PR_SET_PDEATHSIG = 1
# the validator's thread that polls for transactions without pause
SPINNING_THREAD = "solBnkTxSched"
_NICER = 10
_LOOK_SECONDS = 0.5


def validator_binary() -> Path | None:
    """Return the path of the validator's binary, or None."""
    path = os.environ.get(VARIABLE)
    if path:
        return Path(path) if os.access(path, os.X_OK) else None
    in_path = shutil.which(NAME)
    if in_path is not None:
        return Path(in_path)
    cached = cache_directory("bin") / NAME
    return cached if os.access(cached, os.X_OK) else None


class ValidatorEngine:
    """Starts `solana-test-validator`; the chain keeps real time and its own genesis."""

    async def start(self, config: LocalnetConfig) -> RunningValidator:
        binary = validator_binary()
        if binary is None and (value := os.environ.get(VARIABLE)):
            raise LocalnetError(
                f"{VARIABLE} names {value}, which is not an executable file",
                f"Set {VARIABLE} to {NAME} of the Solana CLI (Agave), or unset it, or use --engine embedded",
            )
        if binary is None:
            raise LocalnetError(
                f"{NAME} was not found",
                f"Install the Solana CLI (Agave), or set {VARIABLE} to the binary, or use --engine embedded",
            )
        if not isinstance(config.time, RealTime):
            raise LocalnetError(
                "a validator keeps real time", "Use the embedded engine for a virtual clock"
            )
        for _, path in config.programs:
            read_program(path)
        running = RunningValidator(config)
        try:
            await running.open(binary, config)
        except BaseException:
            await running.close()
            raise
        return running


class RunningValidator:
    """A validator process that is healthy until `close`."""

    def __init__(self, config: LocalnetConfig) -> None:
        self._port = config.rpc_port or free_ports(config.host, 2)
        self._host = config.host
        self._scratch = (
            None if config.ledger else tempfile.TemporaryDirectory(prefix="aftermath-validator-")
        )
        self._ledger = config.ledger or Path(self._scratch.name if self._scratch else "")
        self._log_path = self._ledger.with_name(f"{self._ledger.name}.log")
        self._process: asyncio.subprocess.Process | None = None
        self._giving_way: asyncio.Task[None] | None = None
        self._opened = False

    @property
    def rpc_url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def ws_url(self) -> str:
        return f"ws://{self._host}:{self._port + 1}"

    async def open(self, binary: Path, config: LocalnetConfig) -> None:
        for port in (self._port, self._port + 1):
            if not is_free(self._host, port):
                raise LocalnetError(
                    f"port {port} is in use", "Stop what listens there, or choose another --port"
                )
        self._ledger.mkdir(parents=True, exist_ok=True)
        output = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._process = await asyncio.create_subprocess_exec(
                binary,
                *self._arguments(config),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        finally:
            os.close(output)
        async with aiohttp.ClientSession() as session:
            await self._until_healthy(session)
            if sys.platform == "linux":
                self._giving_way = asyncio.create_task(_give_way(self._process.pid))
            for key, lamports in config.airdrops:
                await self._provide(session, key, lamports)
        self._opened = True

    def _arguments(self, config: LocalnetConfig) -> list[str]:
        first = free_ports(self._host, OTHER_PORTS)
        options = {
            "--ledger": str(self._ledger),
            "--bind-address": self._host,
            "--rpc-port": str(self._port),
            "--faucet-port": str(first),
            "--gossip-port": str(first + 1),
            "--dynamic-port-range": f"{first + 2}-{first + OTHER_PORTS - 1}",
            "--ticks-per-slot": str(max(2, round(config.slot_ms / TICK_MS))),
        }
        arguments = ["--quiet", *(part for option in options.items() for part in option)]
        if config.ledger is None:
            arguments.append("--reset")
        for key, path in config.programs:
            arguments += ["--bpf-program", str(key), str(path)]
        return arguments

    def _last_lines(self) -> str:
        return self._log_path.read_text(errors="replace")[-500:].strip()

    async def _until_healthy(self, session: aiohttp.ClientSession) -> None:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if self._process.returncode is not None:
                status = self._process.returncode
                output = self._last_lines()
                raise LocalnetError(
                    f"{NAME} ended with status {status}: {output}", f"See {self._log_path}"
                )
            if await _call(session, self.rpc_url, "getHealth", []) == "ok":
                return
            await asyncio.sleep(POLL_SECONDS)
        raise LocalnetError(
            f"{NAME} was not healthy within {START_SECONDS:.0f} s", f"See {self._log_path}"
        )

    async def _provide(self, session: aiohttp.ClientSession, key: Pubkey, lamports: int) -> None:
        """Airdrop until `key` holds `lamports`."""
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        requested = False
        while asyncio.get_running_loop().time() < deadline:
            answer = await _call(
                session, self.rpc_url, "getBalance", [str(key), {"commitment": "confirmed"}]
            )
            missing = lamports - (answer["value"] if isinstance(answer, dict) else 0)
            if missing <= 0:
                return
            if not requested:
                requested = isinstance(
                    await _call(session, self.rpc_url, "requestAirdrop", [str(key), missing]), str
                )
            await asyncio.sleep(POLL_SECONDS)
        raise LocalnetError(
            f"the validator's faucet did not give {key} its lamports", "Start it again"
        )

    async def close(self) -> None:
        if self._giving_way is not None:
            self._giving_way.cancel()
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._scratch is not None:
            self._scratch.cleanup()
            if self._opened:  # earlier errors have already named the log
                self._log_path.unlink(missing_ok=True)


def _die_with_parent() -> None:
    """Send this process SIGTERM when its parent ends in any way (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _give_way(pid: int) -> None:
    """Lower the priority of the validator's polling thread, to free its core (Linux)."""
    for _ in range(
        round(START_SECONDS / _LOOK_SECONDS)
    ):  # the thread starts after the validator is healthy
        if _has_given_way(pid):
            return
        await asyncio.sleep(_LOOK_SECONDS)


def _has_given_way(pid: int) -> bool:
    """Lower the thread's priority. Return False if the thread does not exist yet."""
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # threads end at any time
            if (thread / "comm").read_text().strip() == SPINNING_THREAD:
                os.setpriority(
                    os.PRIO_PROCESS, int(thread.name), os.getpriority(os.PRIO_PROCESS, pid) + _NICER
                )
                return True
    return False


async def _call(
    session: aiohttp.ClientSession, url: str, method: str, params: Sequence[object]
) -> object:
    """Return the result, or None if the node does not answer or returns an error."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
    try:
        async with session.post(url, json=body, timeout=aiohttp.ClientTimeout(total=5)) as response:
            answer = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    return answer.get("result") if isinstance(answer, dict) else None
