"""Tests that no control character, bidi mark or markup in strangers' text reaches a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.text import Text

from aftermath.base.errors import AftermathError
from aftermath.cli.error_report import reporting
from aftermath.cli.present import Result, aside, facts, listing, note, show
from cli.cli_runs import invoke

EVIL = "[/x][conceal]\x1b]52;c;aGk=\x07\x9b2J\u202egpj\u200f\u061c\u2028\u2029\ufeff\r[link=http://x]y :bomb:"
UNSAFE = set("\x1b\x07\x9b\u202e\u200f\u061c\u2028\u2029\ufeff\r")
MARKUP = ("[/x]", "[conceal]", "[link=http://x]y", ":bomb:")


def fail(as_json: bool) -> None:
    with pytest.raises(typer.Exit), reporting(as_json=as_json):
        raise AftermathError(EVIL, f"Ask {EVIL}")


DOORS: dict[str, Callable[[], None]] = {
    "text": lambda: show(Result(None, f"run {EVIL}"), as_json=False),
    "styled text": lambda: show(Result(None, facts({EVIL: [EVIL, EVIL]})), as_json=False),
    "table": lambda: show(Result(None, listing(["a", "b"], [[EVIL, Text("c")]])), as_json=False),
    "json": lambda: show(Result({"run_id": EVIL, EVIL: [EVIL]}, ""), as_json=True),
    "note": lambda: note(EVIL),
    "table in passing": lambda: aside(facts({"a": EVIL})),
    "error": lambda: fail(as_json=False),
    "error as json": lambda: fail(as_json=True),
}


@pytest.mark.parametrize("door", DOORS)
def test_text_of_strangers_is_escaped_when_printed(
    door: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DOORS[door]()
    out, err = capsys.readouterr()
    printed = out + err
    assert not UNSAFE & set(printed)
    for markup in MARKUP:
        assert markup in printed
    if "json" in door:
        assert EVIL in json.loads(printed).values()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_events_of_strangers_are_escaped_when_replayed(tmp_path: Path, options: list[str]) -> None:
    """Sentences with our own markup also escape strangers' text."""
    started = {
        "kind": "started",
        "t": 0.0,
        "run_id": EVIL,
        "tier": 0,
        "wallet": EVIL,
        "version": EVIL,
        "key": "wallet",
    }
    warning = {"kind": "warning", "t": 1.0, "message": EVIL}
    log = tmp_path / "events.jsonl"
    at = "2026-11-21T12:00:00.000+00:00"
    log.write_text("".join(json.dumps({"at": at, **event}) + "\n" for event in (started, warning)))
    replayed = invoke("events", log, *options)
    assert replayed.code == 0, replayed.err
    assert "[conceal]" in replayed.out
    assert not UNSAFE & set(replayed.out + replayed.err)
