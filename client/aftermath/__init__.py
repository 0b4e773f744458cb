"""People with unequal computers training one language model together, on Solana."""

from __future__ import annotations

__version__: str
"""Read from the installed package when it is first asked for: that takes longer than all else of a
help page.
"""


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    globals()[name] = version_string = version("aftermath")
    return version_string
