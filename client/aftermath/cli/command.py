"""Turn a function into a command: option groups, `--json`, error messages and an example.

A parameter annotated with a dataclass becomes the options of its fields. Coroutines get a loop.
A command may ask before an action that cannot be undone. The question needs a terminal. Without
one, or with --json, `--yes` replaces it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from annotated_doc import Doc

from aftermath.base.errors import UsageError
from aftermath.base.signals import asyncio_handles_interrupts, hear_ignored_interrupts
from aftermath.base.stdio import VERBOSITY, Verbosity
from aftermath.cli.error_report import reporting
from aftermath.cli.next_steps import say_next
from aftermath.cli.present import Ended, Result, remember_options, show
from aftermath.events.printable import printable

Body = Callable[..., Result | Coroutine[Any, Any, Result]]
Done = TypeVar("Done")


@dataclass(frozen=True)
class OptionGroup:
    """How one parameter expands into options, and how its value is built from them."""

    options: Callable[[], list[inspect.Parameter]]
    build: Callable[..., Any]


JSON = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document instead of text.", show_default=False),
]
YES = Annotated[
    bool, typer.Option("--yes", help="Do not ask for confirmation.", show_default=False)
]


def _level(level: Verbosity) -> Callable[[bool], None]:
    """Return an option callback that sets the verbosity. It raises UsageError for -q with -v."""

    def choose(chosen: bool) -> None:
        if chosen and VERBOSITY.get() not in (Verbosity.INFO, level):
            raise UsageError("--quiet and --verbose contradict each other", "Leave one of them out")
        if chosen:
            VERBOSITY.set(level)

    return choose


# Every command takes these two. The callback acts on them, so no command gets their values.
QUIET = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Print only warnings, errors and the result.",
        show_default=False,
        expose_value=False,
        callback=_level(Verbosity.WARNING),
    ),
]
VERBOSE = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Also print the debug log, on stderr.",
        show_default=False,
        expose_value=False,
        callback=_level(Verbosity.DEBUG),
    ),
]


@dataclass(frozen=True)
class Command:
    """One command as `main` registers it and `docs` prints it."""

    name: str
    example: str
    entry: Callable[..., None]


def command(
    name: str,
    *,
    example: str,
    groups: Mapping[str, OptionGroup] | None = None,
    until_interrupt: bool = False,
    json_errors: bool = False,
) -> Callable[[Body], Command]:
    """Turn a function that returns a `Result` into a command.

    `groups`: how to expand parameters that are not dataclasses. `until_interrupt`: set it for a
    command that runs until Ctrl-C, so that SIGINT ends it also in a script's background.
    `json_errors`: set it for a command that always prints JSON.
    """

    def wrap(body: Body) -> Command:
        entry = _entry(
            name,
            body,
            groups or {},
            until_interrupt=until_interrupt,
            json_errors=json_errors,
        )
        return Command(name, example, entry)

    return wrap


Built = Mapping[str, tuple[Callable[..., Any], list[str]]]
"""The builder of each grouped parameter of a body, and the options that it takes."""


def _expanded(
    body: Body, groups: Mapping[str, OptionGroup], hints: Mapping[str, Any]
) -> tuple[list[inspect.Parameter], Built]:
    """Return the options of a body with its groups expanded, and how to build the groups."""
    built: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for name_in_body, parameter in inspect.signature(body).parameters.items():
        group = groups.get(name_in_body) or _dataclass_group(hints[name_in_body])
        if group is None:
            parameters.append(
                parameter.replace(
                    annotation=hints[name_in_body], kind=inspect.Parameter.KEYWORD_ONLY
                )
            )
            continue
        options = group.options()
        built[name_in_body] = (group.build, [option.name for option in options])
        parameters += options
    return parameters, built


def _entry(
    name: str,
    body: Body,
    groups: Mapping[str, OptionGroup],
    *,
    until_interrupt: bool,
    json_errors: bool,
) -> Callable[..., None]:
    hints = get_type_hints(body, include_extras=True)
    parameters, built = _expanded(body, groups, hints)
    reads_json = "json_output" in hints
    if not reads_json:
        parameters.append(keyword("json_output", JSON, False))
    parameters += [keyword("quiet", QUIET, False), keyword("verbose", VERBOSE, False)]

    def entry(**values: Any) -> None:
        as_json = values["json_output"] if reads_json else values.pop("json_output")
        for chosen_by_callback in ("quiet", "verbose"):  # typer passes only their defaults
            values.pop(chosen_by_callback, None)
        options_given = dict(values)
        with reporting(as_json=as_json or json_errors):
            _show_logs()
            if until_interrupt:
                hear_ignored_interrupts()
            remember_options(options_given)
            for name_in_body, (build, options) in built.items():
                values[name_in_body] = build(**{option: values.pop(option) for option in options})
            try:
                result = _call(body, values)
                refusal = None
                dry = False
            except Ended as ended:
                result = ended.result
                refusal = ended.error
                dry = True
            show(result, as_json=as_json)
            if refusal is not None:
                raise refusal
            if result.exit_code:
                raise typer.Exit(result.exit_code)
            if not (as_json or dry):
                say_next(name, result.case, {**options_given, **result.made})

    entry.__doc__ = inspect.getdoc(body)
    entry.__name__ = body.__name__
    entry.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return entry


def _show_logs() -> None:
    from aftermath.events.console import show_logs  # only here: a help page does not wait for it

    show_logs()


def _call(body: Body, values: Mapping[str, Any]) -> Result:
    result = body(**values)
    return run_in_loop(result) if isinstance(result, Coroutine) else result


def run_in_loop(work: Coroutine[Any, Any, Done]) -> Done:
    """Run a coroutine in a new event loop and return its result."""
    import asyncio  # only here: a help page does not wait for it

    with asyncio_handles_interrupts():
        return asyncio.run(work)


def _dataclass_group(cls: type[Any]) -> OptionGroup | None:
    if not is_dataclass(cls):
        return None
    options = [keyword(setting.name, setting.kind, setting.default) for setting in settings_of(cls)]
    return OptionGroup(lambda: options, cls)


@dataclass(frozen=True)
class Setting:
    """A field of a dataclass. `kind`: its annotated type. A default of `...` makes it required."""

    name: str
    kind: Any
    default: object


def settings_of(cls: type[Any]) -> list[Setting]:
    """Return the fields of a dataclass in order."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        Setting(field.name, hints[field.name], ... if field.default is MISSING else field.default)
        for field in fields(cls)
    ]


