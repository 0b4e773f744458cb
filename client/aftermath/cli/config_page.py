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

All keys of a run's config file, with their meanings and limits. Generated from the classes that read the file: change
these, then run `python -m aftermath.cli.config_page docs/config.md`.

```sh
aftermath-solana init --out run.toml
aftermath-solana config validate run.toml
aftermath-solana config explain config.global_batch_size_end
aftermath-solana config schema
```

- `init` asks a few questions or takes options, and writes a file with these descriptions as comments.
- `config validate` checks a file without a network. `update-config` also checks the checkpoint, wherever it is.
- `config explain` prints the description of one key.
- `config schema` prints a JSON Schema. Save it as `run.schema.json`: editors that know Taplo's comments (Even Better
  TOML, for example) then complete and check a file whose first line is `#:schema ./run.schema.json`.

A choice is a table with exactly one of its variants: `[model.LLM.checkpoint.Hub]`, or in one line
`checkpoint = { Hub = { repo_id = "ada/my-model" } }`. A variant without required keys may be its name alone, such as
`shuffle = "DontShuffle"`. A variant described as "its path alone" may be the value of its first key, such as
`Local = "runs/mine/model"`. [operations.md](operations.md#what-an-owner-decides) says how to choose."""
_CODES = """## Codes of mistakes

`config validate --json` prints the `code`, `line` and `key` of each mistake. Codes stay the same when sentences
change. A value that the program would refuse has the program's [error](protocol.md#errors) as its code, in lower case:
`epoch-length-missing`. A problem of the checkpoint's config.json, the model's shape or the data's location has that
[error's code](operations.md#error-codes): `checkpoint`, `model-config`, `schema` or `data`. The others:"""
_WARNINGS = "A file with only warnings is valid:"


def page() -> str:
    """Return the page as markdown."""
    sections = [_section(key) for key in keys() if key.table is not None and held_by(key)]
    blocks = [
        PREFACE,
        *sections,
        _CODES,
        _codes(errors.CODES | schema.CODES),
        _WARNINGS,
        _codes(owner_warnings.WARNINGS),
    ]
    return "\n\n".join(blocks) + "\n"


def _section(key: ConfigKey) -> str:
    """Return the section of one table: its description and its keys."""
    heading = "#" * min(len(key.path) + 1, 4)
    assert key.table is not None
    if issubclass(key.table, Choice):
        rows = [f"| {_key_cell(one)} | {one.text} |" for one in held_by(key)]
        header = ["| one of | what |", "|---|---|"]
    else:
        rows = [_row(one) for one in held_by(key)]
        header = ["| key | type | unit | limits | default | what |", "|---|---|---|---|---|---|"]
    default = f" The default is {key.default}." if key.default else ""
    return "\n".join([f"{heading} [{key.name}]", "", key.text + default, "", *header, *rows])


def _row(key: ConfigKey) -> str:
    default = f"`{key.default}`" if key.default else "required" if key.required else "–"
    limits = (
        f"`{key.limits.removeprefix('of the form ')}`"
        if key.limits.startswith("of the form")
        else key.limits
    )
    cells = [
        _key_cell(key),
        key.kind.replace("|", "\\|"),
        key.unit,
        limits.replace("|", "\\|"),
        default,
        key.text,
    ]
    return f"| {' | '.join(cell or '–' for cell in cells)} |"


def _key_cell(key: ConfigKey) -> str:
    """Return a key's name, as a link if it has a section."""
    anchor = key.name.replace(".", "").lower()
    return f"[`{key.path[-1]}`](#{anchor})" if held_by(key) else f"`{key.path[-1]}`"


def _codes(meanings: Mapping[str, str]) -> str:
    return "\n".join(
        [
            "| code | what |",
            "|---|---|",
            *(f"| `{code}` | {meaning} |" for code, meaning in meanings.items()),
        ]
    )


def main() -> None:
    """Write the page to the path given, or to stdout."""
    deliver(page())


if __name__ == "__main__":
    main()
