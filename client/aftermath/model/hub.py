"""The Hugging Face Hub: take exactly the files a tier needs, and push a checkpoint.

Decided
- The listing (names and sizes) is read first; what is fetched, and how much it may be, is decided from it and from the
  model's config before the first weight is asked for. One commit is used throughout, also if the branch moves.
- A tier's own files are taken by the manifest when it can serve the tier; under `auto` an unusable one means the full
  checkpoint. Their digests are verified.
- What the listing says is hostile too: strange names are not there, sizes are compared again after the download.
- A request ends after 10 s without a byte and a download when it is slower than any member could use; every failure
  is a sentence that says what to do.
"""

from __future__ import annotations

import errno
import glob
import logging
import math
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from aftermath.base.errors import AftermathError
from aftermath.base.threads import within
from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfig, stored_tier
from aftermath.model.documents import (
    COMPANIONS,
    INDEX_FILE,
    MAX_CONFIG_BYTES,
    WEIGHTS_FILE,
    CheckpointError,
    Strategy,
    hf_config,
    read_index,
)
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
from aftermath.model.weights import spared

TIMEOUT_SECONDS = 10.0
PATIENCE_SECONDS, SLOWEST = 60.0, 100_000  # a download may take so long, and longer by so many bytes per second
MAX_SMALL_BYTES = 64 << 20  # a tokenizer or an index
_OFFLINE = "check this machine's internet connection, or use a Local checkpoint"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Repository:
    """One commit of a repository: its files and their sizes, negative where the listing gives none."""

    name: str
    commit: str
    sizes: Mapping[str, int]
    token: str | None
    endpoint: str | None
    cache: Path

    def fetch(self, path: str, limit: int) -> Path:
        """One small file."""
        return self.fetch_all([path], limit) / path

    def fetch_all(self, paths: Sequence[str], limit: int) -> Path:
        """These files and no others; returns the snapshot's root. Finished files are not fetched again."""
        need = self._limited(paths, limit)
        self.cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.cache).free
        if need > free:
            raise CheckpointError(
                f"{self.name} takes {need:,} bytes and the disk of {self.cache} has {free:,} free",
                "free some space, or set HF_HOME to another disk",
            )
        call = partial(
            snapshot_download,
            self.name,
            revision=self.commit,
            allow_patterns=[glob.escape(path) for path in paths],
            cache_dir=self.cache,
            etag_timeout=TIMEOUT_SECONDS,
            token=self.token,
            endpoint=self.endpoint,
            max_workers=4,
        )
        with asking(self.name):
            root = Path(within(PATIENCE_SECONDS + need / SLOWEST, call, _too_slow(self.name)))
            found = {path: (root / path).stat().st_size for path in paths}
        for path, size in found.items():
            if size != self.sizes[path]:
                raise CheckpointError(f"{self.name}/{path} has {size:,} bytes, its listing said {self.sizes[path]:,}")
        return root

    def _limited(self, paths: Sequence[str], limit: int) -> int:
        absent = [path for path in paths if path not in self.sizes]
        if absent:
            raise CheckpointError(f"{self.name} has no file {absent[0]}", "name a repository with a Llama checkpoint")
        unknown = [path for path in paths if self.sizes[path] < 0]
        if unknown:
            raise CheckpointError(f"{self.name} does not say how large {unknown[0]} is")
        need = sum(self.sizes[path] for path in paths)
        if need > limit:
            raise CheckpointError(f"{self.name} lists {need:,} bytes for {paths[0]}, at most {limit:,} are expected")
        return need


