"""Sources of the model in warm-up: offers and files count only if they match the hash on chain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aftermath.base.errors import SchemaError
from aftermath.coordinator.ports import View
from aftermath.member.feed import RunFeed
from aftermath.member.ports import Desync
from aftermath.member.warmup import NoModel, WarmUp, why_no_model
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import HubAway
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.model.saved_checkpoints import maker_name
from aftermath.model.segments import level_hash
from aftermath.replica.model_sharing import ModelShare, snapshot
from aftermath.replica.origin import Origin
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.rules.contents import UNATTESTED
from aftermath.rules.model import Checkpoint, Recorded
from aftermath.rules.run import Run
from aftermath.rules.state import CheckpointKind, ModelSource, RunState
from aftermath.sim.setup import CONFIG
from aftermath.sim.virtual_time import run_virtual
from member.result_inbox import SCHEMA, ResultInbox, three_members
from rules import builders

STEP = 7
# seeds of the weights: the run's model, another one, and the one on disk
ATTESTED = 1
OTHER = 2
DURABLE = 3


def _hash(weights: Mapping[str, Tensor] | int, level: int) -> bytes:
    return level_hash(
        init_weights(CONFIG, weights) if isinstance(weights, int) else weights, SCHEMA.state, level
    )


class Joiner:
    """A tier-1 member in the warm-up after an epoch that two others, of tiers 1 and 2, have
    finished.
    """

    def __init__(
        self,
        place: Path,
        *,
        attested: int,
        source: ModelSource = ModelSource.PEERS,
        finished: bool = False,
    ) -> None:
        """`attested`: bitmap of the levels with hashes on chain. `finished`: whether this member
        finished the epoch.
        """
        write_checkpoint(
            place / "model", init_weights(CONFIG, DURABLE), CONFIG, tier=0, companions={}
        )
        self._checkpoint = Checkpoint(CheckpointKind.LOCAL, str(place / "model"), "")
        self.inbox = ResultInbox()
        self.run = builders.run(
            RunState.WARMUP,
            epoch=2,
            step=STEP,
            model_source=source,
            finishers=0b110 | finished,
            rounds=(builders.header(0b111),),
            levels_attested=attested,
            level_hashes=tuple(
                _hash(ATTESTED, level) if attested >> level & 1 else bytes(32) for level in range(3)
            ),
            config=builders.config(warmup_time=30),
        )
        self._model = builders.model(checkpoint=self._checkpoint)
        self.feed = RunFeed(self.view(self.run))
        self._ports = replace(self.inbox.ports, feed=self.feed, coordinator=self)  # type: ignore[arg-type]
        for seat in (1, 2):
            ModelShare(self.inbox.transports[seat])  # they answer, but offer nothing yet

    def view(self, run: Run) -> View:
        return builders.view(run, three_members(), self._model)

    def recorded(self, place: Path, before: Path, seed: int | None = None) -> None:
        """Record `place` as the checkpoint, and before it another of the same step.

        Hashes are of these weights, or else of the run's model.
        """
        hashes = (
            self.run.level_hashes
            if seed is None
            else tuple(_hash(seed, level) for level in range(3))
        )
        places = [Checkpoint(CheckpointKind.LOCAL, str(one), "") for one in (place, before)]
        earlier = (Recorded(places[1], hashes, 0, STEP),)
        model = builders.model(
            checkpoint=places[0], checkpoint_step=STEP, checkpoint_hashes=hashes, earlier=earlier
        )
        self.feed.view = builders.view(self.run, three_members(), model)

    def now(self) -> int:
        return 0

    def offer(self, seat: int, seed: int, step: int = STEP) -> None:
        """Member `seat`, of tier `seat`, offers these weights."""
        ModelShare(self.inbox.transports[seat]).offer(
            snapshot(init_weights(CONFIG, seed, seat), SCHEMA.state, seat, step)
        )

    def falsely_named(self, step: int) -> None:
        """Record a false location for the checkpoint of a step, with the hashes of the run's
        model.
        """
        place = Checkpoint(CheckpointKind.HUB, "/etc", "")
        hashes = tuple(_hash(ATTESTED, level) for level in range(3))
        model = builders.model(
            checkpoint=place, checkpoint_step=step + 1, checkpoint_hashes=hashes, earlier=()
        )
        self.feed.view = builders.view(self.run, three_members(), model)

    async def obtain(self, seed: int | None = None, checkpoint_dir: Path | None = None) -> Replica:
        """Run the warm-up with a replica of these weights and a directory of own checkpoints, if
        any.
        """
        origin = Origin(SCHEMA, 1, "auto", torch.device("cpu"), PassSize(4, "off"), lambda: 0.0)
        began = replace(self.feed.view, run=self.run)
        warm = WarmUp(
            self._ports,
            replace(self.inbox.role, tier=1),
            self.inbox.workers,
            origin,
            began,
            0,
            4,
            checkpoint_dir,
        )
        if seed is not None:
            replica = origin.replica(init_weights(CONFIG, seed, 1))
            if await warm.keeps(replica):
                return replica
        return await warm.obtain()

    def event_values(self, kind: str, what: str) -> list[str]:
        return [event[what] for event in self.inbox.events if event["kind"] == kind]

    def sent(self, seat: int) -> int:
        """Return the bytes of tensors that member `seat` has sent."""
        return self.inbox.transports[seat].stats().sent["blob"]


@pytest.mark.parametrize("there", ["nothing", "another model", "other weights"])
def test_source_without_model_is_skipped_for_another(tmp_path: Path, there: str) -> None:
    """The hashes on chain are trusted, but the recorded location is not."""

    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b111, source=ModelSource.CHECKPOINT)
        bad = tmp_path / "bad"
        if there == "another model":
            other = CONFIG.from_hf({**CONFIG.to_hf(), "num_hidden_layers": 3})
            write_checkpoint(bad, init_weights(other, ATTESTED), other, tier=0, companions={})
        elif there == "other weights":
            write_checkpoint(bad, init_weights(CONFIG, OTHER), CONFIG, tier=0, companions={})
        write_checkpoint(
            tmp_path / "good", init_weights(CONFIG, ATTESTED), CONFIG, tier=0, companions={}
        )
        joiner.recorded(bad, tmp_path / "good")
        replica = await joiner.obtain()
        assert replica.hashes() == {1: _hash(ATTESTED, 1), 2: _hash(ATTESTED, 2)}
        assert joiner.event_values("model", "source") == ["the checkpoint"]

    run_virtual(scenario())


@pytest.mark.parametrize("right", [True, False])
def test_own_copy_with_recorded_hashes_replaces_false_place(tmp_path: Path, right: bool) -> None:
    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b111, source=ModelSource.CHECKPOINT)
        joiner.falsely_named(STEP)
        own = tmp_path / "kept" / f"test-step{STEP}"
        own.parent.mkdir()
        weights = init_weights(CONFIG, ATTESTED if right else OTHER)
        made_by = maker_name(joiner.run.identity)
        write_checkpoint(own, weights, CONFIG, tier=0, companions={}, made_by=made_by)
        if right:
            replica = await joiner.obtain(checkpoint_dir=own.parent)
            assert replica.hashes() == {1: _hash(ATTESTED, 1), 2: _hash(ATTESTED, 2)}
            assert not joiner.event_values("warning", "message")
            return
        with pytest.raises(NoModel):
            await joiner.obtain(checkpoint_dir=own.parent)
        (warned,) = joiner.event_values("warning", "message")
        assert "'/etc' is not a Hub repository" in warned
        assert "aftermath-solana checkpoint --repo OWNER/NAME" in warned

    run_virtual(scenario())


@pytest.mark.parametrize("own", [ATTESTED, OTHER, None])
def test_missing_peers_with_valid_own_copy_are_not_warned(tmp_path: Path, own: int | None) -> None:
    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b111)
        checkpoint_dir = tmp_path / "kept"
        checkpoint_dir.mkdir()
        good = tmp_path / "good"
        write_checkpoint(good, init_weights(CONFIG, ATTESTED), CONFIG, tier=0, companions={})
        bad = tmp_path / "bad"
        joiner.recorded(bad if own == OTHER else good, bad)
        if own is not None:
            write_checkpoint(
                checkpoint_dir / f"test-step{STEP - 1}",
                init_weights(CONFIG, own),
                CONFIG,
                tier=0,
                companions={},
                made_by=maker_name(joiner.run.identity),
            )
        if own == OTHER:
            with pytest.raises(NoModel):
                await joiner.obtain(checkpoint_dir=checkpoint_dir)
        else:
            await joiner.obtain(checkpoint_dir=checkpoint_dir)
            assert joiner.event_values("model", "source") == ["the checkpoint"]
        warned = joiner.event_values("warning", "message")
        assert ("cannot fetch level 1 of the model: no peer offers it" in warned) is (
            own != ATTESTED
        )

    run_virtual(scenario())


def test_unexpected_source_error_skips_only_that_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error counts, except running out of memory."""
    durable = Origin.durable
    troubles = list[Exception]()

    def fragile(self: Origin, place: Checkpoint, *, momentum: bool = True) -> dict[str, Tensor]:
        if place.repo == str(tmp_path / "bad"):
            raise troubles[-1]
        return durable(self, place, momentum=momentum)

    async def scenario(place: Path) -> None:
        joiner = Joiner(place, attested=0b111, source=ModelSource.CHECKPOINT)
        write_checkpoint(
            place / "good", init_weights(CONFIG, ATTESTED), CONFIG, tier=0, companions={}
        )
        joiner.recorded(tmp_path / "bad", place / "good")
        replica = await joiner.obtain()
        assert replica.hashes() == {1: _hash(ATTESTED, 1), 2: _hash(ATTESTED, 2)}

    monkeypatch.setattr(Origin, "durable", fragile)
    for number, trouble in enumerate((RecursionError("deep"), SchemaError("no way to cut it"))):
        troubles.append(trouble)
        run_virtual(scenario(tmp_path / f"{number}"))
    troubles.append(MemoryError())
    with pytest.raises(MemoryError):
        run_virtual(scenario(tmp_path / "full"))


