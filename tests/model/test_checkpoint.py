"""Reading checkpoints: every strategy returns the requested tier's exact tensors, or an error with
the reason.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.checkpoint import find, load, load_config
from aftermath.model.config import ModelConfigError, WidthNotDivisible
from aftermath.model.export import export_tiers
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import CheckpointError
from aftermath.model.manifest import MANIFEST_FILE, ManifestUnusable, file_sha256
from aftermath.model.save_checkpoint import write_checkpoint

torch.set_num_threads(1)

CONFIG = LlamaConfig.from_hf(
    {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
)
PARAMS = init_weights(CONFIG, 5)


def same(params: dict[str, torch.Tensor], tier: int) -> bool:
    expected = init_weights(CONFIG, 5, tier)
    return params.keys() == expected.keys() and all(
        torch.equal(params[name], expected[name]) for name in expected
    )


@pytest.fixture
def full(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "m", PARAMS, CONFIG, tier=0, companions={"tokenizer.json": b"{}"})
    return tmp_path / "m"


@pytest.fixture
def exported(full: Path) -> Path:
    export_tiers(full, [1, 2])
    return full


def edit(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | changes))


def shard(directory: Path) -> None:
    """Split model.safetensors into two shards with an index."""
    params = load_file(directory / "model.safetensors")
    names = sorted(params)
    weight_map = {
        name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)
    }
    for file in set(weight_map.values()):
        save_file(
            {name: params[name] for name in names if weight_map[name] == file}, directory / file
        )
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    (directory / "model.safetensors").unlink()


@pytest.mark.parametrize("strategy", ["auto", "universal"])
@pytest.mark.parametrize("tier", [0, 1, 2])
def test_checkpoint_tiers_are_sliced_from_full_model(full: Path, tier: int, strategy: Any) -> None:
    assert same(load(full, tier, strategy), tier)
    assert load_config(full).parameter_shapes() == CONFIG.parameter_shapes()


@pytest.mark.parametrize("strategy", ["auto", "sliced", "universal"])
@pytest.mark.parametrize("tier", [1, 2])
def test_checkpoint_exported_tiers_hold_equal_tensors(
    exported: Path, tier: int, strategy: Any
) -> None:
    assert same(load(exported, tier, strategy), tier)
    used = find(exported, tier, strategy).weights[0].parent.name
    assert used == ("m" if strategy == "universal" else f"m-tier{tier}")
    slice_dir = exported.with_name(f"m-tier{tier}")
    assert same(load(slice_dir, tier), tier)
    assert load_config(slice_dir) == load_config(exported)


def test_checkpoint_without_manifest_uses_sibling_slice(exported: Path) -> None:
    (exported / MANIFEST_FILE).unlink()
    for strategy in ("auto", "sliced"):
        assert find(exported, 1, strategy).stored == 1
    shutil.rmtree(exported)
    assert same(load(exported, 1, "auto"), 1)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load(exported, 1, "universal")
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load(exported, 0)


@pytest.mark.parametrize("tier", [0, 2])
def test_checkpoint_shards_are_read_through_index(full: Path, tier: int) -> None:
    shard(full)
    assert same(load(full, tier), tier)


@pytest.mark.parametrize("tier", [0, 2])
def test_loaded_tensors_own_only_their_memory(full: Path, tier: int) -> None:
    params = load(full, tier)
    assert all(
        tensor.untyped_storage().nbytes() == 4 * tensor.numel() for tensor in params.values()
    )
    with (full / "model.safetensors").open(
        "r+b"
    ) as file:  # a change to the mapped file must not change a replica
        file.write(bytes((full / "model.safetensors").stat().st_size))
    assert same(params, tier)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_checkpoint_float_types_are_converted_to_fp32(full: Path, dtype: torch.dtype) -> None:
    save_file(
        {name: tensor.to(dtype) for name, tensor in PARAMS.items()}, full / "model.safetensors"
    )
    params = load(full, 1)
    assert all(tensor.dtype == torch.float32 for tensor in params.values())
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(params[name], PARAMS[name][:24].to(dtype).float())


def test_sliced_strategy_needs_files_of_tier(full: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"no files of tier 1[\s\S]*model export --src .* --tiers 1"
    ):
        load(full, 1, "sliced")


@pytest.mark.parametrize(
    ("tier", "strategy", "says"),
    [
        (2, "auto", "cannot be sliced again"),
        (2, "sliced", "cannot be sliced again"),
        (0, "auto", "lacks weights of tier 0"),
    ],
)
def test_slice_loaded_as_another_tier_is_refused(
    exported: Path, tier: int, strategy: Any, says: str
) -> None:
    with pytest.raises(
        CheckpointError, match=says + r"[\s\S]*--tier 1 \(train: --matformer-tier 1\)"
    ):
        load(exported.with_name("m-tier1"), tier, strategy)


def test_universal_strategy_refuses_slice(exported: Path) -> None:
    with pytest.raises(CheckpointError, match="needs the full checkpoint"):
        load(exported.with_name("m-tier1"), 1, "universal")


@pytest.mark.parametrize(
    "damage",
    ["not json", '{"schema_version": 2, "tiers": []}', '{"schema_version": 1, "tiers": []}'],
)
def test_unusable_manifest_is_skipped_by_auto_refused_by_sliced(
    exported: Path, damage: str
) -> None:
    (exported / MANIFEST_FILE).write_text(damage)
    assert same(load(exported, 1, "auto"), 1)
    with pytest.raises(ManifestUnusable):
        load(exported, 1, "sliced")


def test_manifest_with_missing_files_is_skipped_by_auto(exported: Path) -> None:
    (exported.with_name("m-tier1") / "model.safetensors").unlink()
    (exported.with_name("m-tier1") / "config.json").unlink()
    assert same(load(exported, 1, "auto"), 1)
    with pytest.raises(ManifestUnusable, match="is missing"):
        load(exported, 1, "sliced")


def test_file_without_digest_is_not_used(exported: Path) -> None:
    edit(exported / MANIFEST_FILE, sha256={})
    with pytest.raises(ManifestUnusable, match="no sha256"):
        load(exported, 1, "sliced")


@pytest.mark.parametrize("strategy", ["auto", "sliced"])
def test_changed_weights_are_refused_by_digest(exported: Path, strategy: Any) -> None:
    path = exported.with_name("m-tier1") / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        load(exported, 1, strategy)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/x.safetensors",
        "../../secret/model.safetensors",
        "a/../../../x.safetensors",
        "C:/x.safetensors",
        "..\\x.safetensors",
        "../m-tier1/../../x.safetensors",
    ],
)
@pytest.mark.parametrize("strategy", ["auto", "sliced"])
def test_manifest_path_outside_checkpoint_is_refused(
    exported: Path, path: str, strategy: Any
) -> None:
    document = json.loads((exported / MANIFEST_FILE).read_text())
    entry = next(entry for entry in document["tiers"] if entry["tier"] == 1)
    entry["files"] = [entry["files"][0], path]
    edit(
        exported / MANIFEST_FILE,
        tiers=document["tiers"],
        sha256=document["sha256"] | {path: "0" * 64},
    )
    with pytest.raises(CheckpointError, match="path"):
        load(exported, 1, strategy)


def test_renamed_checkpoint_ignores_old_siblings(exported: Path) -> None:
    renamed = exported.rename(exported.with_name("n"))
    assert find(renamed, 1, "auto").stored == 0
    assert same(load(renamed, 1, "auto"), 1)
    with pytest.raises(ManifestUnusable, match="is not in n or its tier 1 directory"):
        load(renamed, 1, "sliced")


@pytest.mark.parametrize("strategy", ["auto", "sliced"])
def test_contradicting_manifest_sizes_are_refused(exported: Path, strategy: Any) -> None:
    edit(exported / MANIFEST_FILE, matformer_base_intermediate_size=96)
    with pytest.raises(
        CheckpointError, match="matformer_base_intermediate_size is 96 in the manifest"
    ):
        load(exported, 1, strategy)
    (exported / MANIFEST_FILE).unlink()
    config = exported.with_name("m-tier1") / "config.json"
    edit(config, matformer_tier=2)
    with pytest.raises(
        ModelConfigError, match=r"is not matformer_base_intermediate_size 48 / 2\^2"
    ):
        load(exported, 1, strategy)
    edit(config, matformer_tier=2, matformer_base_intermediate_size=96)
    with pytest.raises(CheckpointError, match="is of tier 2, not of tier 1"):
        load(exported, 1, strategy)
    edit(config, matformer_tier=1, matformer_base_intermediate_size=48, rope_theta=5.0)
    with pytest.raises(CheckpointError, match="describes another model"):
        load(exported, 1, strategy)


def test_indivisible_width_is_refused(full: Path) -> None:
    with pytest.raises(WidthNotDivisible, match="32 or 64"):
        load(full, 5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p.pop("model.norm.weight"), "lacks 1 tensor, first model.norm.weight"),
        (lambda p: p.pop("lm_head.weight"), "tie_word_embeddings"),
        (lambda p: p.update({"model.extra": torch.zeros(1)}), "'model.extra', which is not part"),
        (
            lambda p: p.update({"model.norm.weight": torch.zeros(17)}),
            r"F32 \(17,\), but config.json says \(16,\)",
        ),
        (
            lambda p: p.update({"model.norm.weight": torch.zeros(16, dtype=torch.int32)}),
            "of type I32, which is",
        ),
        (lambda p: p.update({"model.norm.weight": torch.full((16,), float("nan"))}), "not finite"),
    ],
)
def test_weights_not_matching_config_are_named(full: Path, change: Any, says: str) -> None:
    params = dict(PARAMS)
    change(params)
    save_file(params, full / "model.safetensors")
    with pytest.raises(CheckpointError, match=says):
        load(full, 1)


def test_redundant_tensors_of_other_exporters_are_skipped(full: Path) -> None:
    edit(full / "config.json", tie_word_embeddings=True)
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
        "lm_head.weight": PARAMS["model.embed_tokens.weight"].clone(),
    }
    save_file(PARAMS | extra, full / "model.safetensors")
    assert load(full, 0).keys() == PARAMS.keys() - {"lm_head.weight"}


@pytest.mark.parametrize("tier", [0, 1])
@pytest.mark.parametrize("sharded", [False, True])
def test_tied_head_differing_from_embedding_is_refused(
    full: Path, tier: int, sharded: bool
) -> None:
    edit(full / "config.json", tie_word_embeddings=True)
    head = PARAMS["model.embed_tokens.weight"].clone()
    head[-1, -1] += 1e-3
    save_file(PARAMS | {"lm_head.weight": head}, full / "model.safetensors")
    if sharded:
        shard(full)
    with pytest.raises(
        CheckpointError, match=r"lm_head\.weight differs from the embedding.*tie_word_embeddings"
    ):
        load(full, tier)


def test_tied_head_of_another_shape_is_refused(full: Path) -> None:
    edit(full / "config.json", tie_word_embeddings=True)
    save_file(PARAMS | {"lm_head.weight": torch.zeros(33, 16)}, full / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"F32 \(33, 16\), but config.json says \(32, 16\)"):
        load(full, 0)


def test_whole_file_precedes_older_index(full: Path) -> None:
    shard(full)
    for stale in full.glob("model-*.safetensors"):
        save_file({name: tensor + 1 for name, tensor in load_file(stale).items()}, stale)
    save_file(PARAMS, full / "model.safetensors")
    assert same(load(full, 0), 0)


@pytest.mark.parametrize("cut", [3, 100, 4000])
def test_truncated_weights_file_is_refused(full: Path, cut: int) -> None:
    path = full / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match="is damaged"):
        load(full, 0)


@pytest.mark.parametrize("name", ["../m/model.safetensors", "/etc/x.safetensors", "weights.bin"])
def test_index_path_outside_directory_is_refused(full: Path, name: str) -> None:
    (full / "model.safetensors").unlink()
    (full / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"model.norm.weight": name}})
    )
    with pytest.raises(CheckpointError, match="outside its directory"):
        load(full, 0)


def test_pipe_or_device_in_checkpoint_is_not_read(full: Path) -> None:
    """Reading a pipe or a device instead of a file would never end."""
    (full / "model.safetensors").rename(full / "weights.safetensors")
    os.mkfifo(full / "other.safetensors")
    (full / "more.safetensors").symlink_to("/dev/zero")
    load(full, 0)
    with pytest.raises(CheckpointError, match="there is no file"):
        file_sha256(full / "more.safetensors")


def test_missing_shard_and_bad_index_are_named(full: Path) -> None:
    shard(full)
    (full / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks model-00002-of-00002"):
        load(full, 0)
    (full / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(CheckpointError, match="is not a safetensors index"):
        load(full, 0)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "[" * 100_000, " " * (2 << 20)],
    ids=["empty", "list", "cut off", "deep", "long"],
)
def test_invalid_config_json_is_refused(full: Path, content: str) -> None:
    (full / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json is"):
        load(full, 0)


def test_checkpoint_without_weights_is_refused(full: Path) -> None:
    (full / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no \.safetensors"):
        load(full, 0)


LONG = ["a" * 256 + ".safetensors", "a/" * 600 + "m.safetensors", "a" * 5000 + ".safetensors"]


@pytest.mark.parametrize("name", LONG, ids=len)
def test_manifest_with_overlong_name_is_refused(exported: Path, name: str) -> None:
    document = json.loads((exported / MANIFEST_FILE).read_text())
    for entry in document["tiers"]:
        entry["files"].append(name)
    document["sha256"][name] = "0" * 64
    (exported / MANIFEST_FILE).write_text(json.dumps(document))
    with pytest.raises(
        ManifestUnusable, match=rf"the manifest has a file name that is too long \({len(name)}"
    ):
        load(exported, 1, "sliced")
    assert same(load(exported, 1, "auto"), 1)
    (exported / "model.safetensors").unlink()
    (exported / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(
        CheckpointError, match=rf"index.json has a file name that is too long \({len(name)}"
    ):
        load(exported, 0)


@pytest.mark.parametrize(
    "place", ["a" * 5000, "a" * 300 + "/b", "/", "a\0b"], ids=["long", "part", "root", "nul"]
)
def test_impossible_checkpoint_directory_is_refused(place: str) -> None:
    with pytest.raises(CheckpointError):
        load(Path(place), 1)
    with pytest.raises(CheckpointError):
        load_config(Path(place))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_unreadable_checkpoint_file_is_permission_denied(
    full: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access

    def access(path: Any, mode: int) -> bool:
        """Let `os.access` answer as for another user, because root may read any file."""
        return real(path, mode) and Path(path) != full / file

    monkeypatch.setattr(os, "access", access)
    with pytest.raises(
        CheckpointError, match=f"cannot read .*{file}: permission denied"
    ) as refused:
        load(full, 0)
    assert refused.value.fix == f"Allow it for this user: chmod u+r {full / file}"
