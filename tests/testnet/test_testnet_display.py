"""Test how a testnet is shown with and without a terminal and tmux, and how it reads output."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.testnet.display import MOST_READ, DisplayMode, ProcessOutput, display_mode
from aftermath.testnet.display_option import DisplayOption


@pytest.mark.parametrize("pictures", DisplayOption)
@pytest.mark.parametrize("tmux", [True, False])
def test_display_without_terminal_is_lines(pictures: DisplayOption, tmux: bool) -> None:
    assert display_mode(pictures, terminal=False, tmux=tmux) is DisplayMode.LINES


@pytest.mark.parametrize(
    ("pictures", "tmux", "mode"),
    [
        (DisplayOption.TRUE, True, DisplayMode.PANES),
        (DisplayOption.TRUE, False, DisplayMode.SCREEN),
        (DisplayOption.SCREEN, True, DisplayMode.SCREEN),
        (DisplayOption.SCREEN, False, DisplayMode.SCREEN),
        (DisplayOption.FALSE, True, DisplayMode.PANES),
        (DisplayOption.FALSE, False, DisplayMode.LINES),
    ],
)
def test_display_on_terminal_follows_option_and_tmux(
    pictures: DisplayOption, tmux: bool, mode: DisplayMode
) -> None:
    assert display_mode(pictures, terminal=True, tmux=tmux) is mode


def test_process_output_waits_for_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    printed = ProcessOutput({"client-1": log, "client-2": tmp_path / "never"})
    assert list(printed.read()) == []
    log.write_bytes(b"one\n\n 10%\r 50%\r100%\r\nhal")
    assert list(printed.read()) == [("client-1", ["one", "100%"])]
    assert list(printed.read()) == []
    with log.open("ab") as file:
        file.write(b"f \xff\n")
    assert list(printed.read()) == [("client-1", ["half \ufffd"])]


def test_fast_growing_log_is_read_only_at_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    ((_, lines),) = ProcessOutput({"one": log}).read()
    assert lines[-1] == "line 99999"
    assert sum(map(len, lines)) <= MOST_READ
    log.write_bytes(b"x" * (3 * MOST_READ))  # one line that never ends
    ((_, lines),) = ProcessOutput({"one": log}).read()
    assert lines == ["x" * MOST_READ]