def test_level_differing_from_attested_hash_is_discarded(tmp_path: Path) -> None:
    """The sources differ. The chain decides, in any order of asking."""

    async def scenario(wrong: int, right: int) -> None:
        joiner = Joiner(tmp_path / str(wrong), attested=0b100)
        joiner.offer(wrong, OTHER), joiner.offer(right, ATTESTED)
        assert (await joiner.obtain()).hashes()[2] == _hash(ATTESTED, 2)

    run_virtual(scenario(1, 2))
    run_virtual(scenario(2, 1))


def test_offers_of_runs_step_come_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b110)
        joiner.offer(1, ATTESTED), joiner.offer(2, OTHER, step=STEP - 6)
        assert (await joiner.obtain()).hashes() == {1: _hash(ATTESTED, 1), 2: _hash(ATTESTED, 2)}
        assert joiner.sent(2) == 0

    run_virtual(scenario())


def test_unchanged_level_may_come_from_older_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b110)
        joiner.offer(1, ATTESTED, step=STEP - 6)
        assert (await joiner.obtain()).hashes() == {1: _hash(ATTESTED, 1), 2: _hash(ATTESTED, 2)}

    run_virtual(scenario())


def test_replica_with_another_hash_is_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b110)
        joiner.offer(1, ATTESTED)
        assert (await joiner.obtain(OTHER)).hashes() == {
            1: _hash(ATTESTED, 1),
            2: _hash(ATTESTED, 2),
        }

    run_virtual(scenario())


