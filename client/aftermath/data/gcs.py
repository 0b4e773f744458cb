"""Token files of a public Google Cloud bucket, found with its JSON listing (`objects.list`).

Only token files directly in the folder count, sorted by name. STORAGE_EMULATOR_HOST replaces
Google's host, as in Google's own clients.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote

import msgspec

from aftermath.base.bounded import Malformed, json_as
from aftermath.data.formats import SUFFIXES
from aftermath.data.http import HttpClient
from aftermath.data.source import MOST_FILES, DataError

HOST = "https://storage.googleapis.com"
_EMULATOR = "STORAGE_EMULATOR_HOST"
_MOST_PAGES = 64
_MOST_BYTES = 8 << 20  # per page
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


class _Object(msgspec.Struct):
    name: str


class _Page(msgspec.Struct, rename="camel"):
    items: list[_Object] = []
    next_page_token: str = ""


def has_own_host() -> bool:
    """Return whether the environment names a host for buckets."""
    return bool(os.environ.get(_EMULATOR))


def bucket_address(bucket: str) -> str:
    """Return the address below which the files of a bucket are. Raise DataError for a bad host."""
    return f"{_host()}/{bucket}"


def check_bucket(bucket: str) -> None:
    """Raise DataError for an invalid bucket name."""
    if not _BUCKET.fullmatch(bucket):
        raise DataError(f"bucket_name {bucket!r} is not a valid bucket name", "Correct the name")


def bucket_urls(bucket: str, folder: str, client: HttpClient) -> list[str]:
    """Return the addresses of the token files in a folder of a bucket.

    Raise SourceUnavailable or DataError.
    """
    host = _host()
    check_bucket(bucket)
    prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
    names: list[str] = []
    token = ""
    for _ in range(_MOST_PAGES):
        query = f"prefix={quote(prefix, safe='')}&delimiter=%2F&fields=items(name),nextPageToken"
        url = f"{host}/storage/v1/b/{bucket}/o?{query}" + (
            f"&pageToken={quote(token, safe='')}" if token else ""
        )
        try:
            page: _Page = json_as(client.read_document(url, _MOST_BYTES), _Page)
        except Malformed as error:
            raise DataError(f"the listing of bucket {bucket} cannot be read: {error}") from None
        names += [item.name for item in page.items]
        token = page.next_page_token
        if len(names) > MOST_FILES:
            break
        if not token:
            return _urls(bucket, prefix, names, host)
    raise DataError(
        f"bucket {bucket} has more than {MOST_FILES} files",
        "Name one of its folders with filter_directory",
    )


def _host() -> str:
    address = os.environ.get(_EMULATOR) or HOST
    if not address.startswith(("http://", "https://")):
        raise DataError(
            f"{_EMULATOR} is {address!r}, which is not an HTTP address",
            f"Set {_EMULATOR} to http://HOST:PORT, or unset it",
        )
    return address.rstrip("/")


def _urls(bucket: str, prefix: str, object_names: list[str], host: str) -> list[str]:
    token_files = sorted(
        name
        for name in object_names
        if name.endswith(SUFFIXES) and "/" not in name.removeprefix(prefix)
    )
    if not token_files:
        raise DataError(
            f"bucket {bucket} has no token files ({', '.join(SUFFIXES)}) in {prefix or 'its root'}",
            "Check bucket_name and filter_directory",
        )
    return [f"{host}/{bucket}/{quote(name)}" for name in token_files]
