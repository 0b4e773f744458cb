"""Test the errors for data that is missing or is not the run's."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.base.allowed_locations import TRUSTING, RunAccess
from aftermath.config.chain_values import location_of
from aftermath.config.data_sources import DataLocationChoice
from aftermath.data.source import DataError
from aftermath.train.locations import name_of, open_source


@pytest.mark.parametrize("location", [{"Local": "books-tokens"}, {"Preprocessed": "books-tokens"}])
def test_missing_data_error_differs_for_owner_and_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    place = location_of(DataLocationChoice.model_validate(location))
    with pytest.raises(DataError, match="books-tokens") as owners:
        open_source(place, 16, 257, access=TRUSTING)
    with pytest.raises(DataError, match="books-tokens") as members:
        open_source(place, 16, 257, access=RunAccess(on_local_network=True))
    assert "from its owner and pass --data-path DIR" in str(members.value.fix)
    assert owners.value.fix != members.value.fix


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ({"Local": "books-tokens"}, "{cwd}/books-tokens"),
        ({"Server": "host:5533"}, "host:5533"),
        (
            {"Http": {"location": {"SingleUrl": "https://user:secret@host/a.bin?key=secret"}}},
            "https://host/a.bin",
        ),
        ({"Http": {"location": {"Gcp": {"bucket_name": "my-bucket"}}}}, "my-bucket"),
    ],
)
def test_location_name_is_its_path_or_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: dict[str, object], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert name_of(
        location_of(DataLocationChoice.model_validate(location)), TRUSTING
    ) == name.format(cwd=tmp_path)
