"""Test the lock: one process per wallet, run, program and cluster."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aftermath.base.errors import Unsuitable
from aftermath.train.lock import only_process

PLACE = {"cluster": "genesis", "program": "program", "run_id": "mine", "wallet": "wallet"}


# Another process that takes part until it is killed.
_HOLDS = """
import sys
from pathlib import Path
from aftermath.train.lock import only_process

with only_process(Path(sys.argv[1]), **dict(zip(sys.argv[2::2], sys.argv[3::2]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_process_is_refused_until_first_ends(tmp_path: Path) -> None:
    words = [word for pair in PLACE.items() for word in pair]
    line = [sys.executable, "-c", _HOLDS, str(tmp_path / "locks"), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(
                Unsuitable, match="on this machine already takes part in run mine with this wallet"
            ) as caught,
            only_process(tmp_path / "locks", **PLACE),
        ):
            pass
        # on a server there are no wallets
        assert caught.value.fix == "Stop the other process, or use another wallet"
        other.kill()
    with only_process(tmp_path / "locks", **PLACE):
        pass


@pytest.mark.parametrize("part", PLACE)
def test_lock_of_another_wallet_or_run_is_free(tmp_path: Path, part: str) -> None:
    with only_process(tmp_path, **PLACE), only_process(tmp_path, **{**PLACE, part: "other"}):
        pass


def test_lock_directory_is_private_and_its_links_are_refused(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    with only_process(locks, **PLACE):
        pass
    assert stat.S_IMODE(locks.stat().st_mode) == 0o700
    (lock,) = locks.iterdir()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    lock.unlink()
    os.symlink(tmp_path / "elsewhere", lock)
    with pytest.raises(Unsuitable, match="cannot create a lock"), only_process(locks, **PLACE):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_uncreatable_lock_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(Unsuitable, match=str(tmp_path / "file")),
        only_process(tmp_path / "file/locks", **PLACE),
    ):
        pass
