"""`generate`: a text, the same one with a draft, and mistakes told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cli.cli_runs import invoke

SAID = ("--prompt", "def ", "--tokens", 20, "--device", "cpu")


def test_a_draft_says_the_same_in_fewer_passes(material: Path) -> None:
    line = (
        "generate",
        "--model",
        material / "model",
        *SAID,
        "--temperature",
        0.7,
        "--json",
        "--seed",
    )
    other, line = (*line, 4), (*line, 3)
    alone = invoke(*line).data
    drafted = invoke(*line, "--draft-tier", 1, "--draft-tokens", 3).data
    assert (alone["tokens"], alone["passes"], alone["guessed"]) == (20, 20, 0)
    assert drafted["text"] == alone["text"]
    assert drafted["passes"] == 20 - drafted["taken"]
    assert drafted["guessed"] >= drafted["taken"]
    assert invoke(*other).data["text"] != alone["text"]


def test_a_person_reads_the_prompt_and_what_follows(material: Path) -> None:
    shown = invoke("generate", "--model", material / "model", *SAID, "--tier", 2)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("def ")


@pytest.mark.parametrize(
    ("more", "sentence", "fix"),
    [
        (
            ("--tier", 1, "--draft-tier", 1),
            "--draft-tier 1 is not smaller than tier 1",
            "Name a smaller tier",
        ),
        (("--draft-tokens", 2), "--draft-tokens needs a draft", "--draft-tier as well"),
        (("--prompt", ""), "the prompt is empty", "at least one letter"),
        (("--temperature", -1), "must be a number from 0.0 to 100.0", "--help"),
    ],
)
def test_what_cannot_be_meant_ends_with_2(
    material: Path, more: tuple[str | int, ...], sentence: str, fix: str
) -> None:
    told = invoke("generate", "--model", material / "model", *SAID, *more)
    assert told.code == 2
    assert sentence in told.err
    assert fix in told.err


def test_a_checkpoint_without_what_it_needs_ends_with_1(material: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(material / "model", tmp_path / "model"))
    for content, sentence in (
        (b"{}", "is not a tokenizer"),
        (b"\xff", "is not a tokenizer"),
        (None, "there is no"),
    ):
        (copy / "tokenizer.json").unlink()
        if content is not None:
            (copy / "tokenizer.json").write_bytes(content)
        told = invoke("generate", "--model", copy, *SAID)
        assert told.code == 1
        assert sentence in told.err
        assert "tokenizer.json there" in told.err
    assert invoke("generate", "--model", tmp_path / "none", *SAID).code == 1


def test_generate_takes_the_tier_of_an_exported_model(material: Path, tmp_path: Path) -> None:
    assert (
        invoke("model", "export", "--src", material / "model", "--tiers", 1, "--out", tmp_path).code
        == 0
    )
    alone = invoke("generate", "--model", tmp_path / "model-tier1", *SAID)
    assert alone.code == 0, alone.err
    assert alone.out == invoke("generate", "--model", material / "model", *SAID, "--tier", 1).out
    told = invoke("generate", "--model", tmp_path / "model-tier1", *SAID, "--tier", 2)
    assert (told.code, "already a slice of tier 1" in told.err) == (1, True)
