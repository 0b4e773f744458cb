"""Test networks as processes: the ready line, the end by signal or with the parent, and start
errors.
"""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from aftermath.localnet import (
    LocalnetConfig,
    LocalnetError,
    ValidatorEngine,
    VirtualTime,
    validator_binary,
)
from aftermath.localnet.__main__ import main
from localnet.localnet_processes import start

needs_validator = pytest.mark.skipif(
    validator_binary() is None, reason="solana-test-validator not found"
)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.read() == b"ok")
    except OSError:
        return False


@pytest.mark.parametrize(
    ("engine", "number"),
    [
        ("embedded", signal.SIGINT),
        pytest.param("validator", signal.SIGTERM, marks=[needs_validator, pytest.mark.slow]),
    ],
)
def test_localnet_engine_ends_cleanly_on_signal(
    engine: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process, rpc, ws = start("--engine", engine)
    assert answers(rpc)
    assert int(ws.rpartition(":")[2]) == int(rpc.rpartition(":")[2]) + 1
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == ""
    assert "Traceback" not in err
    assert not answers(rpc)
    assert not list(tmp_path.glob("aftermath-*"))


@needs_validator
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_validator_ends_with_its_parent() -> None:
    process, rpc, _ = start("--engine", "validator")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    while answers(rpc):
        pass


async def test_absent_validator_error_has_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AFTERMATH_VALIDATOR", raising=False)
    with pytest.raises(LocalnetError, match="solana-test-validator was not found") as caught:
        await ValidatorEngine().start(LocalnetConfig(rpc_port=0))
    assert "AFTERMATH_VALIDATOR" in caught.value.fix
    binary = tmp_path / "solana-test-validator"
    binary.touch(0o755)
    assert validator_binary() == binary


async def test_failed_validator_error_shows_end_of_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary = tmp_path / "failing"
    write_script(binary, "echo no more luck; exit 3")
    monkeypatch.setenv("AFTERMATH_VALIDATOR", str(binary))
    with pytest.raises(LocalnetError, match="ended with status 3: no more luck"):
        await ValidatorEngine().start(LocalnetConfig(rpc_port=0, ledger=tmp_path / "ledger"))
    with pytest.raises(LocalnetError, match="real time"):
        await ValidatorEngine().start(LocalnetConfig(rpc_port=0, time=VirtualTime()))


def write_script(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--program", "nonsense"], "is not ID=FILE"),
        (["--program", "11111111111111111111111111111111=absent.so"], "cannot be read"),
        (["--airdrop", "x=1"], "is not a base58 public key"),
        (["--slot-ms", "0"], "a slot of 0 ms is not possible"),
        (["--rpc-port", "65535"], "port 65535 is not possible"),
        (["--host", "nowhere.invalid"], "nowhere.invalid is not an address of this machine"),
        (["--host", "192.0.2.1"], "192.0.2.1 is not an address of this machine"),
    ],
)
def test_bad_arguments_give_one_line(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["aftermath.localnet", "--rpc-port", "0", *arguments])
    with pytest.raises(SystemExit) as ended:
        sys.exit(main())
    assert ended.value.code in (1, 2)
    assert message in capsys.readouterr().err
