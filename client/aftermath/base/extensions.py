"""Find the classes that installed packages register as entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from aftermath.base.errors import AftermathError

K = TypeVar("K")


class BadExtension(AftermathError):
    """An installed package registers something that this client cannot use."""

    code = "extension"


def extensions(group: str, base: type[K]) -> dict[str, type[K]]:
    """Return the subclasses of `base` that installed packages register in a group, by name.

    Raises BadExtension for an entry point that cannot be imported, for another object, and for a
    name that two packages register.
    """
    kinds: dict[str, type[K]] = {}
    for entry in sorted(entry_points(group=group), key=lambda one: one.name):
        if entry.name in kinds:
            raise _refused(entry, "another package registers this name too")
        try:
            loaded = entry.load()
        except Exception as error:  # another package's code may raise anything
            raise _refused(entry, f"{type(error).__name__}: {error}") from error
        if not (isinstance(loaded, type) and issubclass(loaded, base)):
            raise _refused(entry, f"{entry.value} is not a subclass of {base.__name__}")
        kinds[entry.name] = loaded
    return kinds


def extension_names(group: str) -> tuple[str, ...]:
    """Return the names that installed packages register in a group. Imports none of them."""
    return tuple(sorted(entry_points(group=group).names))


def _refused(entry: EntryPoint, reason: str) -> BadExtension:
    package = entry.dist.name if entry.dist is not None else "a package"
    return BadExtension(
        f"{package} registers {entry.name} in {entry.group}, which cannot be used: {reason}",
        f"Update the package, or uninstall it: pip uninstall {package}",
    )
