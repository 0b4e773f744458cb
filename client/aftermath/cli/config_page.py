"""Write docs/config.md from the config classes (`python -m aftermath.cli.config_page`).

A test compares the page with the classes, so never edit the page.
"""

from __future__ import annotations

from collections.abc import Mapping

from aftermath.base.text import deliver
from aftermath.config import errors
from aftermath.config.keys import ConfigKey, held_by, keys
from aftermath.config.tables import Choice
from aftermath.owner import schema
from aftermath.owner import warnings as owner_warnings

PREFACE = """# The config of a run

Every key of a run's config file, what it means and what it may be. Generated from the classes that read the file:
change these, then run `python -m aftermath.cli.config_page docs/config.md`.

```sh
aftermath-solana init --out run.toml
aftermath-solana config validate run.toml
aftermath-solana config explain config.global_batch_size_end
aftermath-solana config schema
```

`init` writes a file with these sentences as comments, from a few questions or options. `config validate` says what is
wrong with one and asks nobody; `update-config` looks at the same and at the checkpoint, wherever that is. `config
explain` shows what stands here of one key. `config schema` prints a JSON Schema: editors that know Taplo's comments
(Even Better TOML, for example) complete and check a file whose first line is `#:schema ./run.schema.json`, if that is
what was printed.

A table that is a choice holds exactly one of its variants: `[model.LLM.checkpoint.Hub]`, or in one line
`checkpoint = { Hub = { repo_id = "ada/my-model" } }`. A variant that needs no key may be its name alone, as
`shuffle = "DontShuffle"`, and one that is "its path alone" below its first key's value, as `Local = "runs/mine/model"`.
[operations.md](operations.md#what-an-owner-decides) says how to choose."""
_CODES = """## Codes of mistakes

Of each mistake `config validate --json` gives the `code`, which stays when its sentence changes, the `line` and the
`key`. What the program would refuse has the name of its [error](protocol.md#errors) in small letters, as
`epoch-length-missing`. What a checkpoint's config.json, the model's shape or the data's place has against it is called
as [that error](operations.md#error-codes) is: `checkpoint`, `model-config`, `schema`, `data`. The others:"""
_WARNINGS = "Warnings make no file wrong:"


def page() -> str:
    """Return the page as markdown."""
    sections = [_section(key) for key in keys() if key.table is not None and held_by(key)]
    parts = [
        PREFACE,
        *sections,
        _CODES,
        _codes(errors.CODES | schema.CODES),
        _WARNINGS,
        _codes(owner_warnings.WARNINGS),
    ]
    return "\n\n".join(parts) + "\n"


def _section(key: ConfigKey) -> str:
    """One table: what it is, and what it holds."""
    heading = "#" * min(len(key.path) + 1, 4)
    assert key.table is not None
    if issubclass(key.table, Choice):
        rows = [f"| {_named(one)} | {one.text} |" for one in held_by(key)]
        header = ["| one of | what |", "|---|---|"]
    else:
        rows = [_row(one) for one in held_by(key)]
        header = ["| key | type | unit | limits | default | what |", "|---|---|---|---|---|---|"]
    default = f" {key.default} if it is not given." if key.default else ""
    return "\n".join([f"{heading} [{key.name}]", "", key.text + default, "", *header, *rows])


def _row(key: ConfigKey) -> str:
    default = f"`{key.default}`" if key.default else "must be given" if key.required else "–"
    limits = (
        f"`{key.limits.removeprefix('of the form ')}`"
        if key.limits.startswith("of the form")
        else key.limits
    )
    cells = [
        _named(key),
        key.kind.replace("|", "\\|"),
        key.unit,
        limits.replace("|", "\\|"),
        default,
        key.text,
    ]
    return f"| {' | '.join(cell or '–' for cell in cells)} |"


def _named(key: ConfigKey) -> str:
    """Return a key's name, as a link if it has a section."""
    anchor = key.name.replace(".", "").lower()
    return f"[`{key.path[-1]}`](#{anchor})" if held_by(key) else f"`{key.path[-1]}`"


def _codes(known: Mapping[str, str]) -> str:
    return "\n".join(
        [
            "| code | what |",
            "|---|---|",
            *(f"| `{code}` | {what} |" for code, what in known.items()),
        ]
    )


def main() -> None:
    """Write the page to the path given, or to stdout."""
    deliver(page())


if __name__ == "__main__":
    main()
