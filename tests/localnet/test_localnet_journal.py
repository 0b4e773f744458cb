"""The journal file by property: any cut keeps a prefix, any flipped bit is found."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.localnet.errors import LedgerError
from aftermath.localnet.journal import Journal, frame, read_records
from aftermath.localnet.records import Head, Mark, Record, Stored

HEAD = Head(bytes(32), 7)

records = st.lists(
    st.builds(Mark, st.integers(0, 2**63)) | st.builds(Stored, st.binary(max_size=40), st.binary(max_size=200)),
    min_size=0,
    max_size=8,
)


def written(folder: str, content: list[Record]) -> Path:
    path = Path(folder) / "journal"
    journal = Journal(path, HEAD)
    journal.append(content[:1])
    journal.append(content[1:])
    journal.close()
    assert journal.size == path.stat().st_size
    return path


@given(records, st.data())
def test_a_cut_anywhere_keeps_the_whole_records_before_it(content: list[Record], data: st.DataObject) -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        path = written(folder, content)
        content = [HEAD, *content]
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        ends = [sum(len(frame(one)) for one in content[: n + 1]) for n in range(len(content))]
        kept = sum(end <= cut for end in ends)
        assert list(read_records(path, repair=True)) == content[:kept]
        assert path.stat().st_size == ([0] + ends)[kept]
        assert list(read_records(path, repair=False)) == content[:kept]
    logging.disable(logging.NOTSET)


@given(records, st.data())
def test_a_flipped_bit_is_never_read(content: list[Record], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(folder, content)
        whole = bytearray(path.read_bytes())
        where = data.draw(st.integers(0, len(whole) - 1))
        whole[where] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(whole)
        with pytest.raises(LedgerError, match="damaged"):
            list(read_records(path, repair=False))


def test_zeros_after_the_end_are_what_a_power_cut_leaves(tmp_path: Path) -> None:
    path = written(str(tmp_path), [Mark(1), Mark(2)])
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(bytes(100))
    assert list(read_records(path, repair=True)) == [HEAD, Mark(1), Mark(2)]
    assert path.stat().st_size == size
