"""Tests of runs that an observer rebuilds from event files: snapshots, curves and marks."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.events.reader import EventOrigin, EventRecord, RunName
from aftermath.events.stream import line_of
from aftermath.ui.web import from_events as drawn
from aftermath.ui.web.from_events import EventSnapshots, Losses, Sent
from aftermath.ui.web.observed_run import ObservedRun
from aftermath.ui.web.run_history import RunRecords, SnapshotHistory
from aftermath.ui.web.snapshot import RunSnapshot
from events.sample_events import sample_event
from ui.web.observer_client import observing

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
WALLETS = ("Big1111111111", "Small22222222")


class Story:
    """The events of two members of tiers 0 and 1 about a run. One is dropped on the way."""

    def __init__(self) -> None:
        self.records: list[EventRecord] = []
        self.now = NOON

    def say(self, member: int, kind: str, **fields: Any) -> None:
        self.now += timedelta(seconds=1)
        origin = EventOrigin("told", WALLETS[member], member, "0.1.0")
        self.records.append(EventRecord(self.now, origin, sample_event(kind, **fields), Path("x")))

    def play(self) -> Story:
        for member in (0, 1):
            self.say(
                member,
                "started",
                run_id="told",
                tier=member,
                wallet=WALLETS[member],
                version="0.1.0",
            )
            self.say(member, "joined", seat=member, tier=member, weight=20 - 10 * member, epoch=0)
        for member in (0, 1):
            self.say(member, "state", epoch=0, state="WARMUP", step=0, total_steps=20, since=100)
        for step in range(1, 9):
            for member in (0, 1) if step < 5 else (0,):
                at = {"epoch": 0, "height": step - 1, "step": step}
                self.say(member, "round", since=100 + 2 * step, **at)
                speed = 500.0 / (member + 1)
                loss = 5.0 - step / 10 + member
                self.say(
                    member, "trained", loss=loss, tokens=100, tokens_per_sec=speed, bytes=10, **at
                )
                self.say(member, "traffic", sent=1000 * step, received=10 * step, peers=1)
            if step == 6:
                self.say(0, "dropped", seats=[1], height=5)
        self.say(0, "state", epoch=0, state="COOLDOWN", step=8, total_steps=20, since=130)
        return self

    def write(self, directory: Path) -> Path:
        for member, wallet in enumerate(WALLETS):
            lines = [
                line_of(one.event, one.at) for one in self.records if one.origin.wallet == wallet
            ]
            (directory / f"member-{member}.jsonl").write_text("".join(lines))
        return directory


async def test_observed_run_is_shown_from_events_without_chain(tmp_path: Path) -> None:
    Story().play().write(tmp_path)
    nobody = "http://127.0.0.1:9"
    async with observing(nobody, events=[tmp_path]) as viewer, viewer.live("/live/told") as socket:
        while not (message := await socket.receive_json(timeout=30)).get("now", {}).get("trouble"):
            pass
        assert "no Solana RPC endpoint answered" in message["now"]["trouble"]
        assert message["now"]["silent"] is None
        listed = (await viewer.json("/api/runs"))["list"]
        assert [(run["run_id"], run["on_chain"]) for run in listed["runs"]] == [("told", False)]
        assert "no Solana RPC endpoint" in listed["trouble"]
        reply = await viewer.json("/api/runs/told")
        moment = reply["now"]["moment"]
        assert (moment["state"], moment["step"], moment["total_steps"]) == ("cooldown", 8, 20)
        assert moment["source"] == "events"
        then = await viewer.json(f"/api/runs/told/at/{reply['past'][3]}")
        assert (then["state"], then["round"], then["step"]) == ("round_train", 2, 2)
        assert reply["curves"]["loss"]["1"] == [
            [step, pytest.approx(6.0 - step / 10)] for step in range(1, 5)
        ]
        assert reply["curves"]["sent"]["0"][-1] == [8, 8000]
        assert reply["curves"]["epochs"] == {"0": 1}
        assert reply["curves"]["marks"] == [[4, "Small222 tier 1 dropped"]]


def of_run(created: int, loss: float) -> EventRecord:
    """Return the events of a member about the first step of the run that was created in that slot.
    For slot 0, they do not name the run.
    """
    identity = f"{created:016x}" if created else ""
    origin = EventOrigin(
        "twice", WALLETS[0], 0, "0.1.0", owner="0wner", created=created, identity=identity
    )
    return EventRecord(
        NOON, origin, sample_event("trained", step=1, loss=loss, tokens=10), Path("x")
    )


@pytest.mark.parametrize("order", [(0, 100, 200), (200, 100, 0)], ids=["in turn", "backwards"])
async def test_observed_events_of_same_id_show_last_created_run(
    order: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with RpcPool([endpoint("http://127.0.0.1:9")]) as pool:
        run = ObservedRun(CoordinatorClient(pool), "twice")
        for created in order:
            run.take(of_run(created, loss=created / 100 + 1))
    assert json.loads(run.curves())["loss"] == {"0": [[1, 3.0]]}
    assert run.event_count == 3
    others = [record.getMessage() for record in caplog.records]
    assert all("twice of 0wner, created in slot 100" in other for other in others)


def test_observed_records_of_forged_runs_are_bounded() -> None:
    records = RunRecords("twice")
    for created in range(1, 50):
        records.record_for(RunName("twice", "0wner", created, f"{created:016x}"))
    assert [record.run.created for record in records] == [46, 47, 48, 49]
    assert records.record_for(RunName("twice", "0wner", 3, "3" * 16)) is None


def snapshots_from(records: list[EventRecord]) -> tuple[EventSnapshots, list[RunSnapshot]]:
    snapshots = EventSnapshots("told", Losses())
    moments = [moment for one in records if (moment := snapshots.take(one)) is not None]
    return snapshots, moments


def test_observed_events_of_several_members_merge() -> None:
    snapshot, moments = snapshots_from(Story().play().records)
    assert [(moment.state, moment.round) for moment in moments] == [
        ("warmup", None),
        *(("round_train", height) for height in range(8)),
        ("cooldown", None),
    ]
    big, small = snapshot.members.values()
    assert (big.seat, big.tier, big.weight, big.takes_part, big.seen) == (
        0,
        0,
        20,
        True,
        "epoch 0, round 7",
    )
    assert (small.standing, small.takes_part, small.figures.sent) == ("dropped", False, 4000)


def test_observed_forged_members_are_limited_and_names_cut() -> None:
    snapshots = EventSnapshots("told", Losses())
    for member in range(3000):
        origin = EventOrigin("told", f"{member}".ljust(100_000, "x"), 1 << 200, "")
        snapshots.take(
            EventRecord(
                NOON, origin, sample_event("trained", step=member, loss=1.0, tokens=1), Path("x")
            )
        )
    assert len(snapshots.members) == 1024
    assert max(map(len, snapshots.members)) <= 64
    assert snapshots.event_count == 1024


def test_observed_curves_are_bounded_and_keep_their_means() -> None:
    losses = Losses()
    sent = Sent()
    for step in range(1, 20_001):
        losses.add_event_loss(2, step, 4.0 if step % 2 else 2.0, 10)
        sent.add(2, step, 5)
    losses.add_event_loss(99, 1, 1.0, 1)
    losses.add_event_loss(2, -1, 1e9, 1)
    losses.add_event_loss(2, 1 << 80, 1e9, 1)
    (points,) = losses.by_tier().values()
    assert len(points) <= drawn.MOST_POINTS
    assert points[-1][0] == 20_000
    assert all(loss == pytest.approx(3.0, abs=0.1) for _, loss in points)
    (total,) = sent.by_tier().values()
    assert len(total) <= drawn.MOST_POINTS
    assert total[-1] == (20_000, 100_000.0)


def test_observed_event_losses_take_precedence_over_chain() -> None:
    losses = Losses()
    losses.stated(0, 1, 9.0)
    losses.stated(1, 1, 8.0)
    losses.add_event_loss(0, 1, 5.0, 10)
    assert losses.by_tier() == {0: [(1, 5.0)], 1: [(1, 8.0)]}


def test_observed_impossible_loss_is_not_charted() -> None:
    losses = Losses()
    for step, loss in enumerate((4_294_967.0, 9.0, -1.0), 1):
        losses.stated(0, step, loss)
    assert losses.by_tier() == {0: [(2, 9.0)]}


def moment(at: int) -> RunSnapshot:
    return RunSnapshot(
        at=at, source="chain", run_id="r", state="paused", epoch=at, step=0, total_steps=0
    )


def test_snapshot_history_is_bounded_and_exact_when_near() -> None:
    past = SnapshotHistory(most=100)
    for at in range(1000):
        past.keep(moment(at))
    times = past.times()
    assert len(times) <= 100
    assert times[0] == 0
    assert times[-40:] == list(range(960, 1000))
    assert times == sorted(times)
    small = SnapshotHistory(most_bytes=2000)
    for at in range(200):
        small.keep(moment(at))
    assert 2 <= len(small.times()) < 40


def test_snapshot_history_between_two_returns_earlier() -> None:
    past = SnapshotHistory()
    assert past.before(5) is None
    for at in (20, 10, 10):
        past.keep(moment(at))
    assert past.times() == [10, 20]
    for position, epoch in ((0, 10), (10, 10), (19, 10), (20, 20), (99, 20)):
        snapshot = past.before(position)
        assert snapshot is not None
        assert f'"epoch":{epoch},'.encode() in snapshot
