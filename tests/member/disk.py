"""A disk that is full for a while."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from aftermath.model import save_checkpoint


class Disk:
    """Lets writing a checkpoint's weights fail while the disk is full, or for the next `failures`
    times.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.failures = 0
        write = save_checkpoint._write_weights

        def written(place: Path, *more: Any) -> None:
            if self.full or self.failures:
                self.failures = max(0, self.failures - 1)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(place, *more)

        monkeypatch.setattr(save_checkpoint, "_write_weights", written)
