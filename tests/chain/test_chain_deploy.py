"""Tests of deployment through the RPC: first, unchanged, upgraded, interrupted and resumed, and its
errors.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey

from aftermath.chain import loader
from aftermath.chain.accounts import fetch, rent
from aftermath.chain.deploy import Deployment, deploy_program, deployment_steps
from aftermath.chain.dry_run import DrySender, Outcome
from aftermath.chain.endpoints import Endpoint
from aftermath.chain.funding import ensure_funds
from aftermath.chain.sender import Sender
from aftermath.chain.wallet import Wallet, load_wallet
from aftermath.coordinator.errors import CoordinatorError, Refused
from aftermath.programs import AUTHORIZER_SO, COORDINATOR_ID
from chain.funded_network import FundedNetwork

MEMO_ID = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")


@pytest.fixture(scope="session")
def larger_elf() -> bytes:
    """Return a program 1.5 times as large as the authorizer: the memo program, which comes with
    LiteSVM.
    """
    account = LiteSVM().get_account(MEMO_ID)
    assert account is not None
    return account.data


@pytest.fixture(scope="session")
def larger_so(larger_elf: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "memo.so"
    path.write_bytes(larger_elf)
    return path


def sender_of(funded: FundedNetwork) -> Sender:
    return Sender(funded.pool, funded.wallet, errors={})


async def bytes_of(funded: FundedNetwork, deployment: Deployment) -> bytes:
    _, account = await fetch(funded.pool, loader.programdata_address(deployment.program_id))
    assert account is not None
    return loader.parse_programdata(account).data


@pytest.mark.slow
async def test_deploy_keeps_equal_and_upgrades_larger_program(
    funded: FundedNetwork, tmp_path: Path, larger_so: Path, larger_elf: bytes
) -> None:
    key = Keypair()
    sender = sender_of(funded)
    progress: list[tuple[int, int]] = []
    size = AUTHORIZER_SO.stat().st_size

    def tell(done: int, of: int) -> None:
        progress.append((done, of))
        (path,) = tmp_path.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    first = await deploy_program(sender, AUTHORIZER_SO, key, cache=tmp_path, progress=tell)
    assert (first.action, first.bytes) == ("deployed", size)
    assert progress[0] == (0, size)
    assert progress[-1] == (size, size)
    assert await bytes_of(funded, first) == AUTHORIZER_SO.read_bytes()
    _, program = await fetch(funded.pool, key.pubkey())
    assert program is not None
    assert program.executable
    assert not os.listdir(tmp_path), "the buffer's key is gone when it is of no more use"

    again = await deploy_program(sender, AUTHORIZER_SO, key, cache=tmp_path)
    assert (again.action, again.signature) == ("unchanged", None)

    larger = await deploy_program(sender, larger_so, key, cache=tmp_path)
    assert larger.action == "upgraded"
    assert await bytes_of(funded, larger) == larger_elf

    smaller = await deploy_program(sender, AUTHORIZER_SO, key, cache=tmp_path)
    assert smaller.action == "upgraded"
    assert (await bytes_of(funded, smaller))[:size] == AUTHORIZER_SO.read_bytes()
    assert (await deploy_program(sender, AUTHORIZER_SO, key, cache=tmp_path)).action == "unchanged"


async def test_deploy_cost_of_larger_program_is_known_before(
    funded: FundedNetwork, tmp_path: Path, larger_so: Path, larger_elf: bytes
) -> None:
    """Only the upgrade itself shows whether the cluster has the checked instruction that extends a
    program.
    """
    key = Keypair()
    await deploy_program(sender_of(funded), AUTHORIZER_SO, key, cache=tmp_path)
    sender = DrySender(funded.pool, funded.wallet, errors={})
    steps, sizes = await deployment_steps(sender, larger_so, key)
    await sender.creating(sizes)
    report = await sender.dry_run(steps)
    begun = [bytes(step.instructions[-1].data)[:4] for step in steps]
    names = ["initialize_buffer", "write", "extend", "upgrade"]
    assert [loader.CALLS[variant] for variant in begun] == [f"loader.{name}" for name in names]
    assert [one.outcome for one in report.simulated][::3] == [Outcome.ACCEPTED, Outcome.OPEN]
    assert report.refusal is None
    longer = len(larger_elf) - AUTHORIZER_SO.stat().st_size
    rents = [
        await rent(funded.pool, size)
        for size in (loader.BUFFER_HEADER + len(larger_elf), longer, 0)
    ]
    assert report.rent == rents[0] + rents[1] - rents[2]
    before = sender.spend.transactions
    real = sender_of(funded)
    assert (await deploy_program(real, larger_so, key, cache=tmp_path)).action == "upgraded"
    assert (before, real.spend.transactions) == (0, sum(step.times for step in steps))


class Interrupted(Exception):
    pass


async def test_interrupted_deployment_resumes_where_it_stopped(
    funded: FundedNetwork, tmp_path: Path
) -> None:
    key = Keypair()
    sender = sender_of(funded)
    elf = AUTHORIZER_SO.read_bytes()

    def interrupt(done: int, of: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        await deploy_program(sender, AUTHORIZER_SO, key, cache=tmp_path, progress=interrupt)
    (name,) = os.listdir(tmp_path)
    buffer = load_wallet(tmp_path / name).pubkey
    for at in range(0, len(elf) // 2, 900):
        part = elf[at : min(at + 900, len(elf) // 2)]
        await sender.send([loader.write(buffer, funded.wallet.pubkey, at, part)])
    before = sender.spend.transactions
    progress: list[int] = []
    deployment = await deploy_program(
        sender, AUTHORIZER_SO, key, cache=tmp_path, progress=lambda a, _: progress.append(a)
    )
    assert deployment.action == "deployed"
    assert len(elf) * 2 // 5 < progress[0] < len(elf) * 3 // 5, (
        "what is in the buffer is not written again"
    )
    assert sender.spend.transactions - before < len(elf) * 3 // 5 // 900 + 3
    assert await bytes_of(funded, deployment) == elf


async def test_foreign_program_is_not_upgraded(
    embedded: FundedNetwork, tmp_path: Path, larger_so: Path
) -> None:
    key = Keypair()
    await deploy_program(sender_of(embedded), AUTHORIZER_SO, key, cache=tmp_path)
    stranger = Wallet(Keypair())
    await ensure_funds(embedded.pool, stranger.pubkey, 10_000_000_000)
    with pytest.raises(CoordinatorError, match=f"upgraded by {embedded.wallet.pubkey} only"):
        await deploy_program(
            Sender(embedded.pool, stranger, errors={}), larger_so, key, cache=tmp_path
        )


async def test_missing_funds_are_named_before_anything_is_sent(
    embedded: FundedNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "is_loopback", False)
    poor = Wallet(Keypair())
    with pytest.raises(Refused, match=r"holds 0 SOL but needs 0\.\d+ SOL") as caught:
        await deploy_program(
            Sender(embedded.pool, poor, errors={}), AUTHORIZER_SO, Keypair(), cache=tmp_path
        )
    assert caught.value.name == "InsufficientFunds"


@pytest.mark.parametrize("what", ["missing", "text", "empty"])
async def test_files_without_program_are_refused(
    embedded: FundedNetwork, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "program.so"
    if what != "missing":
        path.write_bytes(b"hello" if what == "text" else b"")
    with pytest.raises(
        CoordinatorError, match="cannot read" if what == "missing" else "not a compiled program"
    ):
        await deploy_program(sender_of(embedded), path, Keypair(), cache=tmp_path)


async def test_immutable_program_upgrade_is_refused(
    embedded: FundedNetwork, tmp_path: Path
) -> None:
    with pytest.raises(CoordinatorError, match="not an upgradeable program"):
        await deploy_program(
            sender_of(embedded), AUTHORIZER_SO, embedded.wallet.keypair, cache=tmp_path
        )
    standing = await fetch(embedded.pool, Pubkey.from_string(COORDINATOR_ID))
    assert standing[1] is not None
