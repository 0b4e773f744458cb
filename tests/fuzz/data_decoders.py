"""Decoders of messages of data servers, clients, buckets and mixtures, and of headers of token
files.
"""

from __future__ import annotations

import io
import json
import struct

import numpy as np
from pydantic import ValidationError

from aftermath.base.bounded import Malformed, json_value
from aftermath.config.mixture import _parsed
from aftermath.data import gcs, messages
from aftermath.data.formats import layout_of
from aftermath.data.http import HttpClient
from aftermath.data.source import DataError, FileRecord
from fuzz.decoder import Decode, Decoder


def questions() -> tuple[list[bytes], Decode]:
    return [
        messages.encode_message(one)[messages.LENGTH_BYTES :]
        for one in (messages.DescribeRequest(), messages.ReadRequest([0, 7, 1 << 40]))
    ], messages.decode_request


def answers() -> tuple[list[bytes], Decode]:
    described = messages.Description(2, 32, 10, [FileRecord("a.bin", 640, "ab" * 32)])
    replies = (described, messages.TokensReply(bytes(64)), messages.ErrorReply("there are 10"))
    return [
        messages.encode_message(one)[messages.LENGTH_BYTES :] for one in replies
    ], messages.decode_reply


class Listed(HttpClient):
    """A bucket with one page."""

    def __init__(self, page: bytes) -> None:
        self._page = page

    def read_document(self, url: str, most: int) -> bytes:
        del url, most
        return self._page


def listings() -> tuple[list[bytes], Decode]:
    page = {"items": [{"name": "folder/a.bin"}, {"name": "folder/b/c.npy"}], "nextPageToken": ""}
    return [json.dumps(page).encode()], lambda data: gcs.bucket_urls(
        "bucket", "folder", Listed(data)
    )


def mixtures() -> tuple[list[bytes], Decode]:
    urls = [{"Http": {"location": {"SingleUrl": f"https://x.org/{name}.bin"}}} for name in "ab"]
    documents = [
        {"providers": urls},
        {"shuffle": {"Seeded": [1] * 32}, "providers": [[urls[0], 0.5], ["Dummy", 2]]},
    ]
    return [json.dumps(one).encode() for one in documents], lambda data: _parsed(json_value(data))


def heads() -> tuple[list[bytes], Decode]:
    array = io.BytesIO()
    np.save(array, np.arange(16, dtype="<u2"))
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 4
    seeds = [array.getvalue(), header.tobytes() + struct.pack("<4H", 1, 2, 3, 4), bytes(8)]
    return seeds, lambda data: layout_of("tokens.ds", len(data), data, 2)


DATA = [
    Decoder("data question", questions, (Malformed,)),
    Decoder("data answer", answers, (Malformed,)),
    Decoder("listing of a bucket", listings, (DataError,)),
    Decoder("mixture", mixtures, (Malformed, ValidationError, TypeError, ValueError, KeyError)),
    Decoder("head of tokens", heads, (DataError,)),
]
