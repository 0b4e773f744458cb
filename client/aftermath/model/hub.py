"""The Hugging Face Hub: take exactly the files a tier needs, and push a checkpoint.

Decided
- What is fetched, and how much it may be, is decided from the repository's listing and the model's config before the
  first weight is asked for.
- A tier's own files are taken by the manifest when it can serve the tier; under `auto` an unusable one means the full
  checkpoint. Their digests are verified.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from huggingface_hub import HfApi
from huggingface_hub.utils.tqdm import disable_progress_bars

from aftermath.base.outputs import MARK
from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfig, stored_tier
from aftermath.model.documents import (
    CARD_FILE,
    COMPANIONS,
    INDEX_FILE,
    MAX_CONFIG_BYTES,
    WEIGHTS_FILE,
    CheckpointError,
    Strategy,
    hf_config,
    read_index,
)
from aftermath.model.hub_commit import Repository, asking, opened
from aftermath.model.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestUnusable,
    TierFiles,
    hub_path,
    parse_manifest,
    verify,
)
from aftermath.model.published import Form, form_of
from aftermath.model.weights import spared

MAX_SMALL_BYTES = 64 << 20  # an index
MAX_OTHER_BYTES = 128 << 20  # the tokenizer and the other files that are copied with the weights
_FETCHED = tuple(name for name in COMPANIONS if name != CARD_FILE)
"""Without the model card, which describes the repository."""

log = logging.getLogger(__name__)


def download(
    repo: str,
    revision: str | None,
    *,
    tier: int,
    strategy: Strategy,
    cache_dir: Path | None = None,
    token: str | Literal[False] | None = None,
    endpoint: str | None = None,
) -> Path:
    """Fetch what a tier needs and return the local checkpoint directory, to be read by `checkpoint.load`.

    `token`: None for the one that this machine has, False for none.
    Raises CheckpointError or ModelConfigError.
    """
    source = opened(repo, revision, cache_dir, token, endpoint)
    if tier > 0 and strategy != "universal":
        try:
            return _download_tier(source, _manifests(source), tier)
        except ManifestUnusable as error:
            if strategy == "sliced":
                raise
            log.info("%s: taking the full checkpoint: %s", repo, error.message)
    return _download_full(source, str(_base(source)), tier)


def download_config(
    repo: str,
    revision: str | None,
    *,
    cache_dir: Path | None = None,
    token: str | Literal[False] | None = None,
    endpoint: str | None = None,
) -> Path:
    """Fetch a checkpoint's config.json only."""
    source = opened(repo, revision, cache_dir, token, endpoint)
    return source.fetch(str(_base(source) / "config.json"), MAX_CONFIG_BYTES)


def download_outline(
    repo: str,
    revision: str | None,
    *,
    cache_dir: Path | None = None,
    token: str | Literal[False] | None = None,
    endpoint: str | None = None,
) -> Path:
    """Fetch a checkpoint's config.json and tokenizer, and return their directory. Raises CheckpointError."""
    source = opened(repo, revision, cache_dir, token, endpoint)
    base = _base(source)
    config = source.fetch(str(base / "config.json"), MAX_CONFIG_BYTES)
    if there := [path for path in (str(base / name) for name in _FETCHED) if path in source.sizes]:
        source.fetch_all(there, MAX_OTHER_BYTES)
    return config.parent


def _base(source: Repository) -> PurePosixPath:
    """The folder of the full model: the manifest's, if there is one."""
    manifests = _manifests(source)
    return PurePosixPath(manifests[0]).parent if len(manifests) == 1 else PurePosixPath()


def _manifests(source: Repository) -> list[str]:
    return [path for path in source.sizes if PurePosixPath(path).name == MANIFEST_FILE]


