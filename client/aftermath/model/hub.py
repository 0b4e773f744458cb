"""The Hugging Face Hub: fetch exactly the files that a tier needs, and push a checkpoint.

A fetch pins one commit and checks its listing and sizes before it requests the first weight.
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
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from huggingface_hub import HfApi, set_client_factory, snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# no public name gives the same hooks
from huggingface_hub.utils._http import default_client_factory
from huggingface_hub.utils.tqdm import disable_progress_bars

from aftermath.base.concurrency import within
from aftermath.base.errors import AftermathError
from aftermath.base.outputs import MARK
from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfig, stored_tier
from aftermath.model.json_documents import (
    CARD_FILE,
    COMPANIONS,
    INDEX_FILE,
    MAX_CONFIG_BYTES,
    MAX_NAME,
    MAX_PART,
    MOMENTUM_FILE,
    WEIGHTS_FILE,
    CheckpointError,
    HubAway,
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
from aftermath.model.published_checkpoints import Form, form_of
from aftermath.model.weights import absent_from

TIMEOUT_SECONDS = 10.0
# longest download: 60 s, plus its size at 100 kB/s
PATIENCE_SECONDS = 60.0
SLOWEST = 100_000
_MADE_PATHS = ("ETag", "X-Linked-ETag", "X-Repo-Commit")
_OFFLINE = "Check this machine's internet connection, or use a Local checkpoint"


@dataclass(frozen=True)
class Repository:
    """One commit of a repository: its files and their sizes, negative if unknown."""

    name: str
    commit: str
    sizes: Mapping[str, int]
    token: str | Literal[False] | None
    endpoint: str | None
    cache: Path

    def fetch(self, path: str, limit: int) -> Path:
        """Fetch one small file and return its path."""
        return self.fetch_all([path], limit) / path

    def fetch_all(self, paths: Sequence[str], limit: int) -> Path:
        """Fetch only these files and return the snapshot's root. Finished files are reused."""
        need = self._limited(paths, limit)
        self.cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.cache).free
        if need > free:
            raise CheckpointError(
                f"{self.name} needs {need:,} bytes, but the disk of {self.cache} has only {free:,} free",
                "Free some space, or set HF_HOME to another disk",
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
        with asking(self.name, token=self.token):
            root = Path(within(PATIENCE_SECONDS + need / SLOWEST, call, _too_slow(self.name)))
            files = {path: (root / path).stat().st_size for path in paths}
        for path, size in files.items():
            if size != self.sizes[path]:
                raise CheckpointError(
                    f"{self.name}/{path} has {size:,} bytes, but its listing says {self.sizes[path]:,}"
                )
        return root

    def _limited(self, paths: Sequence[str], limit: int) -> int:
        absent = [path for path in paths if path not in self.sizes]
        if absent:
            raise CheckpointError(
                f"{self.name} has no file {absent[0]}", "Name a repository with a checkpoint"
            )
        unknown = [path for path in paths if self.sizes[path] < 0]
        if unknown:
            raise CheckpointError(f"the listing of {self.name} has no size for {unknown[0]}")
        need = sum(self.sizes[path] for path in paths)
        if need > limit:
            raise CheckpointError(
                f"{self.name} lists {need:,} bytes for {paths[0]}; the limit is {limit:,}"
            )
        return need


def opened(
    repo: str,
    revision: str | None,
    cache_dir: Path | None,
    token: str | Literal[False] | None,
    endpoint: str | None,
) -> Repository:
    """Return the repository at a revision, None for its newest. Raises CheckpointError."""
    disable_progress_bars()
    _watch_answers()
    api = HfApi(endpoint=endpoint, token=token)
    call = partial(
        api.model_info,
        repo,
        revision=revision or None,
        files_metadata=True,
        timeout=TIMEOUT_SECONDS,
    )
    with asking(repo, revision, token=token):
        info = within(PATIENCE_SECONDS, call, _too_slow(repo))
    if not re.fullmatch("[0-9a-f]{40}", str(info.sha)):
        raise CheckpointError(f"the Hub returned no commit of {repo}", "Try again later")
    sizes = {
        file.rfilename: file.size if isinstance(file.size, int) else -1
        for file in info.siblings or []
        if _is_plain(file.rfilename)
    }
    return Repository(repo, str(info.sha), sizes, token, endpoint, Path(cache_dir or HF_HUB_CACHE))


@cache
def _watch_answers() -> None:
    """Install `_client` once. This closes open connections."""
    set_client_factory(_client)


def _client() -> Any:
    """Return the library's HTTP client, with a check of every response's headers."""
    try:
        client = default_client_factory()
    except (
        Exception
    ) as error:  # the library reads the proxy variables here, and has several errors for them
        raise CheckpointError(
            f"the Hub's client cannot use this machine's proxy variables: {type(error).__name__}: {error}",
            "Set HTTPS_PROXY and ALL_PROXY to http://HOST:PORT or socks5h://HOST:PORT (pip install socksio), or unset "
            "them",
        ) from None
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks["response"], _check_headers]}
    return client


