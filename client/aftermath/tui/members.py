"""The table of a run's members, as a terminal has room for it.

Decided: the column on the right says who is gone, so it is never cut. Where there is no room, wallets are cut first,
then words are fewer, and then columns are left out that say nothing of who is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len

from aftermath.watch.printable import printable
from aftermath.watch.standing import Standing
from aftermath.watch.standing_words import COLUMNS, row_of

_WALLET = 8  # characters of one that is cut
_AROUND = 2  # columns of the terminal around each cell
_FEWER = {"takes part, witness": "witness", "joins the next epoch": "joins next"}
_FORMS: tuple[tuple[int, frozenset[str]], ...] = (
    (0, frozenset()),
    (1, frozenset()),
    (2, frozenset()),
    (2, frozenset({"points"})),
    (2, frozenset({"points", "weight"})),
)
"""How much is cut (1: wallets, 2: words too), and which columns are left out: the first that fits is taken."""
Table = tuple[tuple[str, ...], dict[str, list[str]]]
"""The columns, and by seat a cell for each."""


def table(found: Standing, here: frozenset[bytes] | None, own: str | None, room: int) -> Table:
    """Return the members in `room` columns. `here`: the connected wallets, if known. `own`: our
    wallet.
    """
    columns = COLUMNS if here is None else (*COLUMNS[:-1], "here", COLUMNS[-1])
    rows: dict[str, Mapping[str, str]] = {}
    for member in found.members:
        row = dict(zip(COLUMNS, row_of(member), strict=True))
        rows[row["seat"]] = row | {
            "seat": f"{row['seat']} (you)" if row["wallet"] == own else row["seat"],
            "here": "yes" if here is not None and member.signer in here else "no",
        }
    for cut, without in _FORMS:
        named = tuple(name for name in columns if name not in without)
        cells = {seat: [printable(_cell(name, row[name], cut)) for name in named] for seat, row in rows.items()}
        if _width(named, cells.values()) <= room:
            break
    return named, cells


def _cell(name: str, words: str, cut: int) -> str:
    if name == "wallet" and cut > 0:
        return f"{words[:_WALLET]}…"
    if name == "standing" and cut > 1:
        for usual, fewer in _FEWER.items():
            words = words.replace(usual, fewer)
    return words


def _width(named: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    return sum(_AROUND + max(map(cell_len, column)) for column in zip(named, *rows, strict=True))
