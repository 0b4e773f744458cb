"""A fixture for simulated runs that decodes each result once for all members.

All members are in one process, and decoding is a pure function that takes a fifth of a simulated
run's time. If a member changed votes in place, it would change them for the others, and the
replicas would differ.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from aftermath.member import payloads
from aftermath.member.rounds import announce
from aftermath.optim.codec import decode_level


@pytest.fixture(autouse=True)
def decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    once = lru_cache(maxsize=256)(decode_level)
    monkeypatch.setattr(payloads, "decode_level", once)
    monkeypatch.setattr(announce, "decode_level", once)
