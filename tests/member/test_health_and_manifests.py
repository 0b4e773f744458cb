"""Test which members are reported for not delivering, and which offers of the model are
accepted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from aftermath.member.rounds.health import unseen
from aftermath.model.initial_weights import init_weights
from aftermath.replica.model_sharing import SnapshotManifest, checked, snapshot
from aftermath.rules import bitmap
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, RunState
from aftermath.sim.setup import CONFIG
from member.result_inbox import SCHEMA, header_of, run_at, three_members
from rules import builders

# --- health ---------------------------------------------------------------------------------------


def _after(attested: int, attestations: int, overlap: int = 1) -> Run:
    rounds = [
        replace(header_of(4)),
        replace(header_of(5), attested=attested, attestations=attestations),
        header_of(6),
    ]
    config = builders.config(overlap=overlap)
    return builders.run(RunState.ROUND_TRAIN, rounds=tuple(rounds), head=2, epoch=2, config=config)


def test_member_unseen_by_quorum_is_suspected() -> None:
    assert unseen(_after(0b011, 3), three_members()) == 0b100
    assert unseen(_after(0b011, 2), three_members()) == 0b100


def test_manifest_without_overlap_uses_closed_rounds_roster() -> None:
    run = _after(0b001, 3, overlap=0)
    fewer = replace(
        run, rounds=(run.rounds[0], replace(run.rounds[1], roster=0b011), *run.rounds[2:])
    )
    assert (unseen(run, three_members()), unseen(fewer, three_members())) == (0b110, 0b010)


def test_withdrawn_member_is_not_reported() -> None:
    members = three_members()
    gone = replace(members.seats[2], state=MemberState.WITHDRAWN)
    left = replace(members, seats=(*members.seats[:2], gone, *members.seats[3:]))
    assert unseen(_after(0b011, 3), left) == 0


def test_first_rounds_report_nobody() -> None:
    assert unseen(run_at(4), three_members()) == 0


# --- the model from peers -------------------------------------------------------------------------


def _manifest(**changed: Any) -> bytes:
    levels = {level: [b"d" * 32] * len(SCHEMA.state.of_level(level)) for level in range(3)}
    return msgspec.msgpack.encode({"step": 7, "levels": levels} | changed)


def test_matching_manifest_is_accepted() -> None:
    levels = {level: [b"d" * 32] * len(SCHEMA.state.of_level(level)) for level in range(3)}
    assert checked(_manifest(), SCHEMA.state) == SnapshotManifest(7, levels)
    assert checked(_manifest(levels={}), SCHEMA.state) == SnapshotManifest(7, {})


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"\xc1",
        b"\x00" * 100,
        b"\xdf\xff\xff\xff\xff",
        msgspec.msgpack.encode([7, {}]),
        _manifest(step="7"),
        _manifest(step=None),
        _manifest(extra=1),
        _manifest(levels={3: []}),
        _manifest(levels={-1: []}),
        _manifest(levels={0: []}),
        _manifest(levels={0: [b"d" * 32]}),
        _manifest(levels={0: [b"d" * 31] * len(SCHEMA.state.of_level(0))}),
        _manifest(levels={0: ["text"] * len(SCHEMA.state.of_level(0))}),
        _manifest(levels={"0": [b"d" * 32] * len(SCHEMA.state.of_level(0))}),
        _manifest(levels={0: [b"d" * 32] * (len(SCHEMA.state.of_level(0)) + 1)}),
    ],
)
def test_malformed_manifest_is_rejected(reply: bytes) -> None:
    assert checked(reply, SCHEMA.state) is None


def test_snapshot_copies_levels_of_its_tier() -> None:
    params = init_weights(CONFIG, 0, 1)
    taken = snapshot(params, SCHEMA.state, 1, 5)
    assert set(taken.manifest.levels) == {1, 2}
    segments = [segment for level in (1, 2) for segment in SCHEMA.state.of_level(level)]
    digests = [digest for level in (1, 2) for digest in taken.manifest.levels[level]]
    assert [len(taken.blobs[digest]) for digest in digests] == [
        segment.size for segment in segments
    ]
    before = dict(taken.blobs)
    with torch.no_grad():
        for tensor in params.values():
            tensor.add_(1.0)
    assert taken.blobs == before
    assert snapshot(params, SCHEMA.state, 1, 5).manifest != taken.manifest


def test_unseen_bitmap_lists_reported_members() -> None:
    assert list(bitmap.seats(unseen(_after(0b001, 3), three_members()))) == [1, 2]
