"""Test that the result sizes in docs/models.md and the recipes equal the formats'."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aftermath.cli.model_init import document
from aftermath.config.document import load_config
from aftermath.model.levels import Segment
from aftermath.optim.blocks import Blocks
from aftermath.optim.result_format import ResultFormat, Transform, Values
from aftermath.optim.schema import build_schema
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/models.md"
RECIPES = ROOT / "config" / "solana-test"
TIERS = 3


def prose(path: Path) -> str:
    return re.sub(r"\s+(# )?", " ", path.read_text(encoding="utf-8"))


def settings(recipe: str) -> Optimizer:
    return load_config(RECIPES / f"{recipe}.toml").llm.optimizer.settings


def model(recipe: str) -> dict[str, Any]:
    """Return the config.json that a recipe's second file describes."""
    sizes = tomllib.loads((RECIPES / f"{recipe}.files.toml").read_text())["model"]
    keywords = {key.replace("-", "_"): size for key, size in sizes.items()}
    return document(None, None, keywords, tied=False, entries=None)


def size(of: Mapping[str, Any], by: Optimizer) -> int:
    """Return the bytes of a result of tier 0."""
    return build_schema(of, TIERS, by).results.result_bytes(0)


def distro(embeddings: int) -> Distro:
    return Distro(topk_embeddings=embeddings)


def test_result_sizes_of_recipes_are_listed() -> None:
    best = settings("light-config")
    assert isinstance(best, SparseLoCo)
    light = model("light-config")
    large = model("config")
    rows = [
        ("SparseLoCo, all numbers", best, best),
        (
            "SparseLoCo, `compression_topk = 256`",
            *[replace(best, topk=256, topk_embeddings=256)] * 2,
        ),
        ("SparseLoCo, defaults", SparseLoCo(), SparseLoCo()),
        ("DisTrO of the recipe", distro(64), settings("config")),
    ]
    page = PAGE.read_text()
    for label, small_settings, large_settings in rows:
        small = f"{size(light, small_settings) / 1e6:.2f} MB"
        sent = size(large, large_settings) / 1e6
        assert f"| {label} | {small} | {sent:.{0 if sent > 1 else 1}f} MB |" in page


def test_block_sizes_equal_results() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$",
        PAGE.read_text(),
        re.MULTILINE,
    )
    assert [int(row[0]) for row in rows] == [8, 32, 64]
    square = Blocks(Segment("square", 0, None, 0, 64, (64, 64)), (64, 64), 1)
    for topk, bits, *sizes in rows:
        results = [
            ResultFormat((replace(square, topk=int(topk)),) * 8, 1, Transform.NONE, values)
            for values in (Values.SIGN, Values.ONE_BIT, Values.TWO_BIT)
        ]
        assert results[0].index_bytes(0) == int(bits)  # bytes of eight blocks
        assert sizes == [f"{one.payload_bytes(0) / 8:.1f}" for one in results]


@pytest.mark.parametrize("values", [Values.ONE_BIT, Values.TWO_BIT])
def test_whole_block_size_equals_result(values: Values) -> None:
    match = re.search(r"takes ([\d,]+) bytes with two bits and ([\d,]+) with one", prose(PAGE))
    assert match
    square = Blocks(Segment("square", 0, None, 0, 64, (64, 64)), (64, 64), 4096)
    of_block = ResultFormat((square,) * 8, 1, Transform.NONE, values).payload_bytes(0) / 8
    assert match[1 if values is Values.TWO_BIT else 2] == f"{of_block:,.0f}"


def test_recipes_state_their_result_sizes() -> None:
    light, large = (prose(RECIPES / f"{name}.toml") for name in ("light-config", "config"))
    best, one_step = (
        size(model("light-config"), one) for one in (settings("light-config"), distro(64))
    )
    assert f"That is {best / 1e6:.1f} MB of each member" in light
    assert f"DisTrO sends a hundredth of that, {one_step / 1e3:.0f} kB" in light
    assert f"would send {size(model('config'), settings('light-config')) / 1e6:.0f} MB" in large
