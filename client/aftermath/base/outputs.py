"""Check and replace the files and directories that commands write.

Commands replace only what they recognise. They recognise a directory by its mark or its names, and
a file by its first bytes. A directory written as a whole, such as a checkpoint, holds MARK with
the command's name, and the size and modification time of all files. Only the same command replaces
it, and only if no file was added or changed.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from aftermath.base.bounded import Malformed, json_value
from aftermath.base.errors import AftermathError
from aftermath.base.files import fix_of, replacing

MARK = ".aftermath.json"
STANDARD_OUTPUT = "-"
_PROTECTED = "protected"
_MARK_BYTES = 1 << 20
_HEAD_BYTES = 4096
_UNCHANGED = "nothing was changed"


class OutputError(AftermathError):
    """Raised if an output path holds something that the command did not write, or cannot be
    written.
    """

    code = "output"


def refuse_inputs(output: Path, inputs: Iterable[Path], fix: str) -> None:
    """Raise OutputError if the output is an input of its command, or inside an input directory.

    Otherwise a command could replace what it reads, or read its own output the next time.
    """
    if str(output) == STANDARD_OUTPUT:
        return
    target = output.resolve()
    for path in inputs:
        source = path.resolve()
        if target == source:
            raise OutputError(f"{output} is an input of this command: {_UNCHANGED}", fix)
        if source.is_dir() and target.is_relative_to(source):
            raise OutputError(f"{output} is inside the input directory {path}: {_UNCHANGED}", fix)


# --- directories ---


def check_directory(path: Path, made_by: str, fix: str = "Name a new directory") -> None:
    """Raise OutputError, with this fix, unless the command `made_by` may create or replace this
    directory.
    """
    check_can_be_directory(path.parent, fix)
    refuse_standard_output(path, fix)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", fix) from None
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a directory"
        raise OutputError(f"{path} exists and is {kind}: {_UNCHANGED}", fix)
    if Path.cwd().is_relative_to(path.resolve()):
        raise OutputError(f"{path} is or contains the current directory: {_UNCHANGED}", fix)
    try:
        _require_unchanged(path, made_by, fix)
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror}", fix) from None


def check_can_be_directory(path: Path, fix: str = "Name a new directory") -> None:
    """Raise OutputError if the path is `-`, or if it or a parent exists and is not a directory."""
    refuse_standard_output(path, fix)
    for place in (path, *path.parents):
        # unlike Path.exists, these do not raise for a path that cannot be read
        if os.path.exists(place) and not os.path.isdir(place):
            raise OutputError(f"{place} is not a directory: {_UNCHANGED}", fix)


def refuse_standard_output(directory: Path, fix: str = "Name a new directory") -> None:
    """Raise OutputError for `-`. Call it before the path is made absolute."""
    if str(directory) == STANDARD_OUTPUT:
        raise OutputError("a directory cannot be written to standard output", fix)


def _require_unchanged(directory: Path, made_by: str, fix: str) -> None:
    """Raise OutputError for the first entry that `made_by` did not write or that changed since."""
    files = _marked_files(directory, made_by)
    for entry in sorted(directory.iterdir()):
        status = entry.lstat()
        regular = stat.S_ISREG(status.st_mode)
        if regular and entry.name == MARK:
            continue
        if not regular or entry.name not in files:
            raise OutputError(
                f"{directory} holds {entry.name}, which {made_by} did not write: {_UNCHANGED}",
                f"{fix}, or move the files away",
            )
        if files[entry.name] != _record(status):
            raise OutputError(
                f"{entry} has changed since {made_by} wrote it: {_UNCHANGED}",
                f"{fix}, or move {directory} away",
            )


# Hashing gigabytes would take too long. The time is needed because retrained weights keep their
# size.
def _record(status: os.stat_result) -> dict[str, int]:
    """Return what the mark records of a file."""
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _marked_files(directory: Path, made_by: str) -> dict[str, Any]:
    """Return the record by file name from the mark of `made_by`; empty without a valid mark of that
    command.
    """
    mark = _read_mark(directory)
    files = mark.get("files")
    return files if mark.get("made_by") == made_by and isinstance(files, dict) else {}


def maker_of(directory: Path) -> str | None:
    """Return the command that a directory's mark names, or None without a valid mark."""
    made_by = _read_mark(directory).get("made_by")
    return made_by if isinstance(made_by, str) else None


