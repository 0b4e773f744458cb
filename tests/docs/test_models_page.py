"""Test that each row of the comparison table in docs/models.md names an existing test and its
number of models.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
from pathlib import Path

import pytest

from aftermath.model.arch.deepseek_config import DeepseekV2Config, DeepseekV3Config
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.arch.nanogpt_config import NanoGPTConfig
from aftermath.model.arch.transformer_config import TransformerConfig
from aftermath.model.architectures import _BY_TYPE
from aftermath.model.presets import PRESETS

PAGE = Path(__file__).parents[2] / "docs/models.md"
ROW = re.compile(
    r"^\| ([^|]+) \| [^|]+ \| (\d+) \| ([^|]+) \| `tests/model/(\w+)\.py::(\w+)` \|$", re.MULTILINE
)
ROWS = ROW.findall(PAGE.read_text())


def test_models_table_has_every_architecture() -> None:
    assert len(ROWS) == 5
    listed = re.search(r"^## Architectures$(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert {name for name in _BY_TYPE if f"`{name}`" not in listed[1]} == {"hf_auto"}
    assert {name.partition("-")[0] for name in PRESETS} == {"llama", "nanogpt", "deepseek"}


@pytest.mark.parametrize("config", [LlamaConfig, DeepseekV2Config, DeepseekV3Config, NanoGPTConfig])
def test_models_page_lists_cuttable_tier_sizes(config: type[TransformerConfig]) -> None:
    [row] = re.findall(
        rf"^\| `Hf.*`{config.MODEL_TYPE}`.* \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE
    )
    words = {"intermediate_size": "widths", "num_key_value_heads": "heads", "layers": "layers"}
    assert set(re.findall(r"\w+", row)) - {"and"} == {
        word for part, word in words.items() if part in config.CUTS
    }


@pytest.mark.parametrize(("what", "models", "within", "module", "test"), ROWS)
def test_models_page_comparisons_match_tests(
    what: str, models: str, within: str, module: str, test: str
) -> None:
    pytest.importorskip("transformers")
    test_module = importlib.import_module(f"model.{module}")
    function = getattr(test_module, test)
    assert math.prod(len(list(mark.args[1])) for mark in function.pytestmark) == int(models)
    source = inspect.getsource(function) + inspect.getsource(
        getattr(test_module, "_same_as_restated", function)
    )
    tolerances = re.findall(r"\d+e-\d+", within)
    assert tolerances
    assert all(f"rtol={number}" in source for number in tolerances)
    if families := re.search(r"(\d+) families", what):
        assert len(test_module.FAMILIES) == int(families[1])
