"""A fixture for simulated runs: it decodes each result once for all members, which are in one
process.

Decoding is a pure function, and takes a fifth of a simulated run's time. A member that changed
votes in place would change them for the others, and their replicas would differ.
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