def upload(
    directory: Path,
    repo: str,
    *,
    token: str | None,
    message: str,
    endpoint: str | None = None,
    tiers: Collection[Path] = (),
    card: bool = True,
) -> str:
    """Push a checkpoint directory to a repository, made if it is missing; returns the commit.

    The directories `tiers`, next to it, become folders of their names, where its manifest finds them. Without `card`
    the model card (README.md) stays here, and the repository keeps its own.
    """
    if not token:
        raise CheckpointError(f"no token to write to {repo}", "Set HF_TOKEN to a Hugging Face token that may write")
    disable_progress_bars()
    api = HfApi(endpoint=endpoint, token=token)
    with asking(repo):
        api.create_repo(repo, exist_ok=True)
        chosen: dict[str, Any] = {"commit_message": message, "ignore_patterns": [MARK] if card else [MARK, CARD_FILE]}
        for tier in tiers:  # before the manifest that promises them
            api.upload_folder(repo_id=repo, folder_path=tier, path_in_repo=tier.name, **chosen)
        return str(api.upload_folder(repo_id=repo, folder_path=directory, **chosen).oid)


def _download_tier(source: Repository, manifests: Sequence[str], tier: int) -> Path:
    """The tier's own files by the manifest. Raises ManifestUnusable when the repository does not have them."""
    if len(manifests) != 1:
        raise ManifestUnusable(f"{source.name} has {len(manifests)} files named {MANIFEST_FILE}, one is needed")
    manifest = parse_manifest(source.fetch(manifests[0], MAX_MANIFEST_BYTES).read_bytes())
    entry = manifest.of_tier(tier)
    listed = {name: hub_path(manifests[0], name) for name in entry.files}
    absent = [path for path in listed.values() if path not in source.sizes]
    if absent:
        raise ManifestUnusable(f"{source.name} lacks {absent[0]}, which its manifest lists")
    if len({PurePosixPath(path).parent for path in listed.values()}) != 1:
        raise ManifestUnusable(f"the files of tier {tier} in {source.name} are not in one directory")
    return _fetch_tier(source, manifest, entry, listed, manifests[0])


def _fetch_tier(
    source: Repository, manifest: Manifest, entry: TierFiles, listed: Mapping[str, str], manifest_path: str
) -> Path:
    config_path = next(path for path in listed.values() if path.endswith("config.json"))
    config, stored, _ = _config(source, config_path)
    if stored != entry.tier:
        raise CheckpointError(f"{source.name}/{config_path} is of tier {stored}, the manifest says {entry.tier}")
    common = [
        path for path in (hub_path(manifest_path, name) for name in manifest.common_files) if path in source.sizes
    ]
    root = source.fetch_all([*listed.values(), *common], _expected(config, stored) + MAX_OTHER_BYTES)
    verify({name: root / path for name, path in listed.items()}, manifest.sha256)
    return (root / config_path).parent


def _download_full(source: Repository, base: str, tier: int) -> Path:
    """The checkpoint in folder `base` of the repository: one model, its tokenizer, nothing else.

    Of several weight files those are left out that hold nothing of the tier.
    """
    folder = PurePosixPath(base)
    config, stored, form = _config(source, str(folder / "config.json"))
    index, whole = str(folder / INDEX_FILE), str(folder / WEIGHTS_FILE)
    if whole in source.sizes:
        weights = [whole]
    elif index in source.sizes:
        without = [] if stored else [spared(config, tier, form)]
        shards = read_index(source.fetch(index, MAX_SMALL_BYTES), *without)
        weights = [str(folder / name) for name in shards]
    else:
        weights = [
            path for path in source.sizes if PurePosixPath(path).parent == folder and path.endswith(".safetensors")
        ]
    if not weights:
        raise CheckpointError(
            f"{source.name} holds no .safetensors file",
            "Name a repository with safetensors weights; no others are read",
        )
    source.fetch_all(weights, _expected(config, stored))
    others = [str(folder / name) for name in ("config.json", INDEX_FILE, *_FETCHED)]
    root = source.fetch_all([path for path in others if path in source.sizes], MAX_OTHER_BYTES)
    return root / folder


def _config(source: Repository, path: str) -> tuple[ModelConfig, int, Form]:
    document = hf_config(source.fetch(path, MAX_CONFIG_BYTES))
    return config_of(document), stored_tier(document)[0], form_of(document)


def _expected(config: ModelConfig, stored: int) -> int:
    """The most bytes that weights of this model can take: 8 a parameter (fp64), a tied head twice, headers."""
    sizes = [math.prod(shape) for shape in config.parameter_shapes(stored).values()]
    return 8 * (sum(sizes) + max(sizes)) + (64 << 20)
