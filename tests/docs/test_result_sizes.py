"""The bytes of results in a page and in the recipes are those of the formats."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from aftermath.cli.model_init import document
from aftermath.config.document import load_config
from aftermath.config.read import optimizer_of
from aftermath.model.presets import PRESETS
from aftermath.optim.agreed import settings_of
from aftermath.optim.distro import Distro
from aftermath.optim.schema import Settings, build_schema
from aftermath.optim.sparseloco import SparseLoCo

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "config" / "solana-test"
TIERS = 3


def prose(path: Path) -> str:
    return re.sub(r"\s+(# )?", " ", path.read_text(encoding="utf-8"))


def settings(recipe: str) -> Settings:
    return settings_of(optimizer_of(load_config(RECIPES / f"{recipe}.toml").llm.optimizer))


def model(recipe: str) -> dict[str, Any]:
    """The config.json that a recipe's second file stands for."""
    said = tomllib.loads((RECIPES / f"{recipe}.files.toml").read_text())["model"]
    return document(None, None, {key.replace("-", "_"): size for key, size in said.items()}, tied=False, entries=None)


def size(of: Mapping[str, Any], by: Settings) -> int:
    """Bytes of a result of tier 0."""
    return build_schema(of, TIERS, by).results.result_bytes(0)


def distro(embeddings: int) -> Distro:
    return Distro(8, embeddings, chunk=64, quantize_1bit=True, decay=0.999, weight_decay=0.0, clip=1.0)


def test_what_more_numbers_of_the_embedding_take() -> None:
    light = [size(model("light-config"), distro(kept)) / 1e3 for kept in (8, 64)]
    words = {**PRESETS["llama-134m"], "vocab_size": 32_000}
    assert (words["num_hidden_layers"], words["hidden_size"]) == (12, 768)
    of_words = [size(words, distro(kept)) / 1e6 for kept in (8, 64, 16)]
    assert (
        "grows from {:.1f} to {:.1f} kB. With a vocabulary of 32,000 in 12 layers of 768 it would grow from "
        "{:.2f} to {:.2f} MB, and 16 already makes it {:.2f}."
    ).format(*light, *of_words) in prose(ROOT / "docs/operations.md")


def test_what_each_optimizer_sends_of_the_recipes() -> None:
    best = settings("light-config")
    assert isinstance(best, SparseLoCo)
    each = (best, replace(best, topk=256, topk_embeddings=256), SparseLoCo())
    all_, some, few = (size(model("light-config"), one) for one in each)
    one_step = size(model("light-config"), distro(64))
    large = [size(model("config"), one) / 1e6 for one in (*each, settings("config"))]
    page = prose(ROOT / "docs/operations.md")
    assert f"takes {all_ / 1e6:.1f} MB for four steps as its config has it, {some / 1e6:.1f} with a " in page
    assert f"{few / 1e3:.0f} kB with what an empty SparseLoCo table means, and {one_step / 1e3:.0f} kB for one" in page
    assert "(0.97 B) {:.0f}, {:.0f}, {:.0f} MB and {:.1f}.".format(*large) in page


def test_what_the_recipes_say_of_themselves() -> None:
    light, large = (prose(RECIPES / f"{name}.toml") for name in ("light-config", "config"))
    best, one_step = (size(model("light-config"), one) for one in (settings("light-config"), distro(64)))
    assert f"That is {best / 1e6:.1f} MB of each member" in light
    assert f"DisTrO sends a hundredth of that, {one_step / 1e3:.0f} kB" in light
    assert f"would send {size(model('config'), settings('light-config')) / 1e6:.0f} MB" in large
