"""Test how `show-run` shows open cases about audited results."""

from __future__ import annotations

from aftermath.cli.run_view import case_document, case_text
from aftermath.rules.audits import Case

CASE = Case(
    seed=9,
    height=7,
    opened=9,
    target=4,
    auditor=1,
    jury=0b101111,
    mismatches=0b000110,
    matches=0b001000,
    intervals=(),
)


def test_open_case_is_shown_with_its_votes() -> None:
    assert case_document(CASE) == {
        "round": 7,
        "seat": 4,
        "auditor": 1,
        "jury": 5,
        "mismatch": 2,
        "match": 1,
    }
    assert case_text(CASE) == "seat 4, round 7: 2 of 5 jurors found a mismatch, 1 a match"
