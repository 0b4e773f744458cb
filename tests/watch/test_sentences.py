"""What events say to a person."""

from __future__ import annotations

from aftermath.base.errors import AftermathError
from aftermath.watch import kinds
from aftermath.watch.sentences import Sentences


def test_the_fix_in_a_warning_is_seen_to_belong_to_it() -> None:
    full = AftermathError("0 bytes are free", "Free some space")
    assert Sentences().of(kinds.Warning(message=f"no checkpoint was kept: {full}")) == (
        "[yellow]no checkpoint was kept: 0 bytes are free\n    Free some space[/yellow]"
    )