def setting_option(
    setting: Setting,
    *flags: str,
    panel: str | None,
    envvar: str | None = None,
    parser: Callable[[object], Any] | None = None,
) -> inspect.Parameter:
    """Return a settings field as an option with its description and limits.

    Without `flags` the option has the field's name.
    """
    kind, *metadata = get_args(setting.kind)
    least, most = (None, None) if parser else limits(metadata)
    option = typer.Option(
        *(flags or ("--" + setting.name.replace("_", "-"),)),
        help=next(one.documentation for one in metadata if isinstance(one, Doc)),
        envvar=envvar,
        parser=parser,
        rich_help_panel=panel,
        min=least,
        max=most,
    )
    return keyword(setting.name, Annotated[kind, option], setting.default)


def limits(metadata: Iterable[object]) -> tuple[Any, Any]:
    """Return the least (`ge`) and the most (`le`) that a field with this metadata may be. None: no
    limit.
    """
    constraints = list(metadata)
    least, most = (
        next(
            (getattr(constraint, side) for constraint in constraints if hasattr(constraint, side)),
            None,
        )
        for side in ("ge", "le")
    )
    return least, most


def keyword(name: str, annotation: object, default: object) -> inspect.Parameter:
    """Return a keyword-only parameter. A default of `...` makes it required."""
    empty = inspect.Parameter.empty
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=annotation,
        default=empty if default is ... else default,
    )


def check_can_ask(command: str, effect: str, *, as_json: bool) -> None:
    """Raise UsageError if no terminal can show the question, or with --json."""
    terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
    if as_json or not terminal:
        reason = "--json asks no questions" if as_json else "no terminal can show the question"
        raise UsageError(f"{command} {effect}, and {reason}", "Add --yes to confirm")


def agreed(question: str) -> bool:
    """Ask on the terminal, and return whether the answer is yes."""
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
