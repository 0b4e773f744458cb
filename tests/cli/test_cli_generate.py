"""Tests of `generate`: the text, the same text with a draft model, and errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cli.cli_runs import invoke

SAID = ("--prompt", "def ", "--tokens", 20, "--device", "cpu")


def test_generate_with_draft_equals_without_in_fewer_passes(run_dir: Path) -> None:
    line = (
        "generate",
        "--model",
        run_dir / "model",
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


def test_generate_text_has_prompt_and_continuation(run_dir: Path) -> None:
    outcome = invoke("generate", "--model", run_dir / "model", *SAID, "--tier", 2)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("def ")


@pytest.mark.parametrize(
    ("more", "sentence", "fix"),
    [
        (
            ("--tier", 1, "--draft-tier", 1),
            "--draft-tier 1 is not smaller than tier 1",
            "Choose a larger number",
        ),
        (("--draft-tokens", 2), "--draft-tokens needs --draft-tier", "Pass --draft-tier too"),
        (("--prompt", ""), "the prompt is empty", "at least one letter"),
        (("--temperature", -1), "must be a number from 0.0 to 100.0", "--help"),
    ],
)
def test_generate_with_invalid_options_exits_2(
    run_dir: Path, more: tuple[str | int, ...], sentence: str, fix: str
) -> None:
    result = invoke("generate", "--model", run_dir / "model", *SAID, *more)
    assert result.code == 2
    assert sentence in result.err
    assert fix in result.err


def test_generate_with_incomplete_checkpoint_exits_1(run_dir: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run_dir / "model", tmp_path / "model"))
    for content, sentence in (
        (b"{}", "is not a tokenizer"),
        (b"\xff", "is not a tokenizer"),
        (None, "there is no"),
    ):
        (copy / "tokenizer.json").unlink()
        if content is not None:
            (copy / "tokenizer.json").write_bytes(content)
        result = invoke("generate", "--model", copy, *SAID)
        assert result.code == 1
        assert sentence in result.err
        assert "tokenizer.json there" in result.err
    assert invoke("generate", "--model", tmp_path / "none", *SAID).code == 1


def test_generate_uses_tier_of_exported_model(run_dir: Path, tmp_path: Path) -> None:
    assert (
        invoke("model", "export", "--src", run_dir / "model", "--tiers", 1, "--out", tmp_path).code
        == 0
    )
    alone = invoke("generate", "--model", tmp_path / "model-tier1", *SAID)
    assert alone.code == 0, alone.err
    assert alone.out == invoke("generate", "--model", run_dir / "model", *SAID, "--tier", 1).out
    result = invoke("generate", "--model", tmp_path / "model-tier1", *SAID, "--tier", 2)
    assert (result.code, "is a slice of tier 1, which" in result.err) == (1, True)