def _check_headers(response: Any) -> None:
    """Raise CheckpointError if a response has an invalid file version."""
    versions = (
        (response.headers.get(name, "") for name in _MADE_PATHS)
        if response.request.method == "HEAD"
        else ()
    )
    for value in versions:
        tag = value.removeprefix("W/").strip('"')
        if len(tag) > 200 or tag in (".", "..") or not set("/\\:\0").isdisjoint(tag):
            raise CheckpointError(
                f"the Hub sent an invalid file version: {tag[:80]!r}",
                "Try again later",
            )


@contextmanager
def asking(
    repo: str, revision: str | None = None, *, token: str | Literal[False] | None = None
) -> Iterator[None]:
    """Raise the errors of the Hub's client as CheckpointErrors with a fix."""
    needed = (
        "set HF_TOKEN" if token is not False else f"set HF_TOKEN and pass --hub-token-for {repo}"
    )
    try:
        yield
    except AftermathError:
        raise
    except GatedRepoError:
        raise CheckpointError(
            f"{repo} is a gated repository", f"Accept its terms on the Hub, and {needed}"
        ) from None
    except RevisionNotFoundError:
        raise CheckpointError(
            f"{repo} has no revision {revision}", "Correct the checkpoint's revision"
        ) from None
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"there is no Hub repository {repo}, or it is private",
            f"Correct its name, or {needed} to reach it",
        ) from None
    except HFValidationError:
        raise CheckpointError(
            f"{repo!r} is not the name of a Hub repository", "Use the form owner/name"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            fix = f"Use a token with access: {needed}"
            raise CheckpointError(f"the Hub answered {status} for {repo}", fix) from None
        raise HubAway(f"the Hub answered {status} for {repo}", "Try again later") from None
    except (
        Exception
    ) as error:  # connection errors have other classes in every version of the client
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(
                f"the disk is full while fetching {repo}", "Free some space and try again"
            ) from None
        raise HubAway(
            f"the Hub cannot be reached for {repo}: {error}".splitlines()[0], _OFFLINE
        ) from None


def _is_plain(path: object) -> bool:
    """Return whether a listed path stays below the root and is valid on every system."""
    if not isinstance(path, str) or not path or "\\" in path or "\0" in path or ":" in path:
        return False
    if len(path.encode(errors="replace")) > MAX_NAME:
        return False
    path_parts = path.split("/")
    return all(
        part not in ("", ".", "..") and len(part.encode(errors="replace")) <= MAX_PART
        for part in path_parts
    )


def _too_slow(repo: str) -> CheckpointError:
    return HubAway(
        f"the download of {repo} from the Hub is too slow",
        "Try again later, or use a Local checkpoint",
    )


MAX_SMALL_BYTES = 64 << 20  # an index
MAX_OTHER_BYTES = 128 << 20  # the tokenizer and the other files that are copied with the weights
_FETCHED = tuple(name for name in COMPANIONS if name != CARD_FILE)
"""The files to fetch besides weights. The model card is left out, because it describes the
repository.
"""

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
    momentum: bool = False,
) -> Path:
    """Fetch the files of a tier. Return the local directory, for `checkpoint.load`.

    `token`: None uses this machine's token, False uses none. `momentum`: fetch the outer momentum
    of the full checkpoint too, if it has any. Raises CheckpointError or ModelConfigError.
    """
    source = opened(repo, revision, cache_dir, token, endpoint)
    if momentum and (path := str(_base(source) / MOMENTUM_FILE)) in source.sizes:
        config, stored, _ = _config(source, str(_base(source) / "config.json"))
        source.fetch_all([path], _expected(config, stored))
    if tier > 0 and strategy != "universal":
        try:
            return _download_tier(source, _manifests(source), tier)
        except ManifestUnusable as error:
            if strategy == "sliced":
                raise
            log.info("%s: fetching the full checkpoint instead: %s", repo, error.message)
    return _download_full(source, str(_base(source)), tier)


def download_config(
    repo: str,
    revision: str | None,
    *,
    cache_dir: Path | None = None,
    token: str | Literal[False] | None = None,
    endpoint: str | None = None,
) -> Path:
    """Fetch only a checkpoint's config.json and return its path."""
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
    """Fetch config and tokenizer and return their directory. Raises CheckpointError."""
    source = opened(repo, revision, cache_dir, token, endpoint)
    base = _base(source)
    config = source.fetch(str(base / "config.json"), MAX_CONFIG_BYTES)
    if listed := [path for path in (str(base / name) for name in _FETCHED) if path in source.sizes]:
        source.fetch_all(listed, MAX_OTHER_BYTES)
    return config.parent


