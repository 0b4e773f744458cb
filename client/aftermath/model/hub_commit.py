"""One commit of a repository of the Hugging Face Hub: what files it has, and fetching them within limits.

Decided
- The listing (names and sizes) is read first, of one commit, which is used throughout, also if the branch moves.
- What the listing says is hostile too: strange names are not there, sizes are compared again after the download. Of
  the headers that the Hub's library makes paths of, as they are, none may lead out of its cache.
- A request ends after 10 s without a byte and a download when it is slower than any member could use; every failure
  is a sentence that says what to do.
"""

from __future__ import annotations

import errno
import glob
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
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
from huggingface_hub.utils._http import default_client_factory  # no public name gives the same hooks
from huggingface_hub.utils.tqdm import disable_progress_bars

from aftermath.base.concurrency import within
from aftermath.base.errors import AftermathError
from aftermath.model.documents import MAX_NAME, MAX_PART, CheckpointError, HubAway

TIMEOUT_SECONDS = 10.0
PATIENCE_SECONDS, SLOWEST = 60.0, 100_000  # longest download: 60 s, plus its size at 100 kB/s
_MADE_PATHS = ("ETag", "X-Linked-ETag", "X-Repo-Commit")
_OFFLINE = "Check this machine's internet connection, or use a Local checkpoint"


@dataclass(frozen=True)
class Repository:
    """One commit of a repository: its files and their sizes, negative where the listing gives none."""

    name: str
    commit: str
    sizes: Mapping[str, int]
    token: str | Literal[False] | None
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
            found = {path: (root / path).stat().st_size for path in paths}
        for path, size in found.items():
            if size != self.sizes[path]:
                raise CheckpointError(f"{self.name}/{path} has {size:,} bytes, its listing said {self.sizes[path]:,}")
        return root

    def _limited(self, paths: Sequence[str], limit: int) -> int:
        absent = [path for path in paths if path not in self.sizes]
        if absent:
            raise CheckpointError(f"{self.name} has no file {absent[0]}", "Name a repository with a checkpoint")
        unknown = [path for path in paths if self.sizes[path] < 0]
        if unknown:
            raise CheckpointError(f"{self.name} does not say how large {unknown[0]} is")
        need = sum(self.sizes[path] for path in paths)
        if need > limit:
            raise CheckpointError(f"{self.name} lists {need:,} bytes for {paths[0]}, at most {limit:,} are expected")
        return need


def opened(
    repo: str,
    revision: str | None,
    cache_dir: Path | None,
    token: str | Literal[False] | None,
    endpoint: str | None,
) -> Repository:
    """The repository at a revision, None for its newest. Raises CheckpointError."""
    disable_progress_bars()
    _watch_answers()
    api = HfApi(endpoint=endpoint, token=token)
    call = partial(api.model_info, repo, revision=revision or None, files_metadata=True, timeout=TIMEOUT_SECONDS)
    with asking(repo, revision, token=token):
        info = within(PATIENCE_SECONDS, call, _too_slow(repo))
    if not re.fullmatch("[0-9a-f]{40}", str(info.sha)):
        raise CheckpointError(f"the Hub named no commit of {repo}", "Try again later")
    sizes = {
        file.rfilename: file.size if isinstance(file.size, int) else -1
        for file in info.siblings or []
        if _is_plain(file.rfilename)
    }
    return Repository(repo, str(info.sha), sizes, token, endpoint, Path(cache_dir or HF_HUB_CACHE))


@cache
def _watch_answers() -> None:
    """Once: it ends the connections that there are."""
    set_client_factory(_client)


def _client() -> Any:
    """The library's HTTP client, with a look at every answer."""
    try:
        client = default_client_factory()
    except Exception as error:  # the library reads the proxy variables here, and has several errors for them
        raise CheckpointError(
            f"the Hub's client cannot use this machine's proxy variables: {type(error).__name__}: {error}",
            "Set HTTPS_PROXY and ALL_PROXY to http://HOST:PORT or socks5h://HOST:PORT (pip install socksio), or unset "
            "them",
        ) from None
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks["response"], _check_headers]}
    return client


def _check_headers(response: Any) -> None:
    """Raises CheckpointError."""
    said = (response.headers.get(name, "") for name in _MADE_PATHS) if response.request.method == "HEAD" else ()
    for value in said:
        tag = value.removeprefix("W/").strip('"')
        if len(tag) > 200 or tag in (".", "..") or not set("/\\:\0").isdisjoint(tag):
            raise CheckpointError(f"the Hub names a file's version {tag[:80]!r}, which is none", "Try again later")


@contextmanager
def asking(repo: str, revision: str | None = None, *, token: str | Literal[False] | None = None) -> Iterator[None]:
    """Turn whatever the Hub's client raises into a CheckpointError that says what to do."""
    needed = "set HF_TOKEN" if token is not False else f"set HF_TOKEN and pass --hub-token-for {repo}"
    try:
        yield
    except AftermathError:
        raise
    except GatedRepoError:
        raise CheckpointError(f"{repo} is gated", f"Accept its terms on the Hub, and {needed}") from None
    except RevisionNotFoundError:
        raise CheckpointError(f"{repo} has no revision {revision}", "Correct the checkpoint's revision") from None
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"there is no Hub repository {repo}, or it is private", f"Correct its name, or {needed} to reach it"
        ) from None
    except HFValidationError:
        raise CheckpointError(f"{repo!r} is not the name of a Hub repository", "Use the form owner/name") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            fix = f"A token with the rights for it is needed: {needed}"
            raise CheckpointError(f"the Hub answered {status} for {repo}", fix) from None
        raise HubAway(f"the Hub answered {status} for {repo}", "Try again later") from None
    except Exception as error:  # connection errors have other classes in every version of the client
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(f"the disk is full while fetching {repo}", "Free some space and try again") from None
        raise HubAway(f"the Hub cannot be reached for {repo}: {error}".splitlines()[0], _OFFLINE) from None


def _is_plain(path: object) -> bool:
    """Whether a listed path is one that stays below the repository's root on every system, and that systems take."""
    if not isinstance(path, str) or not path or "\\" in path or "\0" in path or ":" in path:
        return False
    if len(path.encode(errors="replace")) > MAX_NAME:
        return False
    parts = path.split("/")
    return all(part not in ("", ".", "..") and len(part.encode(errors="replace")) <= MAX_PART for part in parts)


def _too_slow(repo: str) -> CheckpointError:
    return HubAway(f"the Hub is too slow with {repo}", "Try again later, or use a Local checkpoint")
