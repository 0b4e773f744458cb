"""Where this user's files are that no command names: what may be removed, and what tells of errors."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory(name: str) -> Path:
    """A directory for what can be made or found again: locks, keys of deployments under way, a validator."""
    return Path.home() / ".cache" / "aftermath" / name


def state_directory() -> Path:
    """For reports of errors nobody expected; `XDG_STATE_HOME` moves it."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "aftermath"
