"""Widgets that redraw only what has changed: a table, a text and a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, RichLog, Static

from aftermath.ui.terminal.board import MOST, KeptLines


class KeyedTable(DataTable[Text]):
    """A table with a key per row. Home and End select the first and last row.

    As long as the rows are the same, updates keep the selection and the scroll position.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(cursor_type="row")
        self._shown: dict[str, Sequence[str]] = {}
        self._named: tuple[str, ...] = ()

    def show(self, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
        """Show these rows of plain text in these columns."""
        if tuple(columns) != self._named or list(rows) != list(self._shown):
            self._make(columns, rows)
        else:
            for key, cells in rows.items():
                for column, old_cell, now in zip(columns, self._shown[key], cells, strict=True):
                    if old_cell != now:
                        self.update_cell(key, column, Text(now), update_width=True)
        self._shown = dict(rows)
        self._named = tuple(columns)

    def _make(self, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
        at = self.cursor_row
        self.clear(columns=True)
        for number, name in enumerate(columns):
            # The table measures its cells only after its first draw, for which columns are as wide
            # as their names.
            column = self.columns[self.add_column(name, key=name)]
            column.content_width = max(
                map(cell_len, (name, *(cells[number] for cells in rows.values())))
            )
        for key, cells in rows.items():
            self.add_row(*map(Text, cells), key=key)
        self.move_cursor(row=min(at, max(0, len(rows) - 1)))


_PAPER = Console(color_system="standard", force_terminal=True, legacy_windows=False)


class DrawnText(Static):
    """A text or a grid. It is redrawn only if its output changed."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self._drawn: list[Segment] | None = None

    def show(self, drawn: RenderableType) -> None:
        """Show this content."""
        width = max(1, self.container_size.width or self.app.size.width)
        segments = list(_PAPER.render(drawn, _PAPER.options.update(width=width)))
        if segments != self._drawn:
            self._drawn = segments
            self.update(drawn)


class Log(RichLog):
    """A log, wrapped again when the width changes. It follows new lines while its end is
    visible.
    """

    def __init__(self) -> None:
        super().__init__(wrap=True, min_width=20, max_lines=MOST)
        self._drawn = 0
        self._width = 0

    def show(self, lines: KeptLines) -> None:
        """Show new lines."""
        if self.size.width != self._width:
            self.clear()
            self._width = self.size.width
            self._drawn = lines.count - len(lines.lines)
        new = min(lines.count - self._drawn, len(lines.lines))
        for t, text in list(lines.lines)[len(lines.lines) - new :]:
            self.write(
                text if t is None else Text.assemble((f"{clock(t):>8}  ", "dim"), text), expand=True
            )
        self._drawn = lines.count


def clock(seconds: float) -> str:
    """Return hours, minutes and seconds since the start."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
