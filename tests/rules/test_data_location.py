"""Test the mark of a data location: the hash of its files after the folder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.rules.model import DataLocation, marked
from aftermath.rules.state import DataKind


def location(secondary: str) -> DataLocation:
    return DataLocation(DataKind.HTTP_GCP, 2, 0, 0, 0, 0, "bucket", secondary, bytes(32), None)


@given(
    st.text(max_size=120).filter(lambda text: "#sha256=" not in text),
    st.none() | st.binary(min_size=32, max_size=32),
)
def test_data_location_round_trips_hash(folder: str, digest: bytes | None) -> None:
    place = location(marked(folder, digest.hex() if digest else ""))
    assert place.files_hash == (digest.hex() if digest else "")
    assert place.secondary.startswith(folder)


@pytest.mark.parametrize(
    "strange", ["a#sha256=", "#sha256=" + "0" * 63, "#sha256=" + "G" * 64, "#sha256=" + "0" * 65]
)
def test_data_location_with_invalid_hash_has_no_hash(strange: str) -> None:
    assert location(strange).files_hash == ""
