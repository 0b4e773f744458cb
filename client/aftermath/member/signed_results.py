"""The results that this member has signed, on disk across restarts.

Two different signed results of one round cost a member its bond. A lying node could show an old
round to a restarted member and make it sign a second result.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import cast

import msgspec

from aftermath.base.bounded import Malformed, json_as
from aftermath.base.errors import Unsuitable
from aftermath.base.files import replacing, space_or, sync, sync_bytes
from aftermath.base.locks import alone_in
from aftermath.rules.seal import ResultPlace

_KEPT = 10_000
"""Number of signed results to keep. Those of each run's newest epoch are always kept, because a
proof of equivocation needs the running epoch.
"""

_Line = tuple[str, int, int, int, int, str]
"""The fields of a place, then the digest in hex."""


class SignedResults:
    """The digests that this member has signed, by place.

    Without a directory they are lost when the process ends.
    """

    def __init__(self, directory: Path | None = None, key: bytes = b"") -> None:
        """Read what was signed with the p2p key `key`.

        Raises Unsuitable if the record is damaged or not writable.
        """
        self._digests: dict[ResultPlace, bytes] = {}
        self._epochs: dict[str, int] = {}
        """Newest signed epoch, by run id."""
        self._lines = 0
        self._file = directory / f"{key.hex()}.jsonl" if directory is not None else None
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with alone_in(self._file.parent):
                self._read(self._file)
        except OSError as error:
            raise Unsuitable(
                f"cannot record which results are signed in {self._file}: {error.strerror}",
                space_or(
                    error,
                    "Make it a file that you may write to: signing a round's result twice costs the bond",
                ),
            ) from None

    def record(self, place: ResultPlace, digest: bytes) -> bool:
        """Record a signature on disk. Return False if another result of its place is signed.

        Raises OSError if writing fails. The result must not be announced then.
        """
        known = self._digests.get(place)
        if known is not None:
            return known == digest
        if self._file is not None:
            with alone_in(self._file.parent):
                self._append(self._file, place, digest)
        self._remember(place, digest)
        return True

    def _remember(self, place: ResultPlace, digest: bytes) -> None:
        """Keep a digest. Forget the oldest of a past epoch if there are too many."""
        self._digests[place] = digest
        self._epochs[place.run_id] = max(place.epoch, self._epochs.get(place.run_id, 0))
        if len(self._digests) > _KEPT:
            past = (
                signed for signed in self._digests if signed.epoch < self._epochs[signed.run_id]
            )
            if (oldest := next(past, None)) is not None:
                del self._digests[oldest]

    def _append(self, file: Path, place: ResultPlace, digest: bytes) -> None:
        if self._lines >= 2 * max(_KEPT, len(self._digests)):
            self._read(file)  # another process with this key may have added lines for its run
        is_new = not file.exists()
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            line = _encode(place, digest)
            end = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                sync_bytes(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)  # a partial line would corrupt the next one
                raise
        finally:
            os.close(descriptor)
        if is_new:
            sync(file.parent)
        self._lines += 1

    def _rewrite(self, file: Path) -> None:
        with replacing(file) as stream:
            stream.writelines(_encode(place, digest) for place, digest in self._digests.items())
        self._lines = len(self._digests)

    def _read(self, file: Path) -> None:
        """Load the file, and rewrite it without forgotten lines."""
        if not file.exists():
            return
        *lines, torn = file.read_bytes().split(b"\n")
        known = self._digests
        self._digests = {}  # the file has all of them, in signing order
        for number, line in enumerate(lines, start=1):
            try:
                run_id, epoch, height, seed, seat, digest = cast(_Line, json_as(line, _Line))
                self._remember(
                    ResultPlace(run_id, epoch, height, seed, seat), bytes.fromhex(digest)
                )
            except (Malformed, ValueError):
                self._digests = known
                raise Unsuitable(
                    f"line {number} of {file} is damaged: the file records the results signed with this p2p key",
                    "Take part with another key: --identity-secret-key-path FILE",
                ) from None
        self._lines = len(lines)
        if torn or self._lines > len(
            self._digests
        ):  # the process died during a write, before that announcement
            self._rewrite(file)


def _encode(place: ResultPlace, digest: bytes) -> bytes:
    return msgspec.json.encode((*place, digest.hex())) + b"\n"
