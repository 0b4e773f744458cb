"""No command replaces its own input, or writes into the directory that it reads."""

from __future__ import annotations

from pathlib import Path

from cli.cli_runs import invoke
from cli.test_cli_events import Writer
from cli.test_cli_outputs import everything_in, model_init


def refused_unchanged(words: list[str | Path], place: Path, error: str) -> None:
    before = everything_in(place)
    refused = invoke(*words)
    assert refused.code == 1, refused.out
    assert error in refused.err
    assert "fix: Name " in refused.err
    assert everything_in(place) == before


def test_events_export_keeps_event_files_of_members(tmp_path: Path) -> None:
    for name in ("read", "other"):
        Writer(tmp_path / name, 0).train(1, 7)
    member_file = next(iter(sorted((tmp_path / "read").iterdir())))
    other_file = next(iter(sorted((tmp_path / "other").iterdir())))
    inside = "is inside the input directory"
    events = ["events", tmp_path / "read", "--out"]
    refused_unchanged([*events, member_file], tmp_path, inside)
    refused_unchanged([*events, tmp_path / "read" / "new.jsonl"], tmp_path, inside)
    refused_unchanged([*events, tmp_path / "read" / "new.csv"], tmp_path, inside)
    refused_unchanged(
        ["events", member_file, "--out", member_file], tmp_path, "is an input of this command"
    )
    refused_unchanged([*events, other_file], tmp_path, "but this command did not write it")


def test_plot_keeps_the_file_that_it_reads(tmp_path: Path) -> None:
    Writer(tmp_path / "events", 0).train(1, 7)
    file = tmp_path / "whole.json"
    assert invoke("events", tmp_path / "events", "--out", file).code == 0
    refused_unchanged(["plot", file, "--out", file], tmp_path, "is an input of this command")


def test_tokenize_writes_nothing_into_its_input(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    for number in range(20):
        (tmp_path / "books" / f"{number}.txt").write_text("Once upon a time")
    inside = tmp_path / "books" / "tokens"
    words: list[str | Path] = ["data", "tokenize", "--input", tmp_path / "books"]
    error = "is inside the input directory"
    refused_unchanged([*words, "--output", inside], tmp_path, error)
    held_out = [*words, "--output", tmp_path / "tokens", "--held-out", inside]
    refused_unchanged(held_out, tmp_path, error)
    same = [*words, "--output", tmp_path / "books"]
    refused_unchanged(same, tmp_path, "is an input of this command")


def test_merge_keeps_its_inputs(run_dir: Path, tmp_path: Path) -> None:
    assert invoke(*model_init(run_dir, tmp_path / "model")).code == 0
    merge: list[str | Path] = ["model", "merge", "--slice", tmp_path / "model", "--out"]
    merged = tmp_path / "merged"
    assert invoke(*merge, merged, "--into", tmp_path / "model").code == 0
    words = [*merge, merged, "--into", merged]
    refused_unchanged(words, tmp_path, "is an input of this command")
