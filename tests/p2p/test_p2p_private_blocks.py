"""Test blocks of a member's private state over real endpoints: blocks without a valid proof are
refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aftermath.base.merkle import DIGEST
from aftermath.optim import state_merkle
from aftermath.optim.engine import Engine, outline_of
from aftermath.optim.state_merkle import StateOutline
from aftermath.p2p.iroh import IrohTransport
from aftermath.p2p.transport import MAX_REQUEST, PeerUnreachable, RequestFailed, RequestRefused
from aftermath.replica.state_sharing import (
    TOPIC,
    FalseBlock,
    ServedState,
    StateBlock,
    StateShare,
    StoredBlocks,
    ask_block,
    copy_state,
    proven,
    question,
)
from aftermath.rules.announcements import NOTHING
from optim.private_states import OPTIMIZERS, trained
from p2p.nodes import until

STATES = 3
Mesh = Callable[..., Awaitable[list[IrohTransport]]]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks small, so that a tiny model has many."""
    monkeypatch.setattr(state_merkle, "BLOCK", 2048)
    monkeypatch.setattr(state_merkle, "_PIECE", 4 * 2048)


def state_of(
    name: str = "distro", tier: int = 0, rounds: int = 1
) -> tuple[StateOutline, Engine, ServedState]:
    schema, engine = trained(OPTIMIZERS[name], tier, rounds)
    return outline_of(schema, tier), engine, copy_state(engine, engine.tree(), states=STATES)


@pytest.mark.parametrize("name", OPTIMIZERS)
async def test_commitment_gives_access_to_all_blocks_of_its_state(mesh: Mesh, name: str) -> None:
    member, checker = await mesh(1, 2)
    parts, engine, state = state_of(name)
    StateShare(member).offer(state, states=STATES)
    root = state.tree.root
    blocks = [
        (await ask_block(checker, member.node_id, root, parts, index, 10)).data
        for index in range(parts.count)
    ]
    assert parts.count > 15
    whole = b"".join(blocks)
    fetched_state = {}
    for key, size in parts.sizes:
        fetched_state[key], whole = whole[:size], whole[size:]
    assert fetched_state == {
        key: tensor.numpy().tobytes() for key, tensor in engine.state().items()
    }


@pytest.mark.parametrize("at", [0, DIGEST, -1], ids=["first hash", "second hash", "block"])
async def test_false_block_or_proof_bans_its_sender(mesh: Mesh, at: int) -> None:
    member, checker = await mesh(1, 2)
    parts, _, state = state_of()
    share = StateShare(member)
    index = parts.count // 2
    share.offer(state, states=STATES)
    right = await share.answer(b"", question(state.tree.root, index))
    proof = proven(right, state.tree.root, parts, index)
    assert proof.data == right[-parts.place(index).size :]
    wrong = bytearray(right)
    wrong[at] ^= 1

    async def lie(peer: bytes, body: bytes) -> bytes:
        return bytes(wrong)

    member.handle(TOPIC, lie)
    with pytest.raises(FalseBlock, match=f"not block {index} of the private state"):
        await ask_block(checker, member.node_id, state.tree.root, parts, index, 10)
    await until(lambda: member.node_id not in checker.reachable())
    assert checker.stats().violations == 1


@pytest.mark.parametrize("change", [-1, 1, 1 << 20])
async def test_wrong_sized_block_answer_is_rejected(mesh: Mesh, change: int) -> None:
    member, checker = await mesh(1, 2)
    parts, _, state = state_of()
    share = StateShare(member)
    share.offer(state, states=STATES)
    right = await share.answer(b"", question(state.tree.root, 0))

    async def other(peer: bytes, body: bytes) -> bytes:
        return right[:change] if change < 0 else right + bytes(change)

    member.handle(TOPIC, other)
    with pytest.raises(FalseBlock if change < 0 else RequestFailed):
        await ask_block(checker, member.node_id, state.tree.root, parts, 0, 10)


