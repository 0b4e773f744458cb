"""Keep the member's secrets from child processes, and let idle OpenMP threads sleep soon."""

from __future__ import annotations

import os

_INHERITED = (
    *("PATH", "HOME", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LANG", "LC_ALL", "TZ"),
    *(
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "VIRTUAL_ENV",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONDONTWRITEBYTECODE",
    ),
)
_SECRET_WORDS = (
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "PRIVATE",
    "_KEY",
    "PROXY",
    "NETRC",
)


def bare_environment(**variables: str) -> dict[str, str]:
    """Return only what an interpreter needs to start, plus `variables`. For children that read a
    stranger's file.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return inherited | variables


def environment_without_secrets() -> dict[str, str]:
    """Return the environment without variables that hold a secret, by their names.

    For ranks, because nobody can list all variables that device drivers and libraries read.
    """
    return {name: value for name, value in os.environ.items() if not _is_secret(name)}


def _is_secret(name: str) -> bool:
    # A proxy's address may hold a password. RPC addresses may hold an API key.
    upper = name.upper()
    return upper.startswith(("RPC", "WS_RPC")) or any(word in upper for word in _SECRET_WORDS)


SPINS = "1000"
BY_THE_USER = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Variables with which users choose how OpenMP threads wait."""


def sleep_soon() -> None:
    """Let OpenMP threads sleep soon after they run out of work, unless the environment says
    otherwise.

    GNU OpenMP, with which PyTorch is built for Linux, spins 300,000 times by default. On two cores
    with one other busy process, a small model then trained half as fast. 1,000 spins cost nothing
    on an idle machine (`benchmarks/spinning.py`). OMP_WAIT_POLICY=passive costs a fifth. Call this
    before PyTorch is loaded: it reads the variable once.
    """
    if not any(name in os.environ for name in BY_THE_USER):
        os.environ[BY_THE_USER[0]] = SPINS