def download(
    repo: str,
    revision: str | None,
    *,
    tier: int,
    strategy: Strategy,
    cache_dir: Path | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> Path:
    """Fetch what a tier needs and return the local checkpoint directory, to be read by `checkpoint.load`.

    Raises CheckpointError or ModelConfigError.
    """
    source = _open(repo, revision, cache_dir, token, endpoint)
    manifests = [path for path in source.sizes if PurePosixPath(path).name == MANIFEST_FILE]
    if tier > 0 and strategy != "universal":
        try:
            return _download_tier(source, manifests, tier)
        except ManifestUnusable as error:
            if strategy == "sliced":
                raise
            log.info("%s: taking the full checkpoint: %s", repo, error.message)
    return _download_full(source, str(PurePosixPath(manifests[0]).parent) if len(manifests) == 1 else ".", tier)


def download_config(
    repo: str,
    revision: str | None,
    *,
    cache_dir: Path | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> Path:
    """Fetch a checkpoint's config.json only."""
    source = _open(repo, revision, cache_dir, token, endpoint)
    return source.fetch(str(_base(source) / "config.json"), MAX_CONFIG_BYTES)


def download_outline(
    repo: str,
    revision: str | None,
    *,
    cache_dir: Path | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> Path:
    """Fetch a checkpoint's config.json and tokenizer, and return their directory. Raises CheckpointError."""
    source = _open(repo, revision, cache_dir, token, endpoint)
    base = _base(source)
    config = source.fetch(str(base / "config.json"), MAX_CONFIG_BYTES)
    if there := [path for path in (str(base / name) for name in COMPANIONS) if path in source.sizes]:
        source.fetch_all(there, MAX_SMALL_BYTES)
    return config.parent


def _base(source: _Repository) -> PurePosixPath:
    """The folder of the full model: the manifest's, if there is one."""
    manifests = [path for path in source.sizes if PurePosixPath(path).name == MANIFEST_FILE]
    return PurePosixPath(manifests[0]).parent if len(manifests) == 1 else PurePosixPath()


def upload(
    directory: Path,
    repo: str,
    *,
    token: str | None,
    message: str,
    endpoint: str | None = None,
    beside: Collection[Path] = (),
) -> str:
    """Push a checkpoint directory to a repository, made if it is missing; returns the commit.

    Directories `beside` it, of its tiers, become folders of their names, where its manifest finds them.
    """
    if not token:
        raise CheckpointError(f"no token to write to {repo}", "set HF_TOKEN to a Hugging Face token that may write")
    disable_progress_bars()
    api = HfApi(endpoint=endpoint, token=token)
    with asking(repo):
        api.create_repo(repo, exist_ok=True)
        for tier in beside:  # before the manifest that promises them
            api.upload_folder(repo_id=repo, folder_path=tier, path_in_repo=tier.name, commit_message=message)
        return str(api.upload_folder(repo_id=repo, folder_path=directory, commit_message=message).oid)


def _open(
    repo: str, revision: str | None, cache_dir: Path | None, token: str | None, endpoint: str | None
) -> _Repository:
    disable_progress_bars()
    api = HfApi(endpoint=endpoint, token=token)
    call = partial(api.model_info, repo, revision=revision or None, files_metadata=True, timeout=TIMEOUT_SECONDS)
    with asking(repo, revision):
        info = within(PATIENCE_SECONDS, call, _too_slow(repo))
    if not re.fullmatch("[0-9a-f]{40}", str(info.sha)):
        raise CheckpointError(f"the Hub named no commit of {repo}", "try again later")
    sizes = {
        file.rfilename: file.size if isinstance(file.size, int) else -1
        for file in info.siblings or []
        if _is_plain(file.rfilename)
    }
    return _Repository(repo, str(info.sha), sizes, token, endpoint, Path(cache_dir or HF_HUB_CACHE))


def _is_plain(path: object) -> bool:
    """Whether a listed path is one that stays below the repository's root on every system."""
    if not isinstance(path, str) or not path or "\\" in path or "\0" in path or ":" in path:
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))


def _too_slow(repo: str) -> CheckpointError:
    return CheckpointError(f"the Hub is too slow with {repo}", "try again later, or use a Local checkpoint")


def _download_tier(source: _Repository, manifests: Sequence[str], tier: int) -> Path:
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
    source: _Repository, manifest: Manifest, entry: TierFiles, listed: Mapping[str, str], manifest_path: str
) -> Path:
    config_path = next(path for path in listed.values() if path.endswith("config.json"))
    config, stored = _config(source, config_path)
    if stored != entry.tier:
        raise CheckpointError(f"{source.name}/{config_path} is of tier {stored}, the manifest says {entry.tier}")
    common = [
        path for path in (hub_path(manifest_path, name) for name in manifest.common_files) if path in source.sizes
    ]
    root = source.fetch_all([*listed.values(), *common], _expected(config, stored) + MAX_SMALL_BYTES)
    verify({name: root / path for name, path in listed.items()}, manifest.sha256)
    return (root / config_path).parent


def _download_full(source: _Repository, base: str, tier: int) -> Path:
    """The checkpoint in folder `base` of the repository: one model, its tokenizer, nothing else.

    Of several weight files those are left out that hold nothing of the tier.
    """
    folder = PurePosixPath(base)
    config, stored = _config(source, str(folder / "config.json"))
    index, whole = str(folder / INDEX_FILE), str(folder / WEIGHTS_FILE)
    if whole in source.sizes:
        weights = [whole]
    elif index in source.sizes:
        shards = read_index(source.fetch(index, MAX_SMALL_BYTES), () if stored else spared(config, tier))
        weights = [str(folder / name) for name in shards]
    else:
        weights = [
            path for path in source.sizes if PurePosixPath(path).parent == folder and path.endswith(".safetensors")
        ]
    if not weights:
        raise CheckpointError(
            f"{source.name} holds no .safetensors file",
            "name a repository with safetensors weights; no others are read",
        )
    source.fetch_all(weights, _expected(config, stored))
    others = [str(folder / name) for name in ("config.json", INDEX_FILE, *COMPANIONS)]
    root = source.fetch_all([path for path in others if path in source.sizes], MAX_SMALL_BYTES)
    return root / folder


def _config(source: _Repository, path: str) -> tuple[ModelConfig, int]:
    document = hf_config(source.fetch(path, MAX_CONFIG_BYTES))
    return config_of(document), stored_tier(document)[0]


def _expected(config: ModelConfig, stored: int) -> int:
    """The most bytes that weights of this model can take: 8 a parameter (fp64), a tied head twice, headers."""
    sizes = [math.prod(shape) for shape in config.parameter_shapes(stored).values()]
    return 8 * (sum(sizes) + max(sizes)) + (64 << 20)


@contextmanager
def asking(repo: str, revision: str | None = None) -> Iterator[None]:
    """Turn whatever the Hub's client raises into a CheckpointError that says what to do."""
    try:
        yield
    except AftermathError:
        raise
    except GatedRepoError:
        raise CheckpointError(f"{repo} is gated", "accept its terms on the Hub and set HF_TOKEN") from None
    except RevisionNotFoundError:
        raise CheckpointError(f"{repo} has no revision {revision}", "correct the checkpoint's revision") from None
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"there is no Hub repository {repo}, or it is private", "correct its name, or set HF_TOKEN to reach it"
        ) from None
    except HFValidationError:
        raise CheckpointError(f"{repo!r} is not the name of a Hub repository", "use the form owner/name") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        fix = "set HF_TOKEN to a token with the rights for it" if status in (401, 403) else "try again later"
        raise CheckpointError(f"the Hub answered {status} for {repo}", fix) from None
    except Exception as error:  # connection errors have other classes in every version of the client
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(f"the disk is full while fetching {repo}", "free some space and try again") from None
        raise CheckpointError(f"the Hub cannot be reached for {repo}: {error}".splitlines()[0], _OFFLINE) from None
