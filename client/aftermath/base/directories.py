"""Where this user's files are that no command names: what may be removed, what tells of errors, and what was chosen.

Decided: `platformdirs` knows where each system wants them; on Linux that is `~/.cache`, `~/.local/state` and
`~/.config`, and XDG_CACHE_HOME, XDG_STATE_HOME and XDG_CONFIG_HOME move them.
"""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path, user_config_path, user_state_path

_NAME = "aftermath"


def cache_directory(name: str) -> Path:
    """A directory for what can be made or found again: locks, data, keys of deployments under way, a validator."""
    return user_cache_path(_NAME, appauthor=False) / name


def state_directory() -> Path:
    """For reports of errors nobody expected."""
    return user_state_path(_NAME, appauthor=False)


def config_directory() -> Path:
    """For what the user has chosen once for all commands."""
    return user_config_path(_NAME, appauthor=False)
