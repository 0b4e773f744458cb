"""Where this user's files are that no command names: what may be removed, and what tells of errors.

Decided: `platformdirs` knows where each system wants them; on Linux that is `~/.cache` and `~/.local/state`, and
XDG_CACHE_HOME and XDG_STATE_HOME move them.
"""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path, user_state_path

_NAME = "aftermath"


def cache_directory(name: str) -> Path:
    """A directory for what can be made or found again: locks, data, keys of deployments under way, a validator."""
    return user_cache_path(_NAME, appauthor=False) / name


def state_directory() -> Path:
    """For reports of errors nobody expected."""
    return user_state_path(_NAME, appauthor=False)
