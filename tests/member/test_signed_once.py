"""A member signs one result per place in the run, because two cost its seat and its bond."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aftermath.member.announced_results import Results
from aftermath.member.ports import Desync
from aftermath.member.rounds.announce import Announcing
from aftermath.member.signed_results import SignedResults
from aftermath.rules.announcements import NOTHING, PassSettings, PrivateRoots
from aftermath.sim.sim_transport import SimTransport
from aftermath.sim.virtual_time import run_virtual
from member.result_inbox import ResultInbox, empty_payload, plan_of


def _announcing(inbox: ResultInbox) -> Announcing:
    async def trained(*_: object) -> PrivateRoots:
        return PrivateRoots(NOTHING, b"a" * 32, None)

    wallet: Any = SimpleNamespace(wallet=bytes(32))
    context: Any = SimpleNamespace(
        results=inbox.results, own_state=SimpleNamespace(trained=trained)
    )
    replica = SimpleNamespace(pass_settings=PassSettings(4, "fp32", "fp32", False, "cpu"))
    epoch: Any = SimpleNamespace(
        start=SimpleNamespace(replica=replica, seat=0), can_be_audited=lambda: False
    )
    return Announcing(
        replace(inbox.ports, coordinator=wallet), inbox.role, inbox.workers.decode, context, epoch
    )


def _trained(loss: float) -> Any:
    payloads = {level: empty_payload(level) for level in range(3)}
    metrics = {
        "loss": loss,
        "tokens": 1,
        "tokens_per_sec": 1.0,
        "seconds": 1.0,
        "encode_seconds": 1.0,
        "measured": None,
    }
    return SimpleNamespace(payloads=payloads, **metrics)


def test_repeated_round_is_not_signed_twice() -> None:
    """A lying node shows the same round with the same seed and another share."""

    async def scenario() -> None:
        inbox = ResultInbox()
        announcing = _announcing(inbox)
        inbox.results.open(plan_of())
        await announcing.announce(plan_of(), _trained(1.0))
        candidates = inbox.results.candidates(4, 0)
        header = replace(plan_of().header, data_index=500)
        inbox.results.begin(2)  # it was dropped, and begins the epoch again
        again = replace(
            plan_of(), header=header, shares={**plan_of().shares, 0: plan_of().shares[1]}
        )
        inbox.results.open(again)
        with pytest.raises(Desync, match="signed another result"):
            await announcing.announce(again, _trained(1.0))
        assert len(candidates) == 1
        assert inbox.results.candidates(4, 0) == []
        await announcing.announce(plan_of(5), _trained(1.0))
        inbox.results.close()

    run_virtual(scenario())


def test_round_signed_before_restart_is_not_signed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature is on disk before any peer can see it."""
    on_disk: list[bool] = []

    def look() -> None:
        on_disk.append(any(file.stat().st_size for file in tmp_path.iterdir()))

    async def hear(*_: object) -> None:
        look()

    monkeypatch.setattr(SimTransport, "announce", hear)

    async def scenario() -> None:
        other = replace(plan_of(), shares={**plan_of().shares, 0: plan_of().shares[1]})
        for plan, allowed in ((plan_of(), True), (other, False)):
            inbox = ResultInbox()
            signed = SignedResults(tmp_path, inbox.transports[0].node_id)
            inbox.results = Results(inbox.ports, inbox.role, inbox.workers.decode, signed)
            inbox.results.begin(2)
            inbox.results.open(plan)
            with nullcontext() if allowed else pytest.raises(Desync, match="signed another result"):
                await _announcing(inbox).announce(plan, _trained(1.0))
            inbox.results.close()

    run_virtual(scenario())
    assert on_disk == [True]


def test_unrecordable_result_is_not_announced(tmp_path: Path) -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        inbox.results = Results(
            inbox.ports, inbox.role, inbox.workers.decode, SignedResults(tmp_path / "s", b"k" * 32)
        )
        (tmp_path / "s").rmdir()
        (tmp_path / "s").write_text("a file")
        inbox.results.begin(2)
        inbox.results.open(plan_of())
        with pytest.raises(Desync, match="cannot record"):
            await _announcing(inbox).announce(plan_of(), _trained(1.0))
        assert inbox.results.candidates(4, 0) == []
        inbox.results.close()

    run_virtual(scenario())
