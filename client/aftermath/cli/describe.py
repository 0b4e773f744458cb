"""What is said of an option, once for the terminal's help, for docs/commands.md and for errors."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Literal, get_args, get_origin


def choices(kind: Any) -> list[str]:
    """The words an option takes, if its type lists them."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for inner in get_args(kind) for word in choices(inner)]


def kind_of(kind: Any) -> Any:
    """The plain type of an option, without annotations and `None`."""
    inner = [kind_of(each) for each in get_args(kind) if isinstance(each, type) or get_args(each)]
    return next((each for each in inner if each not in (type(None), None)), None) if inner else kind


def bounds(parameter: Any) -> tuple[int | float | None, int | float | None]:
    """The least and the most that a number may be."""
    holder = parameter if hasattr(parameter, "min") else parameter.type
    return getattr(holder, "min", None), getattr(holder, "max", None)


def limits(metadata: Iterable[object]) -> tuple[Any, Any]:
    """The least (`ge`) and the most (`le`) that a field with this metadata may be, None where there is no limit."""
    known = list(metadata)
    least, most = (next((getattr(one, side) for one in known if hasattr(one, side)), None) for side in ("ge", "le"))
    return least, most


def names(parameter: Any) -> list[str]:
    """How an option is written; an argument has a name only."""
    if parameter.param_type_name == "argument":
        return [str(parameter.name)]
    return [*parameter.opts, *parameter.secondary_opts]


def meaning(parameter: Any, kind: Any, mark: str = "") -> str:
    """What an option does, takes and defaults to, and the variable it reads; words to type stand between `mark`s."""
    parts = [(getattr(parameter, "help", "") or "").rstrip()]
    if words := choices(kind):
        parts.append("One of " + ", ".join(f"{mark}{word}{mark}" for word in words) + ".")
    least, most = bounds(parameter)
    if least is not None and most is not None:
        parts.append(f"{least} to {most}.")
    elif least is not None:
        parts.append(f"At least {least}.")
    if parameter.required:
        parts.append("Required.")
    elif not (parameter.default is None or parameter.default is False or parameter.default in ((), "")):
        parts.append(f"Default {mark}{_shown(parameter.default)}{mark}.")
    if parameter.envvar:
        parts.append(f"[{mark}{parameter.envvar}{mark}]")
    return " ".join(filter(None, parts))


def _shown(default: object) -> str:
    if isinstance(default, Enum):
        return str(default.value)
    return str(default).lower() if isinstance(default, bool) else str(default)
