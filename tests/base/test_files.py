"""Test atomic replacement of files, locks, and the directories of this user."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from aftermath.base.files import (
    cache_directory,
    fix_of,
    parents_made,
    partial_path,
    replacing,
    state_directory,
)
from aftermath.base.locks import alone_in, hold


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ENOSPC, "Free some space, or name a folder on another disk"),
        (errno.EDQUOT, "Free some space, or name a folder on another disk"),
        (errno.EFBIG, "Free some space, or name a folder on another disk"),
        (errno.EROFS, "Name a folder that you may write to"),
        (errno.ENOTDIR, "Name a folder in a directory that exists"),
        (errno.ELOOP, "Name another folder"),
    ],
)
def test_fix_of_failed_write_depends_on_its_cause(code: int, fix: str) -> None:
    assert fix_of(OSError(code, os.strerror(code)), "folder") == fix


@pytest.mark.parametrize("filled", [False, True])
def test_new_parents_after_error_are_removed_if_empty(tmp_path: Path, filled: bool) -> None:
    (tmp_path / "old").mkdir()

    def fail(directory: Path) -> None:
        with parents_made(directory):
            if filled:
                (directory / "other").touch()
            raise OSError

    for directory in (tmp_path / "old", tmp_path / "new" / "er"):
        with pytest.raises(OSError):
            fail(directory)
    assert (tmp_path / "old").is_dir()
    assert (tmp_path / "new").exists() is filled


def test_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.write_bytes(b"old")
    with replacing(target) as stream:
        stream.write(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def _break_off(target: Path, error: type[BaseException]) -> None:
    with replacing(target) as stream:
        stream.write(b"half")
        raise error


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_file_after_failed_replacement_is_unchanged(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "kept"
    target.write_bytes(b"old")
    with pytest.raises(error):
        _break_off(target, error)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_partial_file_of_killed_process_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".kept.partial").write_bytes(b"half of something much longer")
    with partial_path(tmp_path / "kept") as partial:
        partial.write_bytes(b"new")
    assert (tmp_path / "kept").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def _write_shared(target: Path, connection: Connection) -> None:
    with replacing(target, shared=True) as stream:
        stream.write(b"theirs")
        connection.send("writing")
        connection.recv()
    connection.send("done")


def test_replacing_shared_by_two_processes_keeps_both_whole(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("fork").Process(
        target=_write_shared, args=(target, theirs), daemon=True
    )
    other.start()
    theirs.close()
    assert ours.recv() == "writing"
    with replacing(target, shared=True) as stream:
        stream.write(b"ours")
    assert target.read_bytes() == b"ours"
    ours.send("continue")
    assert ours.recv() == "done"
    other.join()
    assert target.read_bytes() == b"theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_link_at_partial_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "wallet").write_bytes(b"key")
    (tmp_path / ".kept.partial").symlink_to(tmp_path / "wallet")
    with replacing(tmp_path / "kept") as stream:
        stream.write(b"new")
    assert (tmp_path / "wallet").read_bytes() == b"key"
    assert (tmp_path / "kept").read_bytes() == b"new"


def test_file_reaches_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[tuple[bool, bool]] = []

    def fsync(descriptor: int) -> None:
        forced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "kept").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(tmp_path / "kept") as stream:
        stream.write(b"new")
    assert forced == [(False, False), (True, True)]


def _alone(folder: Path, connection: Connection) -> None:
    with alone_in(folder):
        connection.send("in")
        connection.recv()
        connection.send("out")


def test_directory_lock_excludes_others_and_leaves_no_file(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(
        target=_alone, args=(tmp_path, theirs), daemon=True
    )
    other.start()
    theirs.close()  # otherwise `recv` would wait without end for a process that died
    assert ours.recv() == "in"
    with pytest.raises(BlockingIOError):
        hold(tmp_path / ".naming.lock")
    ours.send("continue")
    with alone_in(tmp_path):
        assert ours.recv() == "out"
    other.join()
    assert list(tmp_path.iterdir()) == []


def test_lock_is_released_by_close(tmp_path: Path) -> None:
    with hold(tmp_path / "lock"), pytest.raises(BlockingIOError):
        hold(tmp_path / "lock")
    hold(tmp_path / "lock").close()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_user_directories_follow_xdg_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert cache_directory("data") == tmp_path / "cache" / "aftermath" / "data"
    assert state_directory() == tmp_path / "state" / "aftermath"
