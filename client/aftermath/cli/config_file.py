"""Commands that read a run's config file without asking anyone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.error_report import EXIT_KNOWN
from aftermath.cli.present import Result, facts, note, plain_text
from aftermath.events.plot import evenly, sparkline
from aftermath.events.printable import json_text
from aftermath.rules.schedules import first_epoch_rate

if TYPE_CHECKING:
    from aftermath.config.keys import ConfigKey


@command("config validate", example="aftermath-solana config validate run.toml")
def config_validate(
    file: Annotated[Path, typer.Argument(help="The run's config file.", show_default=False)],
) -> Result:
    """Check a run's config file without any network.

    Mistakes are what update-config and train would refuse. Each has its line and, with --json, a
    code. Warnings are about unusual settings. Reads the model if it is on this machine, or its
    recipe in NAME.files.toml. Exits 1 if there is a mistake, else 0.
    """
    from aftermath.cli.config_check import check

    checked = check(file)
    data = {
        "file": str(file),
        "ok": not checked.mistakes,
        "mistakes": [
            {"code": one.code, "line": one.line, "key": one.key, "message": one.sentence}
            for one in checked.mistakes
        ],
        "warnings": [{"code": code, "message": sentence} for code, sentence in checked.warnings],
        "not_looked_at": list(checked.unchecked),
    }
    lines = [f"{file}:{one.line}: {one.sentence}" for one in checked.mistakes]
    lines += [f"warning: {sentence}" for _, sentence in checked.warnings]
    lines += [f"not checked: {part}" for part in checked.unchecked]
    lines.append(f"{file} has mistakes" if checked.mistakes else f"{file} is a valid config")
    return Result(data, plain_text("\n".join(lines)), EXIT_KNOWN if checked.mistakes else 0)


_OF_MODEL = "Not a key of the config file: update-config computes it from the model."
_DERIVED = dict.fromkeys(("tier_widths", "num_parameters", "vocab_size", "schema_hash"), _OF_MODEL)
_DERIVED |= {
    name: f"Not a key of the config file: --{name} of create-run or update-config sets it."
    for name in ("name", "description")
}
_ROWS = ("key", "type", "unit", "required", "default", "limits", "what", "example", "keys")


@command("config explain", example="aftermath-solana config explain config.global_batch_size_end")
def config_explain(
    key: Annotated[
        str,
        typer.Argument(
            help="The key, as config.total_steps, or its last part.", show_default=False
        ),
    ],
) -> Result:
    """Explain a key of a run's config file.

    The key's last part is enough, and so is the name that update-config shows. A table lists its
    keys.
    """
    from aftermath.config.keys import find, held_by, nearest

    matches = find(key) or _settings_table(key)
    if not matches and (text := _DERIVED.get(key.rpartition(".")[2])):
        derived = dict.fromkeys(_ROWS, "") | {
            "key": key,
            "required": False,
            "what": text,
            "keys": [],
        }
        return Result([derived], f"{key}\n  {text}")
    if not matches:
        close = nearest(key)
        hint = f"Did you mean {', or '.join(close)}?" if close else "docs/config.md lists all keys"
        raise UsageError(f"a run's config file has no key {key!r}", hint)
    keys_inside = {
        match.name: [inner_key.path[-1] for inner_key in held_by(match)] for match in matches
    }
    data = [_data(match, keys_inside[match.name]) for match in matches]
    return Result(
        data, plain_text("\n\n".join(_page(match, keys_inside[match.name]) for match in matches))
    )


def _settings_table(name: str) -> list[ConfigKey]:
    """Return the table that a key of `update-config`, such as model.optimizer.kind, comes from."""
    from aftermath.config.keys import find

    table, _, last = name.rpartition(".")
    if table.count(".") != 1 or last in _DERIVED:
        return []
    return [match for match in find(table) if match.table is not None]


def _data(key: ConfigKey, keys_inside: list[str]) -> dict[str, Any]:
    return {
        "key": key.name,
        "type": key.kind,
        "unit": key.unit,
        "required": key.required,
        "default": key.default,
        "limits": key.limits,
        "what": key.text,
        "example": key.example,
        "keys": keys_inside,
    }


def _page(key: ConfigKey, keys_inside: list[str]) -> str:
    rows = {
        "type": key.kind,
        "unit": key.unit,
        "limits": key.limits,
        "default": key.default or ("none: required" if key.required else "none: optional"),
        "example": key.example,
        "keys": ", ".join(keys_inside),
    }
    return "\n".join(
        [
            key.name,
            f"  {key.text}",
            *(f"  {name + ':':9} {value}" for name, value in rows.items() if value),
        ]
    )


@command("config schema", example="aftermath-solana config schema")
def config_schema() -> Result:
    """Print the JSON Schema of a run's config file.

    Save it as run.schema.json. Editors complete and check a config file next to it whose first line
    is #:schema ./run.schema.json.
    """
    from aftermath.config.keys import json_schema

    document = json_schema()
    return Result(document, json_text(document, indent=2))


POINTS = 1000  # maximum steps of a schedule to print as JSON and to plot
BARS = 60
ROWS = 10


@command(
    "preview-lr", example="aftermath-solana preview-lr --config-path run.toml --plot rates.png"
)
def preview_lr(
    config_path: Annotated[Path, typer.Option("--config-path", help="A run's config file.")],
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Also plot the rates into this PNG file.")
    ] = None,
) -> Result:
    """Show the learning rate of every step of a config file.

    Assumes a run without pauses. After a pause, the first steps of an epoch warm up again
    (cold_start_warmup_steps).
    """
    from aftermath.config.chain_values import schedule_of
    from aftermath.config.document import load_config
    from aftermath.owner.warnings import warning_about_schedule

    config = load_config(config_path)
    schedule = schedule_of(config.llm.lr_schedule)
    total = config.config.total_steps
    cold = config.llm.cold_start_warmup_steps

    def rate(step: int) -> float:
        return first_epoch_rate(schedule, cold, step)

    curve = [(step, rate(step)) for step in _steps(total, POINTS)]
    if plot is not None:
        _draw(plot.expanduser(), curve, config_path)
    warning = warning_about_schedule(schedule, total)
    data = {
        "schedule": schedule.kind.name.lower(),
        "total_steps": total,
        "cold_start_warmup_steps": cold,
        "highest": max(value for _, value in curve),
        "warnings": [warning] if warning else [],
        "plot": str(plot.expanduser()) if plot is not None else None,
        "rates": [{"step": step, "rate": value} for step, value in curve],
    }
    rows: dict[str, object] = {
        "schedule": schedule.kind.name.lower().replace("_", " "),
        # From 0, so that a constant rate does not look like none.
        f"steps 1 to {total}": sparkline([rate(step) for step in _steps(total, BARS)], low=0.0),
        "rate": [f"{rate(step):.3e}  at step {step}" for step in _steps(total, ROWS)],
    }
    rows |= {"plot": plot.expanduser()} if plot is not None else {}
    return Result(data, facts(rows | ({"warning": warning} if warning else {})))


def _steps(total: int, room: int) -> list[int]:
    """Return at most `room` of the steps 1 to `total`."""
    return [1 + index for index in evenly(total, room)]


def _draw(path: Path, curve: list[tuple[int, float]], config_path: Path) -> None:
    """Write the plot. Raise UsageError for another kind of file, OutputError if it cannot be
    written.
    """
    from aftermath.events.plot import step_plot

    try:
        step_plot(path, {"rate": curve}, [], str(config_path), "learning rate")
    except ValueError as error:
        raise UsageError(
            f"--plot {path} cannot be drawn: {error}", "Name a file that ends in .png"
        ) from None


@command("run-files", example="aftermath-solana run-files run.toml")
def run_files(
    file: Annotated[
        Path,
        typer.Argument(
            help="The run's config file, or the name of a packaged config, such as demo."
        ),
    ],
) -> Result:
    """Make the missing model and token files of a run's config.

    NAME.files.toml next to NAME.toml describes them: options of model init in [model], and of data
    tokenize in [tokens] or of data fetch in [fetch]. init writes both files. Keeps what exists.
    """
    import os

    from aftermath.testnet.files import chosen, log_of, make_missing

    config_choice = chosen(file)
    log = log_of(config_choice.path)
    created = make_missing(
        config_choice.path,
        config_choice.config,
        log,
        os.environ,
        lambda path: note(f"making {path}; log: {log}"),
    )
    text = "\n".join(f"made {path}" for path in created)
    return Result(
        {"made": [str(path) for path in created]},
        text or "nothing to make: the model and the tokens exist",
    )
