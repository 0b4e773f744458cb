"""Turn the parser's errors into errors with a fix.

The parser's own sentences name Python's types and differ between its versions.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import typer

from aftermath.base.errors import UsageError

ParserError: type[Exception] = typer.BadParameter.__mro__[1]
"""Every mistake that the parser finds; typer exports no name for it."""

_ALIKE = 0.75  # minimum ratio of difflib
_TELLING = 3  # minimum number of letters that identify an option
_UNREADABLE = re.compile(r"'(.+)' is not readable")
_SUPERFLUOUS = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.+)\)")


def unknown_command(script: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for a command that does not exist, with a similar name as a hint."""
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return UsageError(f"there is no command {name!r}", f"{hint}{script} --help lists the commands")


def usage_error(
    error: Any, script: str, command: str | None, kinds: Mapping[str, Any]
) -> UsageError:
    """Return the parser's error as a UsageError. `kinds`: types of the command's options."""
    help_command = f"{script} {command} --help" if command else f"{script} --help"
    parameter = getattr(error, "param", None)
    option = getattr(error, "option_name", None)
    if parameter is not None:
        name = _option_name(parameter, error.ctx)
        if type(error).__name__ == "MissingParameter":
            command_line = " ".join(filter(None, (script, command)))
            return UsageError(
                f"{name} is missing",
                f"{_how_to_pass(parameter, command_line)}; {help_command} explains it",
            )
        if unreadable := _UNREADABLE.search(error.message):
            path = unreadable[1]
            return UsageError(
                f"{name}: cannot read {path}: permission denied",
                f"Allow it for this user: chmod u+r {path}",
            )
        return UsageError(
            f"{name} must be {valid_values(parameter, kinds.get(parameter.name))}",
            f"{help_command} explains it",
        )
    if option is not None and hasattr(error, "possibilities"):
        close = nearest(
            option,
            [
                name
                for option in error.ctx.command.params
                for name in (*option.opts, *option.secondary_opts)
            ],
        )
        hint = f"Did you mean {close}? " if close else ""
        return UsageError(f"there is no option {option}", f"{hint}{help_command} lists the options")
    if option is not None:
        needs = "requires" in error.message
        return UsageError(
            f"{option} {'needs a value' if needs else 'takes no value'}",
            f"{help_command} explains it",
        )
    if superfluous := _SUPERFLUOUS.search(error.message):
        return UsageError(
            f"{superfluous[1]!r} is not expected here", f"{help_command} shows what is expected"
        )
    return UsageError(error.format_message().rstrip("."), f"{help_command} shows what is expected")


def misplaced_option(
    error: Any, script: str, command: str, options: Iterable[Any]
) -> UsageError | None:
    """Return the error for an option of `command` before its name, None if it is another mistake.

    `options` are those of the command.
    """
    # only the parser's error for an unknown option has this attribute
    if not hasattr(error, "possibilities"):
        return None
    name = error.option_name
    option = next(
        (
            option_param
            for option_param in options
            if name in (*option_param.opts, *option_param.secondary_opts)
        ),
        None,
    )
    if option is None:
        return None
    value = "" if option.is_flag else " VALUE"
    return UsageError(
        f"{name} is before the command",
        f"Write {name} after the command: {script} {command} {name}{value}",
    )


def nearest(option: str, known_options: Iterable[str]) -> str:
    """Return the known option closest to an unknown one, ignoring dashes; "" if none is similar."""
    names = {name.lstrip("-"): name for name in known_options}
    typed = option.lstrip("-")
    close = difflib.get_close_matches(typed, names, n=1, cutoff=_ALIKE)
    candidates = names if len(typed) >= _TELLING else ()
    prefixed = [name for name in candidates if name.startswith(typed)]
    containing = [name for name in candidates if typed in name.split("-")]
    return next((names[name] for name in (*close, *prefixed, *containing)), "")


def valid_values(parameter: Any, kind: Any) -> str:
    """Describe the valid values of an option."""
    if words := choices(kind):
        return "one of " + ", ".join(words)
    if reads := getattr(parameter.type_descriptor.parameter_info, "parser", None):
        return str(reads.__doc__)  # a parser's docstring describes its valid values
    number = kind_of(kind)
    if number in (int, float):
        least, most = bounds(parameter)
        sort = "a whole number" if number is int else "a number"
        if least is not None and most is not None:
            return f"{sort} from {least} to {most}"
        if least is not None:
            return f"{sort} of at least {least}"
        return sort
    return "another value"


def profile_key(parameter: Any) -> str:
    """Return the option's name in the profile, or "" if it is not stored there."""
    return str(getattr(getattr(parameter.type_descriptor, "parameter_info", None), "stored", ""))


def _option_name(parameter: Any, context: Any) -> str:
    """Return the name by which the user gave a value: flag, variable, profile key or argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.name)
    source = context.get_parameter_source(parameter.name) if context is not None else None
    if source is not None and source.name == "ENVIRONMENT":
        return f"the variable {parameter.envvar}"
    if source is not None and source.name == "DEFAULT_MAP":
        return f"the profile's {profile_key(parameter)}"
    return str(parameter.opts[0])


def _how_to_pass(parameter: Any, command_line: str) -> str:
    if parameter.param_type_name == "argument":
        return f"{command_line} {parameter.name.upper()}"
    return f"Pass {parameter.opts[0]}" + (
        f", or set {parameter.envvar}" if parameter.envvar else ""
    )


def choices(kind: Any) -> list[str]:
    """Return the values of an enum or Literal option, else an empty list."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for inner in get_args(kind) for word in choices(inner)]


def kind_of(kind: Any) -> Any:
    """Return an option's plain type, without annotations and `None`."""
    inner = [
        kind_of(argument)
        for argument in get_args(kind)
        if isinstance(argument, type) or get_args(argument)
    ]
    return (
        next((argument for argument in inner if argument not in (type(None), None)), None)
        if inner
        else kind
    )


def bounds(parameter: Any) -> tuple[int | float | None, int | float | None]:
    """Return the minimum and the maximum of a number option; None if it has none."""
    holder = parameter if hasattr(parameter, "min") else parameter.type
    return getattr(holder, "min", None), getattr(holder, "max", None)
