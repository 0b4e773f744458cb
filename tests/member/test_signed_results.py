"""Signed results are remembered after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aftermath.base.errors import Unsuitable
from aftermath.member import signed_results
from aftermath.member.signed_results import SignedResults
from aftermath.rules.seal import ResultPlace

KEY = b"k" * 32
PLACE = ResultPlace("demo", 3, 7, 2**64 - 1, 255)
FIRST = b"1" * 32
SECOND = b"2" * 32


def _file(directory: Path) -> Path:
    return directory / f"{KEY.hex()}.jsonl"


def test_signed_results_after_restart_refuse_another_result(tmp_path: Path) -> None:
    assert SignedResults(tmp_path, KEY).record(PLACE, FIRST)
    again = SignedResults(tmp_path, KEY)
    assert not again.record(PLACE, SECOND)
    assert again.record(PLACE, FIRST)
    for other in (
        PLACE._replace(seed=0),
        PLACE._replace(height=8),
        PLACE._replace(epoch=4),
        PLACE._replace(seat=0),
    ):
        assert again.record(other, SECOND)
    assert SignedResults(tmp_path, b"o" * 32).record(PLACE, SECOND)  # another key


def test_signed_results_survive_torn_last_line(tmp_path: Path) -> None:
    SignedResults(tmp_path, KEY).record(PLACE, FIRST)
    with _file(tmp_path).open("ab") as stream:
        stream.write(b'["demo",3,')
    later = PLACE._replace(height=8)
    assert SignedResults(tmp_path, KEY).record(later, FIRST)
    again = SignedResults(tmp_path, KEY)
    assert not again.record(PLACE, SECOND)
    assert not again.record(later, SECOND)


@pytest.mark.parametrize("line", [b"", b"{}", b'["demo",3,7,1,1,"xy"]', b'["demo",3,7,1]', b"\xff"])
def test_signed_results_with_damaged_line_are_refused(tmp_path: Path, line: bytes) -> None:
    SignedResults(tmp_path, KEY).record(PLACE, FIRST)
    before = _file(tmp_path).read_bytes()
    _file(tmp_path).write_bytes(line + b"\n" + before)
    with pytest.raises(Unsuitable, match="line 1") as refused:
        SignedResults(tmp_path, KEY)
    assert "--identity-secret-key-path" in str(refused.value.fix)


def test_signed_results_keep_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_results, "_KEPT", 3)
    signed = SignedResults(tmp_path, KEY)
    for epoch in range(20):
        assert signed.record(PLACE._replace(epoch=epoch), FIRST)
    lines = [json.loads(line) for line in _file(tmp_path).read_text().splitlines()]
    assert len(lines) <= 6
    assert [line[1] for line in lines[-3:]] == [17, 18, 19]
    assert not SignedResults(tmp_path, KEY).record(PLACE._replace(epoch=17), SECOND)


def test_signed_results_keep_all_of_newest_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed_results, "_KEPT", 3)
    signed = SignedResults(tmp_path, KEY)
    other = PLACE._replace(run_id="other", epoch=0)
    places = [other, *(PLACE._replace(height=height) for height in range(20))]
    for place in [PLACE._replace(epoch=2), *places]:
        assert signed.record(place, FIRST)
    for known in (signed, SignedResults(tmp_path, KEY)):
        assert not any(known.record(place, SECOND) for place in places)


def test_signed_results_keep_lines_of_both_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed_results, "_KEPT", 3)
    one = SignedResults(tmp_path, KEY)
    two = SignedResults(tmp_path, KEY)
    other = PLACE._replace(run_id="other")
    assert two.record(other, FIRST)
    for epoch in range(20):
        assert one.record(PLACE._replace(epoch=epoch), FIRST)
    assert not SignedResults(tmp_path, KEY).record(other, SECOND)
    assert [path.name for path in tmp_path.iterdir()] == [_file(tmp_path).name]


def test_signed_results_in_unwritable_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unsuitable, match="cannot record"):
        SignedResults(tmp_path / "file", KEY)