def _read_mark(directory: Path) -> dict[str, Any]:
    mark = directory / MARK
    try:
        if mark.lstat().st_size > _MARK_BYTES:
            return {}
        document = json_value(mark.read_bytes())
    except (OSError, Malformed):
        return {}
    return document if isinstance(document, dict) else {}


def write_mark(directory: Path, made_by: str) -> None:
    """Write a mark that records `made_by` and the directory's current files."""
    files = {
        path.name: _record(path.stat()) for path in sorted(directory.iterdir()) if path.name != MARK
    }
    _write_mark(directory, made_by, files)


def _write_mark(directory: Path, made_by: str, files: Mapping[str, Any]) -> None:
    with replacing(directory / MARK) as stream:
        stream.write(json.dumps({"made_by": made_by, "files": files}, indent=1).encode())


def update_mark(directory: Path, added: str) -> None:
    """Record one more file in the mark. Do nothing if the directory has no mark.

    Files that a user added stay foreign, so no command removes them with the directory.
    """
    made_by = maker_of(directory)
    if made_by is not None:
        files = _marked_files(directory, made_by)
        _write_mark(directory, made_by, files | {added: _record((directory / added).stat())})


def protect(directory: Path) -> None:
    """Mark a directory so that no cleanup removes it. Raises OSError.

    Do nothing if the directory has no mark.
    """
    mark = _read_mark(directory)
    if mark and not mark.get(_PROTECTED):
        with replacing(directory / MARK) as stream:
            stream.write(json.dumps(mark | {_PROTECTED: True}, indent=1).encode())


def is_protected(directory: Path) -> bool:
    """Return whether `protect` was called for this directory."""
    return _read_mark(directory).get(_PROTECTED) is True


def replace_directory(new: Path, target: Path, made_by: str) -> None:
    """Move `new` to `target`, and delete the old `target`. Raises as `check_directory` does."""
    check_directory(target, made_by)
    if not target.exists():
        new.rename(target)
    elif _exchange(new, target):
        shutil.rmtree(new, ignore_errors=True)
    else:
        older = Path(tempfile.mkdtemp(prefix=f".{target.name}.older-", dir=target.parent))
        target.rename(older / target.name)
        new.rename(target)
        shutil.rmtree(older, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two directories atomically, if the system supports it."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    # AT_FDCWD and RENAME_EXCHANGE of linux/fs.h
    at_cwd = -100
    exchange = 2
    status: int = renameat2(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), exchange)
    return status == 0


def check_names(directory: Path, names: str, what: str) -> None:
    """Raise OutputError for a symbolic link, or if an entry's name does not match the pattern
    `names` of `what`.
    """
    if directory.is_symlink():
        raise OutputError(
            f"{directory} is a symbolic link: {_UNCHANGED}",
            "Name the directory itself, or another one",
        )
    for entry in sorted(directory.iterdir()):
        if re.fullmatch(names, entry.name) is None:
            raise OutputError(
                f"{directory} holds {entry.name}, which does not belong to {what}: {_UNCHANGED}",
                "Name another directory, or move that file away",
            )


def empty_directory(directory: Path, names: str, what: str, keep: str = "") -> None:
    """Remove the entries of a directory, except those whose names match `keep`.

    Raises OutputError, with nothing removed, if a name matches neither `names` nor `keep`.
    """
    check_names(directory, f"{names}|{keep}", what)
    for entry in directory.iterdir():
        if re.fullmatch(keep, entry.name):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


# --- files ---


@contextmanager
def output_file(path: Path, is_ours: Callable[[bytes], bool]) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes become the file once all are on disk; `-` is standard output.

    `is_ours` tells by the first bytes of an existing file whether an earlier run of the command
    wrote it. Raises OutputError for any other file.
    """
    if str(path) == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    check_file(path, is_ours)
    try:
        with replacing(path) as stream:
            yield stream
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", fix_of(error)
        ) from None


def check_file(path: Path, is_ours: Callable[[bytes], bool]) -> None:
    """Raise OutputError unless the file can be created, or `is_ours` accepts its first bytes."""
    fix = "Name a new file"
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", fix) from None
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory"}
        kind = kinds.get(stat.S_IFMT(mode), "not a regular file")
        hint = "; - means standard output" if path.is_relative_to("/dev") else ""
        raise OutputError(f"{path} is {kind}: {_UNCHANGED}", fix + hint)
    head = b""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not is_ours(head):
        raise OutputError(
            f"{path} exists, but this command did not write it: {_UNCHANGED}",
            f"{fix}, or move it away",
        )