def _base(source: Repository) -> PurePosixPath:
    """Return the folder of the full model: the folder of the manifest, if there is one."""
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
    """Push a checkpoint directory to a repository and return the commit.

    Create the repository if it is missing. The directories `tiers` next to the checkpoint become
    folders of the same names, as its manifest expects. Without `card`, the repository keeps its own
    model card (README.md).
    """
    if not token:
        raise CheckpointError(
            f"cannot write to {repo} without a token",
            "Set HF_TOKEN to a Hugging Face token with write access",
        )
    disable_progress_bars()
    api = HfApi(endpoint=endpoint, token=token)
    with asking(repo):
        api.create_repo(repo, exist_ok=True)
        chosen: dict[str, Any] = {
            "commit_message": message,
            "ignore_patterns": [MARK] if card else [MARK, CARD_FILE],
        }
        for tier in tiers:  # before the manifest that promises them
            api.upload_folder(repo_id=repo, folder_path=tier, path_in_repo=tier.name, **chosen)
        return str(api.upload_folder(repo_id=repo, folder_path=directory, **chosen).oid)


def _download_tier(source: Repository, manifests: Sequence[str], tier: int) -> Path:
    """Return the tier's files by the manifest. Raises ManifestUnusable."""
    if len(manifests) != 1:
        raise ManifestUnusable(
            f"{source.name} must have one file named {MANIFEST_FILE}, not {len(manifests)}"
        )
    manifest = parse_manifest(source.fetch(manifests[0], MAX_MANIFEST_BYTES).read_bytes())
    entry = manifest.of_tier(tier)
    listed = {name: hub_path(manifests[0], name) for name in entry.files}
    absent = [path for path in listed.values() if path not in source.sizes]
    if absent:
        raise ManifestUnusable(f"{source.name} lacks {absent[0]}, which its manifest lists")
    if len({PurePosixPath(path).parent for path in listed.values()}) != 1:
        raise ManifestUnusable(
            f"the files of tier {tier} in {source.name} are not in one directory"
        )
    return _fetch_tier(source, manifest, entry, listed, manifests[0])


def _fetch_tier(
    source: Repository,
    manifest: Manifest,
    entry: TierFiles,
    listed: Mapping[str, str],
    manifest_path: str,
) -> Path:
    """Fetch a tier's files that the manifest lists, and return their directory."""
    config_path = next(path for path in listed.values() if path.endswith("config.json"))
    config, stored, _ = _config(source, config_path)
    if stored != entry.tier:
        raise CheckpointError(
            f"{source.name}/{config_path} is of tier {stored}, but the manifest says {entry.tier}"
        )
    common = [
        path
        for path in (hub_path(manifest_path, name) for name in manifest.common_files)
        if path in source.sizes
    ]
    root = source.fetch_all(
        [*listed.values(), *common], _expected(config, stored) + MAX_OTHER_BYTES
    )
    verify({name: root / path for name, path in listed.items()}, manifest.sha256)
    return (root / config_path).parent


def _download_full(source: Repository, base: str, tier: int) -> Path:
    """Fetch the checkpoint in folder `base` of the repository, with its tokenizer.

    Skip weight files without tensors of the tier.
    """
    folder = PurePosixPath(base)
    config, stored, form = _config(source, str(folder / "config.json"))
    index = str(folder / INDEX_FILE)
    whole = str(folder / WEIGHTS_FILE)
    if whole in source.sizes:
        weights = [whole]
    elif index in source.sizes:
        without = [] if stored else [absent_from(config, tier, form)]
        shards = read_index(source.fetch(index, MAX_SMALL_BYTES), *without)
        weights = [str(folder / name) for name in shards]
    else:
        weights = [
            path
            for path in source.sizes
            if PurePosixPath(path).parent == folder
            and path.endswith(".safetensors")
            and PurePosixPath(path).name != MOMENTUM_FILE
        ]
    if not weights:
        raise CheckpointError(
            f"{source.name} has no .safetensors file",
            "Name a repository with safetensors weights; other formats are not supported",
        )
    source.fetch_all(weights, _expected(config, stored))
    other_paths = [str(folder / name) for name in ("config.json", INDEX_FILE, *_FETCHED)]
    root = source.fetch_all([path for path in other_paths if path in source.sizes], MAX_OTHER_BYTES)
    return root / folder


def _config(source: Repository, path: str) -> tuple[ModelConfig, int, Form]:
    document = hf_config(source.fetch(path, MAX_CONFIG_BYTES))
    return config_of(document), stored_tier(document)[0], form_of(document)


def _expected(config: ModelConfig, stored: int) -> int:
    """Return the largest plausible size: fp64 per parameter, a tied head twice, headers."""
    sizes = [math.prod(shape) for shape in config.parameter_shapes(stored).values()]
    return 8 * (sum(sizes) + max(sizes)) + (64 << 20)