@pytest.mark.parametrize("source", list(ModelSource))
def test_unattested_checkpoint_is_never_used(tmp_path: Path, source: ModelSource) -> None:
    """Level 2 on disk is not the one on chain, and no peer has it. The warm-up ends without a
    replica.
    """

    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b100, source=source)
        clock = joiner.inbox.ports.clock

        async def end() -> None:
            await clock.sleep(10)
            await joiner.feed.put(
                joiner.view(replace(joiner.run, seq=joiner.run.seq + 1, state=RunState.ROUND_TRAIN))
            )

        ending = asyncio.ensure_future(end())
        with pytest.raises(Desync, match="warm-up ended before this member had the model"):
            await joiner.obtain()
        await ending
        why = "cannot get the model yet: level 2 of the durable checkpoint is not the one that members attested"
        assert joiner.event_values("warning", "message").count(why) == 1, (
            "it is tried several times, and said once"
        )

    run_virtual(scenario())


@pytest.mark.parametrize("source", list(ModelSource))
def test_member_without_model_source_gives_up_halfway(tmp_path: Path, source: ModelSource) -> None:
    """Otherwise the other members would wait for the whole warm-up."""

    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b100, source=source)
        with pytest.raises(NoModel, match="for half of the warm-up's time"):
            await joiner.obtain()
        assert 15 <= joiner.inbox.ports.clock.monotonic() < 25

    run_virtual(scenario())


