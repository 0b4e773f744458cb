"""Mixtures keep their weights on all platforms; rows with labels equal their arrays."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftermath.base.errors import Unsuitable
from aftermath.config.chain_values import location_of
from aftermath.config.data_sources import DataLocationChoice
from aftermath.data.dummy import DummyTokens
from aftermath.data.local import open_tokens
from aftermath.data.preprocessed import PreprocessedRows
from aftermath.data.source import DataError, Source
from aftermath.data.weighted import CYCLE, WeightedSources, cycle_sources
from aftermath.rules.model import DataLocation
from aftermath.train.locations import open_source
from faulty_web import serving


@settings(max_examples=max(5, settings().max_examples // 10))  # 4,096 places of fractions each
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_every_cycle_prefix_follows_weights(weights: list[float]) -> None:
    places = cycle_sources(weights)
    for count in (10, 100, CYCLE):
        for which, weight in enumerate(weights):
            assert abs(places[:count].count(which) - count * weight / sum(weights)) < len(weights)
    assert places == cycle_sources([4 * weight for weight in weights])


def files(folder: Path, **sizes: int) -> list[Source]:
    sources: list[Source] = []
    for number, (name, size) in enumerate(sizes.items()):
        (folder / f"{name}.bin").write_bytes(
            np.arange(1000 * number, 1000 * number + 4 * size, dtype="<u2").tobytes()
        )
        sources.append(open_tokens(folder / f"{name}.bin", 2, 4, vocab_size=1 << 16))
    return sources


@pytest.mark.parametrize("seed", [None, b"s"])
def test_mixture_reads_each_source_in_its_order(tmp_path: Path, seed: bytes | None) -> None:
    mixture = WeightedSources(files(tmp_path, a=30, b=10), [3.0, 1.0], shuffle_seed=seed)
    assert mixture.sequences == 40
    rows = mixture.read(range(40))[:, 0].tolist()
    # weights equal lengths, so each sequence occurs once
    assert sorted(rows) == [*range(0, 120, 4), *range(1000, 1040, 4)]
    assert (rows == [*mixture.read(range(20))[:, 0], *mixture.read(range(20, 40))[:, 0]]) is True
    if seed is None:
        assert [row for row in rows if row < 1000] == [*range(0, 120, 4)]


def test_mixture_without_weights_uses_lengths(tmp_path: Path) -> None:
    mixture = WeightedSources(files(tmp_path, a=30, b=10), None)
    assert [mixture.locate(index)[0] for index in range(8)] == [0, 0, 1, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("weights", [[1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, 1e-9]])
def test_invalid_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(DataError, match="weight"):
        WeightedSources([DummyTokens(4, 9)] * 2, weights)


def location(written: object) -> DataLocation:
    return location_of(DataLocationChoice.model_validate(written))


def test_mixture_is_described_by_json(tmp_path: Path) -> None:
    a, b = files(tmp_path, a=30, b=10)
    places = [{"Local": str(tmp_path / "a.bin")}, {"Local": {"path": str(tmp_path / "b.bin")}}]
    with serving() as web:
        web.files["/m.json"] = json.dumps(
            {"providers": [[places[0], 1], [places[1], 0.5]]}
        ).encode()
        mixture = open_source(location({"WeightedHttp": f"{web.url}/m.json"}), 4, 1 << 16)
        assert np.array_equal(
            mixture.read(range(50)), WeightedSources([a, b], [1, 0.5]).read(range(50))
        )
        assert [record.name for record in mixture.record()] == ["mixture", "a.bin", "b.bin"]
        web.files["/m.json"] = json.dumps(
            {"shuffle": {"Seeded": [1] * 32}, "providers": places}
        ).encode()
        mixture = open_source(location({"WeightedHttp": f"{web.url}/m.json"}), 4, 1 << 16)
        expected = WeightedSources([a, b], None, shuffle_seed=bytes([1] * 32))
        assert np.array_equal(mixture.read(range(50)), expected.read(range(50)))
        nested = {"providers": [{"WeightedHttp": f"{web.url}/m.json"}]}
        for wrong in (
            [],
            {"providers": []},
            {"providers": [places[0], [places[1], 1]]},
            {"a": 1},
            nested,
            {"providers": 3},
        ):
            web.files["/m.json"] = json.dumps(wrong).encode()
            with pytest.raises(DataError, match=r"is not a valid mixture|a mixture cannot contain"):
                open_source(location({"WeightedHttp": f"{web.url}/m.json"}), 4, 1 << 16)


INPUTS = np.arange(40).reshape(5, 8)
WANTED = np.where(INPUTS % 8 < 3, -100, INPUTS)


def rows(folder: Path, inputs: np.ndarray = INPUTS, labels: np.ndarray | None = WANTED) -> Path:
    np.save(folder / "a.inputs.npy", inputs[:2].astype(np.uint16))
    np.save(folder / "b.inputs.npy", inputs[2:].astype(np.int64))
    if labels is not None:
        np.save(folder / "a.labels.npy", labels[:2].astype(np.int32))
        np.save(folder / "b.labels.npy", labels[2:].astype(np.int64))
    return folder


def test_rows_have_their_labels(tmp_path: Path) -> None:
    source = open_source(location({"Preprocessed": str(rows(tmp_path))}), 8, 40, labels=True)
    read = source.read([4, 0, 7])
    assert read.shape == (3, 2, 8)
    assert np.array_equal(read[:, 0], INPUTS[[4, 0, 2]])
    assert np.array_equal(read[:, 1], WANTED[[4, 0, 2]])
    assert len(source.record()) == 4
    assert np.array_equal(PreprocessedRows(tmp_path, 8, 40, labels=False).read([1]), INPUTS[[1]])


@pytest.mark.parametrize(
    ("inputs", "labels", "sentence"),
    [
        (INPUTS, None, "no labels at"),
        (INPUTS[:, :7], WANTED[:, :7], "the run expects rows of 8 tokens"),
        (INPUTS, WANTED[:4], "have different shapes"),
        (INPUTS + 1, WANTED, "token 40 is outside the vocabulary of 40"),
        (INPUTS, WANTED - 1, "token -101 is outside"),
    ],
)
def test_wrong_labelled_rows_are_named(
    tmp_path: Path, inputs: np.ndarray, labels: np.ndarray, sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        PreprocessedRows(rows(tmp_path, inputs, labels), 8, 40, labels=True).read(range(5))


def test_data_without_labels_is_refused_by_name() -> None:
    with pytest.raises(Unsuitable, match="trains on labels"):
        open_source(location("Dummy"), 8, 40, labels=True)
