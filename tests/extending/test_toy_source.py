"""A data source of another package: one class, registered by an entry point."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from aftermath.base.extensions import BadExtension, extensions
from aftermath.config.data_sources import DataLocationChoice, DataSource
from aftermath.config.tables import extended
from aftermath.data.source import DataRequest
from extending.registered import install

GROUP = "aftermath.data_sources"


def choice(folder: Path, patch: pytest.MonkeyPatch) -> type[DataLocationChoice]:
    patch.syspath_prepend(str(install(folder)))
    return extended(DataLocationChoice, extensions(GROUP, DataSource))  # type: ignore[type-abstract]


def test_registered_source_is_chosen_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locations = choice(tmp_path, monkeypatch)
    location = locations.model_validate({"Counting": {"step": 3}})
    assert locations.name_of(location.source) == "Counting"
    tokens = location.source.open(DataRequest(seq_len=4, vocab_size=10)).read([0, 5])
    assert tokens.tolist() == [[0, 3, 6, 9], [5, 8, 1, 4]]
    assert locations.model_validate({"Local": "tokens"}).source.local_path() == "tokens"


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ({"Counting": {"step": 0}}, "greater than or equal to 1"),
        ({"Counting": {"stride": 1}}, "Extra inputs"),
        ({"Counting": {}, "Dummy": {}}, "exactly one of"),
        ({"Torrent": {}}, "Extra inputs"),
    ],
)
def test_registered_source_refuses_what_its_class_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: object, sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        choice(tmp_path, monkeypatch).model_validate(location)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("Counting = extending.missing:Data", "ModuleNotFoundError"),
        ("Counting = extending.toy_source:CountingTokens", "is not a subclass of DataSource"),
        (
            "Local = extending.toy_source:CountingData",
            "the name Local, which a built-in variant has",
        ),
    ],
)
def test_unusable_entry_point_is_refused_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, sentence: str
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path, {GROUP: entry})))
    with pytest.raises(BadExtension, match=sentence) as caught:
        extended(DataLocationChoice, extensions(GROUP, DataSource))  # type: ignore[type-abstract]
    assert "ninstall" in caught.value.fix
