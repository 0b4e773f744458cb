"""How large the recipes' models are, by arithmetic: parameters of each tier, and the four fp32 numbers that a member
holds for each of them.

    python benchmarks/sizes.py [--json]

The shapes are those of scripts/setup-run.sh, read by scripts/init-model.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
RECIPES = ("light", "test")  # in the order of setup-run.sh
BYTES_HELD = 16  # weight, gradient, optimizer state, and the copy while it trains
TIERS = 3


def init_model() -> ModuleType:
    """scripts/init-model.py, whose name is no module's."""
    spec = importlib.util.spec_from_file_location("init_model", SCRIPTS / "init-model.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure() -> dict[str, Any]:
    """Parameters and gigabytes by recipe and tier."""
    module = init_model()
    shapes = re.findall(r'shape="([^"]+)"', (SCRIPTS / "setup-run.sh").read_text())
    sizes = {}
    for recipe, shape in zip(RECIPES, shapes, strict=True):
        config = module._config(module._parser().parse_args(["--out", recipe, *shlex.split(shape)]))
        parameters = [sum(map(math.prod, config.parameter_shapes(tier).values())) for tier in range(TIERS)]
        sizes[recipe] = {"parameters": parameters, "bytes_held": [BYTES_HELD * count for count in parameters]}
    return sizes


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    sizes = measure()
    if parser.parse_args().json:
        print(json.dumps(sizes))
        return
    for recipe, size in sizes.items():
        for tier, (count, held) in enumerate(zip(size["parameters"], size["bytes_held"], strict=True)):
            print(f"{recipe} tier {tier}: {count:,} parameters, {held / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
