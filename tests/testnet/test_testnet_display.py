"""How a testnet is seen, where a terminal and tmux are and are not; what its processes print, read as it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.testnet.display import MOST_READ, Printed, Showing, showing_of
from aftermath.testnet.options import Pictures


@pytest.mark.parametrize("pictures", Pictures)
@pytest.mark.parametrize("tmux", [True, False])
def test_where_there_is_no_terminal_there_are_lines(pictures: Pictures, tmux: bool) -> None:
    assert showing_of(pictures, terminal=False, tmux=tmux) is Showing.LINES


@pytest.mark.parametrize(
    ("pictures", "tmux", "seen"),
    [
        (Pictures.TRUE, True, Showing.PANES),
        (Pictures.TRUE, False, Showing.SCREEN),
        (Pictures.SCREEN, True, Showing.SCREEN),
        (Pictures.SCREEN, False, Showing.SCREEN),
        (Pictures.FALSE, True, Showing.PANES),
        (Pictures.FALSE, False, Showing.LINES),
    ],
)
def test_on_a_terminal_the_option_and_tmux_decide(pictures: Pictures, tmux: bool, seen: Showing) -> None:
    assert showing_of(pictures, terminal=True, tmux=tmux) is seen


def test_lines_are_read_once_they_have_an_end_and_half_ones_later(tmp_path: Path) -> None:
    log = tmp_path / "log"
    printed = Printed({"client-1": log, "client-2": tmp_path / "never"})
    assert list(printed.read()) == []
    log.write_bytes(b"one\n\n 10%\r 50%\r100%\r\nhal")
    assert list(printed.read()) == [("client-1", ["one", "100%"])]
    assert list(printed.read()) == []
    with log.open("ab") as file:
        file.write(b"f \xff\n")
    assert list(printed.read()) == [("client-1", ["half \ufffd"])]


def test_of_a_log_that_grows_fast_the_end_is_read_and_no_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    ((_, lines),) = Printed({"one": log}).read()
    assert lines[-1] == "line 99999"
    assert sum(map(len, lines)) <= MOST_READ
    log.write_bytes(b"x" * (3 * MOST_READ))  # no end at all
    ((_, lines),) = Printed({"one": log}).read()
    assert lines == ["x" * MOST_READ]
