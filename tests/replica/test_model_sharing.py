"""The model from peers: offers, their checks, and the choice of peers."""

from __future__ import annotations

import msgspec
import pytest
import torch

from aftermath.model.schema import StateSchema
from aftermath.model.segments import level_hash
from aftermath.p2p.transport import RequestRefused
from aftermath.replica import model_sharing
from aftermath.replica.model_sharing import (
    TOPIC,
    LevelFetcher,
    ModelShare,
    ModelUnavailable,
    Offer,
    SnapshotManifest,
    ask_offers,
    checked,
    manifest_limit,
    snapshot,
)
from aftermath.sim.setup import CONFIG
from aftermath.sim.virtual_time import run_virtual
from member.result_inbox import SCHEMA, ResultInbox, p2p_of

PEERS = (p2p_of(1), p2p_of(2))
STEP = 7


def fetcher_of(inbox: ResultInbox, parallel: int, deadline_s: float) -> LevelFetcher:
    parts = inbox.ports.transport, inbox.ports.clock, SCHEMA.state, inbox.workers.decode
    return LevelFetcher(*parts, parallel=parallel, deadline_s=deadline_s)


def replica(seed: int) -> dict[str, torch.Tensor]:
    """Return a full model of repeatable values. All tensors differ."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator)
        for name, shape in CONFIG.parameter_shapes(0).items()
    }


def blank() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in CONFIG.parameter_shapes(0).items()}


def offered(inbox: ResultInbox, seat: int, seed: int) -> Offer:
    """Let a member offer its replica. Return the offer of level 0."""
    taken = snapshot(replica(seed), SCHEMA.state, 0, STEP)
    ModelShare(inbox.transports[seat]).offer(taken)
    return Offer(STEP, tuple(taken.manifest.levels[0]), (p2p_of(seat),))


def test_member_without_snapshot_refuses_silently(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        ours = inbox.transports[0]
        share = ModelShare(inbox.transports[1])
        with pytest.raises(RequestRefused):
            await ours.request(PEERS[0], TOPIC, b"", 100, 5)
        share.offer(snapshot(replica(1), SCHEMA.state, 0, STEP))
        offers = await ask_offers(ours, SCHEMA.state, PEERS, 5)
        assert [offer.holders for offer in offers[0]] == [(PEERS[0],)]
        share.withdraw()
        assert await ask_offers(ours, SCHEMA.state, PEERS, 5) == {}

    run_virtual(scenario())
    assert not caplog.records


def test_unexpected_offer_error_drops_only_that_offer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of an unexpected kind is logged once."""
    read = model_sharing.checked

    def fragile(reply: bytes, schema: StateSchema) -> SnapshotManifest | None:
        if (offer := read(reply, schema)) is not None and offer.step == 666:
            raise RecursionError("nobody has thought of it")
        return offer

    async def scenario() -> None:
        inbox = ResultInbox()
        for seat, step in ((1, 666), (2, STEP)):
            ModelShare(inbox.transports[seat]).offer(snapshot(replica(1), SCHEMA.state, 0, step))
        for _ in range(3):
            offers = await ask_offers(inbox.transports[0], SCHEMA.state, PEERS, 5)
            assert [offer.holders for offer in offers[0]] == [(PEERS[1],)]

    monkeypatch.setattr(model_sharing, "checked", fragile)
    run_virtual(scenario())
    assert len(caplog.records) == 1


def test_segments_are_fetched_from_all_holders() -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        offers = [offered(inbox, seat, 1) for seat in (1, 2)]
        weights = blank()
        expected_hash = level_hash(replica(1), SCHEMA.state, 0)
        both = Offer(STEP, offers[0].digests, PEERS)
        assert len(both.digests) >= 2, "the test needs something to spread"
        await fetcher_of(inbox, 2, 10).fetch(0, [both], weights, expected_hash)
        assert level_hash(weights, SCHEMA.state, 0) == expected_hash
        assert all(inbox.transports[seat].stats().sent["blob"] > 0 for seat in (1, 2))

    run_virtual(scenario())


def test_offers_of_unattested_levels_fetch_nothing() -> None:
    """Only offers with the hash on chain count, for any number and order of peers."""

    async def scenario() -> None:
        inbox = ResultInbox()
        wrong = offered(inbox, 1, 1)
        right = offered(inbox, 2, 2)
        weights = blank()
        expected_hash = level_hash(replica(2), SCHEMA.state, 0)
        fetcher = fetcher_of(inbox, 2, 10)
        many = Offer(STEP, wrong.digests, PEERS[:1] * 100)
        with pytest.raises(
            ModelUnavailable, match="100 peers offered tensors that differ from the attested ones"
        ):
            await fetcher.fetch(0, [many], weights, expected_hash)
        began = inbox.ports.clock.monotonic()
        await fetcher.fetch(0, [wrong, right], weights, expected_hash)
        assert level_hash(weights, SCHEMA.state, 0) == expected_hash
        assert inbox.ports.clock.monotonic() - began < 1
        assert inbox.transports[1].stats().sent["blob"] == 0
        with pytest.raises(ModelUnavailable, match="no peer offers it"):
            await fetcher.fetch(0, [], weights, expected_hash)

    run_virtual(scenario())


def test_false_level_is_detected_at_first_segment() -> None:
    """The digests are right but the bytes are wrong. Another peer then sends the bytes."""

    async def scenario() -> None:
        inbox = ResultInbox()
        right = offered(inbox, 2, 2)
        for digest in right.digests:
            inbox.transports[1].forge(digest, b"\x01" * 64)
        both = [Offer(STEP - 1, right.digests, PEERS[:1]), right]
        weights = blank()
        expected_hash = level_hash(replica(2), SCHEMA.state, 0)
        await fetcher_of(inbox, 1, 40).fetch(0, both, weights, expected_hash)
        assert level_hash(weights, SCHEMA.state, 0) == expected_hash
        assert inbox.transports[1].stats().sent["blob"] == 0

    run_virtual(scenario())


def test_manifest_beyond_limit_or_schema_is_ignored() -> None:
    levels = {
        level: [bytes(32)] * len(SCHEMA.state.of_level(level))
        for level in range(SCHEMA.state.levels)
    }
    whole = msgspec.msgpack.encode(SnapshotManifest(2**63 - 1, levels))
    assert len(whole) <= manifest_limit(SCHEMA.state)
    assert checked(whole, SCHEMA.state) == SnapshotManifest(2**63 - 1, levels)
    for bad in (
        {**levels, SCHEMA.state.levels: []},
        {**levels, -1: []},
        {**levels, 0: levels[0][1:]},
        {**levels, 0: [bytes(31)] * len(levels[0])},
    ):
        assert checked(msgspec.msgpack.encode(SnapshotManifest(STEP, bad)), SCHEMA.state) is None
    for nonsense in (b"", b"\xff", whole[:-1], whole + b"\0", msgspec.msgpack.encode({"step": 1})):
        assert checked(nonsense, SCHEMA.state) is None