async def test_states_of_other_rounds_are_refused(mesh: Mesh) -> None:
    """The last three states are served, earlier ones are not. The initial state has no blocks."""
    member, checker = await mesh(1, 2)
    share = StateShare(member)
    states = [state_of(rounds=rounds) for rounds in range(1, 5)]
    for _, _, state in states:
        share.offer(state, states=STATES)
    for number, (parts, _, state) in enumerate(states):
        request = ask_block(checker, member.node_id, state.tree.root, parts, 0, 10)
        if number == 0:
            with pytest.raises(RequestRefused):
                await request
        else:
            assert len((await request).data) == parts.place(0).size
    for root in (NOTHING, b"x" * 32):
        with pytest.raises(RequestRefused):
            await ask_block(checker, member.node_id, root, states[-1][0], 0, 10)
    share.withdraw()
    with pytest.raises(RequestRefused):
        await ask_block(checker, member.node_id, states[-1][2].tree.root, states[-1][0], 0, 10)


async def test_lent_blocks_are_served_without_their_member(mesh: Mesh, tmp_path: Path) -> None:
    def stored(index: int, block: StateBlock) -> StoredBlocks:
        blocks = StoredBlocks(tmp_path / "lent")
        blocks[index] = block
        return blocks

    auditor, juror = await mesh(1, 2)
    parts, _, state = state_of()
    root = state.tree.root
    share = StateShare(auditor)
    block = StateBlock(state.read(parts.place(2)), tuple(state.tree.proof(2)))
    share.lend(root, stored(2, block))
    assert await ask_block(juror, auditor.node_id, root, parts, 2, 10) == block
    with pytest.raises(RequestRefused):
        await ask_block(juror, auditor.node_id, root, parts, 3, 10)
    # The state after a result is also the one before the member's next result.
    other = StateBlock(state.read(parts.place(3)), tuple(state.tree.proof(3)))
    share.lend(root, stored(3, other))
    assert await ask_block(juror, auditor.node_id, root, parts, 2, 10) == block
    assert await ask_block(juror, auditor.node_id, root, parts, 3, 10) == other
    share.keep_lent({root})
    assert await ask_block(juror, auditor.node_id, root, parts, 2, 10) == block
    share.keep_lent({NOTHING})
    with pytest.raises(RequestRefused):
        await ask_block(juror, auditor.node_id, root, parts, 2, 10)


async def test_absent_member_differs_from_member_without_state(mesh: Mesh) -> None:
    member, checker = await mesh(1, 2)
    parts, _, state = state_of()
    with pytest.raises(RequestFailed, match="answers no requests on this topic"):
        await ask_block(checker, member.node_id, state.tree.root, parts, 0, 10)
    StateShare(member)
    with pytest.raises(RequestRefused):
        await ask_block(checker, member.node_id, state.tree.root, parts, 0, 10)
    await member.close()
    with pytest.raises(PeerUnreachable):
        await ask_block(checker, member.node_id, state.tree.root, parts, 0, 0.5)


@pytest.mark.parametrize("body", [b"", bytes(35), bytes(37), bytes(MAX_REQUEST)])
async def test_malformed_block_question_is_refused(mesh: Mesh, body: bytes) -> None:
    member, checker = await mesh(1, 2)
    StateShare(member).offer(state_of()[2], states=STATES)
    with pytest.raises(RequestRefused):
        await checker.request(member.node_id, TOPIC, body, 1 << 20, 10)


async def test_block_index_beyond_last_is_refused(mesh: Mesh) -> None:
    member, checker = await mesh(1, 2)
    parts, _, state = state_of()
    StateShare(member).offer(state, states=STATES)
    for index in (parts.count, (1 << 32) - 1):
        with pytest.raises(RequestRefused):
            await checker.request(
                member.node_id, TOPIC, question(state.tree.root, index), 1 << 20, 10
            )
    with pytest.raises(IndexError):
        await ask_block(checker, member.node_id, state.tree.root, parts, parts.count, 10)