def test_endless_source_is_abandoned_when_too_late(tmp_path: Path) -> None:
    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b110)
        joiner.offer(1, ATTESTED)
        clock = joiner.inbox.ports.clock

        async def fetch(*_: object, **__: object) -> bytes:
            await clock.sleep(1e6)
            return b""

        joiner.inbox.transports[0].fetch = fetch  # type: ignore[method-assign]

        async def give_up_late() -> None:
            for height in range(5):
                await clock.sleep(20)
                now = replace(joiner.run, seq=height + 1, state=RunState.ROUND_TRAIN)
                later = replace(
                    now, rounds=(builders.header(0b111, height=height), *now.rounds[1:])
                )
                await joiner.feed.put(joiner.view(later))

        going = asyncio.ensure_future(give_up_late())
        with pytest.raises(Desync, match="the epoch continued before the model arrived"):
            await joiner.obtain()
        assert clock.monotonic() == 100
        await going

    run_virtual(scenario())


@pytest.mark.parametrize("own", [None, ATTESTED, OTHER])
@pytest.mark.parametrize("offered", [(), (ATTESTED, ATTESTED), (ATTESTED, OTHER), (OTHER, OTHER)])
@pytest.mark.parametrize("lost", [0, 0b100])
def test_unattested_level_comes_from_checkpoint(
    tmp_path: Path, own: int | None, offered: tuple[int, ...], lost: int
) -> None:
    """Even if all peers agree, because they may tell another member something else. No byte is
    fetched.
    """

    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b010, finished=own is not None)
        joiner.run = replace(joiner.run, levels_lost=lost)
        for seat, seed in zip((1, 2), offered, strict=False):
            joiner.offer(seat, seed)
        if not offered:  # a holder of level 1 offers it
            joiner.offer(1, ATTESTED)
        if offered[:1] == (OTHER,) and own != ATTESTED:
            with pytest.raises(NoModel):
                await joiner.obtain(own)
            return
        replica = await joiner.obtain(own)
        assert replica.hashes() == {1: _hash(ATTESTED, 1), 2: _hash(DURABLE, 2)}
        assert joiner.inbox.ports.clock.monotonic() < 10
        assert joiner.sent(2) == 0
        assert not [
            message for message in joiner.event_values("warning", "message") if "level 2" in message
        ]

    run_virtual(scenario())


@pytest.mark.parametrize("own", [DURABLE, OTHER])
def test_unattested_level_is_checked_against_chain(tmp_path: Path, own: int) -> None:
    """A matching replica is kept, and a location with other contents is skipped."""

    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0b010, finished=True)
        write_checkpoint(
            tmp_path / "bad", init_weights(CONFIG, OTHER), CONFIG, tier=0, companions={}
        )
        joiner.run = replace(joiner.run, level_hashes=(UNATTESTED, _hash(DURABLE, 1), UNATTESTED))
        joiner.recorded(tmp_path / "bad", tmp_path / "model", DURABLE)
        joiner.offer(1, DURABLE)
        replica = await joiner.obtain(own)
        assert replica.hashes() == {1: _hash(DURABLE, 1), 2: _hash(DURABLE, 2)}
        source = "its own replica" if own == DURABLE else "peers and the checkpoint"
        assert joiner.event_values("model", "source") == [source]

    run_virtual(scenario())


def test_level_without_hash_comes_from_current_source(tmp_path: Path) -> None:
    """The owner has replaced the first checkpoint. A member that cannot load it must not use the
    old one.
    """

    async def scenario() -> None:
        joiner = Joiner(tmp_path, attested=0, source=ModelSource.CHECKPOINT)
        joiner.recorded(tmp_path / "nothing", tmp_path / "model")
        with pytest.raises(NoModel):
            await joiner.obtain()

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("step", "fix"),
    [
        (
            4,
            "Check this machine's internet connection. Meanwhile this member asks others",
        ),
        (0, "Check this machine's internet connection"),
    ],
)
def test_silent_hub_blames_network_only_for_owners_place(step: int, fix: str) -> None:
    """Before its first step, a run has the location that its owner set."""
    away = HubAway(
        "the Hub cannot be reached for nobody/none", "Check this machine's internet connection"
    )
    place = Checkpoint(CheckpointKind.HUB, "nobody/none", "")
    message = why_no_model(away, builders.model(checkpoint=place, checkpoint_step=step))
    assert message.startswith(f"{away.message}\n{fix}")
