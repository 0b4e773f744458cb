"""Turns go to threads in the order in which they ask."""

from __future__ import annotations

import threading

from aftermath.base.concurrency import Turns


def test_who_takes_turns_one_after_the_other_lets_others_in_between() -> None:
    turns, told = Turns(), list[str]()
    asked = threading.Event()

    def ask() -> None:
        asked.set()
        with turns:
            told.append("other")

    other = threading.Thread(target=ask)
    with turns:
        other.start()
        asked.wait()
        while turns._given < 2:  # it stands in the queue
            pass
    with turns:
        told.append("again")
    other.join()
    assert told == ["other", "again"]


def test_a_turn_ends_with_an_error() -> None:
    turns = Turns()
    try:
        with turns:
            raise ValueError
    except ValueError:
        pass
    with turns:
        assert turns._now == 1
