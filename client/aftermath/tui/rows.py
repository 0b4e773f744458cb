"""A table of people or processes, which is drawn again only if it has changed.

Decided: as long as the rows are the same ones, what changes leaves the marked row and what is scrolled as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable


class Rows(DataTable[Text]):
    """A row for each key. Home and End go to the first and last row, not to columns."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(cursor_type="row")
        self._shown: dict[str, Sequence[str]] = {}
        self._named: tuple[str, ...] = ()

    def show(self, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
        """Have these rows, of plain text, in these columns."""
        if tuple(columns) != self._named or list(rows) != list(self._shown):
            self._make(columns, rows)
        else:
            for key, cells in rows.items():
                for column, before, now in zip(columns, self._shown[key], cells, strict=True):
                    if before != now:
                        self.update_cell(key, column, Text(now), update_width=True)
        self._shown, self._named = dict(rows), tuple(columns)

    def _make(self, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
        at = self.cursor_row
        self.clear(columns=True)
        for number, name in enumerate(columns):
            # The table measures its cells only after it was drawn once, with columns as wide as their names.
            made = self.columns[self.add_column(name, key=name)]
            made.content_width = max(map(cell_len, (name, *(cells[number] for cells in rows.values()))))
        for key, cells in rows.items():
            self.add_row(*map(Text, cells), key=key)
        self.move_cursor(row=min(at, max(0, len(rows) - 1)))
