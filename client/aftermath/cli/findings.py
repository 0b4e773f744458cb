"""What the checks of `doctor` find, one by one, and how that reads.

Decided: what stops a member is a failure, what it can live with a warning; both say what to do. What could not be
looked at is said, and is neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from aftermath.base.errors import AftermathError
from aftermath.cli.present import EXIT_KNOWN, EXITS

if TYPE_CHECKING:
    from rich.table import Table

Standing = Literal["ok", "warning", "failure", "unknown"]
_STYLES: dict[Standing, str] = {"ok": "green", "warning": "yellow", "failure": "bold red", "unknown": "dim"}


@dataclass(frozen=True)
class Finding:
    """What one check found. `code` is of the error, for a failure."""

    check: str
    standing: Standing
    said: str
    fix: str = ""
    code: str = ""


@dataclass
class Findings:
    """All that were made, in order."""

    made: list[Finding] = field(default_factory=list)

    def ok(self, check: str, said: str) -> None:
        """It is as it should be."""
        self.made.append(Finding(check, "ok", said))

    def unknown(self, check: str, said: str) -> None:
        """It was not looked at, and why."""
        self.made.append(Finding(check, "unknown", said))

    def warn(self, check: str, said: str, fix: str = "") -> None:
        """A member would begin all the same."""
        self.made.append(Finding(check, "warning", said, fix))

    def fail(self, check: str, said: str, fix: str = "", code: str = "failed") -> None:
        """A member would not begin."""
        self.made.append(Finding(check, "failure", said, fix, code))

    @contextmanager
    def failing(self, check: str) -> Iterator[None]:
        """An error of ours inside is a failure of the check."""
        try:
            yield
        except AftermathError as error:
            self.fail(check, error.message, error.fix, error.code)

    def all_ok(self, check: str) -> bool:
        """Whether nothing worse than ok was said of a check so far."""
        return all(one.standing == "ok" for one in self.made if one.check == check)

    @property
    def exit_code(self) -> int:
        """0 without failures, else that of the gravest."""
        return max((EXITS.get(one.code, EXIT_KNOWN) for one in self.made if one.standing == "failure"), default=0)

    def table(self) -> Table:
        """For people."""
        from rich.markup import escape
        from rich.table import Table

        from aftermath.watch.printable import printable

        table = Table.grid(padding=(0, 2))
        table.add_column()
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for one in self.made:
            said = escape(printable(one.said)) + (f"\n[bold]fix:[/] {escape(printable(one.fix))}" if one.fix else "")
            table.add_row(f"[{_STYLES[one.standing]}]{one.standing}[/]", one.check, said)
        return table
