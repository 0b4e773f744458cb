"""Weights in several files: writing, exporting, merging, and reading only what a tier holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from aftermath.base.outputs import MARK
from aftermath.model import save_checkpoint, weights
from aftermath.model.architectures import config_of
from aftermath.model.checkpoint import find, load, merged, verified
from aftermath.model.config import ModelConfig
from aftermath.model.export import export_tiers
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import INDEX_FILE, CheckpointError
from aftermath.model.manifest import MANIFEST_FILE
from aftermath.model.save_checkpoint import save, write_checkpoint
from replica.whole_round import MODELS

torch.set_num_threads(1)

LIMIT = 20_000  # bytes of a file
LLAMA = MODELS["llama"]
SKIPPING = {"num_hidden_layers": 4, "matformer_tiers": [{"layers": [0, 3]}, {"layers": [3]}]}


def same(params: dict[str, torch.Tensor], config: ModelConfig, tier: int) -> bool:
    expected = init_weights(config, 5, tier)
    return params.keys() == expected.keys() and all(
        torch.equal(params[name], expected[name]) for name in expected
    )


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_checkpoint, "SHARD_BYTES", LIMIT)


def written(place: Path, fields: dict[str, Any]) -> ModelConfig:
    config = config_of(fields)
    write_checkpoint(place, init_weights(config, 5), config, tier=0, companions={})
    return config


@pytest.mark.parametrize("model", ["llama", "qwen3", "nanogpt", "deepseek-v2", "deepseek-v3"])
def test_sharded_export_of_tiers_merges_to_same_bits(model: str, tmp_path: Path) -> None:
    place = tmp_path / "m"
    config = written(place, MODELS[model])
    sizes = [path.stat().st_size for path in place.glob("model-*-of-*.safetensors")]
    assert len(sizes) > 2
    assert max(sizes) < LIMIT + 4096  # with its header
    assert same(load(place, 0), config, 0)
    export_tiers(place, [1, 2])
    manifest = json.loads((place / MANIFEST_FILE).read_text())
    for entry in manifest["tiers"]:
        files = {name.rpartition("/")[2] for name in entry["files"]}
        names = {
            path.name
            for path in (
                tmp_path / ("m" if not entry["tier"] else f"m-tier{entry['tier']}")
            ).iterdir()
        }
        assert files == names - {MANIFEST_FILE, MARK}
        assert set(entry["files"]) <= manifest["sha256"].keys()
    assert verified(place).tiers == (1, 2)
    for tier in (1, 2):
        for strategy in ("auto", "sliced", "universal"):
            assert same(load(place, tier, strategy), config, tier)  # type: ignore[arg-type]
        assert same(merged(place, tmp_path / f"m-tier{tier}")[1], config, 0)


@pytest.mark.parametrize("model", ["llama", "deepseek-v3"])
def test_sharded_checkpoint_is_read_by_transformers(model: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = written(tmp_path / "m", MODELS[model])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    tokens = torch.randint(0, 48, (2, 12), generator=torch.Generator().manual_seed(1))
    ours = config.build(0, load(tmp_path / "m", 0))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def test_same_step_needs_same_files(tmp_path: Path) -> None:
    config = config_of(LLAMA)

    def keep(seed: int) -> Path:
        return save(
            tmp_path, init_weights(config, seed), config, run_id="run", step=5, companions={}
        ).place

    place = keep(1)
    assert keep(1) == place
    with pytest.raises(CheckpointError, match="holds another model"):
        keep(2)
    (place / "model.safetensors").write_bytes(b"")  # it would take precedence over all other files
    with pytest.raises(CheckpointError, match="holds another model"):
        keep(1)


def test_shards_of_skipped_layers_may_be_absent(tmp_path: Path) -> None:
    place = tmp_path / "m"
    config = written(place, LLAMA | SKIPPING)
    index = json.loads((place / INDEX_FILE).read_text())["weight_map"]
    for tier in (2, 1):
        skipped = [number for number in range(4) if number not in config.shape(tier).layers]  # type: ignore[attr-defined]
        of_layers = tuple(f"model.layers.{number}." for number in skipped)
        spare = set(index.values()) - {
            file for name, file in index.items() if not name.startswith(of_layers)
        }
        assert spare
        assert {path.name for path in find(place, tier).weights} == set(index.values()) - spare
        for file in spare:
            (place / file).rename(tmp_path / file)
        assert same(load(place, tier, "universal"), config, tier)
        with pytest.raises(CheckpointError, match="lacks model-"):
            load(place, 0)
        for file in spare:
            (tmp_path / file).rename(place / file)


def touched(path: Path) -> int:
    """Return the bytes of a file that are mapped into this process: read pages, and those that the
    kernel adds.
    """
    count = 0
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            count += 1024 * int(line.split()[1])
    return count


@pytest.mark.parametrize("kind", ["width", "layers"])
def test_tier_reads_only_its_pages_of_full_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing rows and layers are never read. All pages of a matrix cut by columns are."""
    monkeypatch.setattr(save_checkpoint, "SHARD_BYTES", 1 << 40)
    fields = LLAMA | {"hidden_size": 512, "intermediate_size": 8192}  # matrices of 16 MiB
    fields |= {"matformer_tiers": [{"layers": [1]}]} if kind == "layers" else {}
    config = config_of(fields)
    zeros = {name: torch.zeros(shape) for name, shape in config.parameter_shapes().items()}
    write_checkpoint(tmp_path / "m", zeros, config, tier=0, companions={})
    tier = 1 if kind == "layers" else 2
    pages: list[int] = []

    @contextmanager
    def watched(path: Path, **options: Any) -> Iterator[Any]:
        with safe_open(path, **options) as file:
            yield file
            pages.append(touched(Path(path)))

    monkeypatch.setattr(weights, "safe_open", watched)
    full = config.parameter_shapes()
    shapes = config.parameter_shapes(tier)
    params = load(tmp_path / "m", tier, "universal")
    assert {name: tuple(tensor.shape) for name, tensor in params.items()} == shapes
    columns = {
        name: full[name] if name.endswith("down_proj.weight") else shape
        for name, shape in shapes.items()
    }
    expected = sum(4 * torch.Size(shape).numel() for shape in columns.values())
    around = 2 << 20  # at the end of a run of pages
    assert expected <= pages[0] <= expected + around * sum(full[name][0] > 512 for name in shapes)
    assert pages[0] < 0.75 * (tmp_path / "m" / "model.safetensors").stat().st_size
