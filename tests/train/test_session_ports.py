"""Test what a session opens: peer discovery and views of its progress.

If the chain is on this machine, peers are looked for there too, unless an option says otherwise.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from aftermath.train import session
from aftermath.train.settings import TrainSettings
from events.sample_events import sample_event


@pytest.mark.parametrize(("discovery", "entries"), [("auto", 1), ("n0", 0)])
async def test_peers_of_local_chain_are_found_in_directory(
    tmp_path: Path, discovery: str, entries: int
) -> None:
    settings = TrainSettings(
        run_id="ports",
        discovery_dir=tmp_path / "peers",
        iroh_relay="disabled",
        iroh_discovery=discovery,
    )
    transport = await session._open_transport(settings, bytes(range(32)), on_local_network=True)
    try:
        assert entry_count(tmp_path / "peers") == entries
    finally:
        await transport.close()


def entry_count(directory: Path) -> int:
    """Return how many peers have announced themselves in the directory."""
    return len(list(directory.glob("*.json")))


def test_piped_log_line_is_never_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.ExitStack() as stack:
        events = session.events_of(TrainSettings(run_id="long"), stack)
        events.emit(sample_event("warning", message="word " * 100 + "end"))
        events.emit(sample_event("left"))
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("word end")
    assert second.endswith("left the run")
