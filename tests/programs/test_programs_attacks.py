"""Test that attacks of the classes in coral-xyz/sealevel-attacks fail.

These are: wrong owner, address or type, a missing signature or writable flag, one account in two
places, another run's account, a forged sysvar, malformed data, and revival of a closed account.
"""

from itertools import combinations
from typing import Any

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from aftermath.rules.run import RoundId
from programs.harness import PROGRAM, World, address, instruction_of
from programs.scenario import SCHEMA, Scenario, member

ACCOUNTS = ("run", "model", "members", "witnesses")
JOIN = {
    "p2p": b"p" * 32,
    "tier": 0,
    "weight": 1,
    "schema_hash": SCHEMA,
    "client_version": "",
    "stateless": False,
}
EMPTY = {
    "metadata": None,
    "config": None,
    "model": None,
    "schema": None,
    "progress": None,
    "use_durable": False,
}
METADATA = {"step": 1, "loss_milli": 1, "tokens_per_sec": 1, "bytes_per_sec": 1}
PLACE = RoundId(0, 0, 0)
NAMED = {"kind": 1, "repo": "r", "revision": "", "hashes": [b"h" * 32] * 3}
ARGS: dict[str, list[Any]] = {
    "update": [EMPTY],
    "set_paused": [True],
    "update_client_version": ["v"],
    "set_future_epoch_rates": [1, 1],
    "close_run": [],
    "join_run": [JOIN],
    "leave_run": [PLACE],
    "tick": [],
    "warmup_witness": [0, PLACE],
    "witness": [0, PLACE, bytes(32), bytes(320), METADATA],
    "verify": [0, PLACE, 1, True],
    "attest": [0, PLACE, 1, [b"h" * 32]],
    "health_check": [bytes(32)],
    "prove_equivocation": [],
    "checkpoint": [NAMED],
    "inspect": [0, 0],
}
OWNED = ("update", "set_paused", "update_client_version", "set_future_epoch_rates", "close_run")


def takes(name: str, account: str) -> bool:
    return any(entry["name"] == account for entry in instruction_of(PROGRAM, name)["accounts"])


def naming(account: str) -> list[str]:
    """Return the instructions that take this account of a run."""
    return [name for name in ARGS if takes(name, account)]


WRITTEN = {
    name: [
        one["name"]
        for one in instruction_of(PROGRAM, name)["accounts"]
        if one.get("writable") and one["name"] in ACCOUNTS
    ]
    for name in ARGS
}
each_account = pytest.mark.parametrize("account", ACCOUNTS)


@pytest.fixture(scope="module")
def victim() -> Scenario:
    """Return a waiting run. The tests share it, because every attack fails."""
    run = Scenario(World()).start()
    run.join(0).ok()
    return run


def attack(
    run: Scenario,
    name: str,
    accounts: dict[str, Pubkey],
    flags: dict[str, tuple[bool, bool]] | None = None,
) -> str:
    """Send `name` with forged accounts as a legitimate signer.

    Return the refusal, after a check that nothing changed.
    """
    before = [run.world.data(run.accounts[one]) for one in ACCOUNTS]
    keys = {"user": member(0).pubkey()} | accounts
    instruction = run.instruction(name, *ARGS[name], accounts=keys, flags=flags)
    outcome = run.world.send(instruction, signers=[run.authority, member(0)])
    assert outcome.error is not None, f"{name} accepted forged accounts {accounts} {flags}"
    assert [run.world.data(run.accounts[one]) for one in ACCOUNTS] == before, name
    return outcome.error


@each_account
def test_account_of_another_program_is_refused(victim: Scenario, account: str) -> None:
    forged = Pubkey.from_string("F" * 44)
    victim.world.put(
        forged, victim.world.data(victim.accounts[account]), owner=Pubkey.from_string("E" * 44)
    )
    for name in naming(account):
        refusal = attack(victim, name, {account: forged})
        assert refusal in ("IllegalOwner", "InvalidAccountOwner", "NotMainAuthority"), name


@each_account
def test_account_copied_to_another_address_is_refused(victim: Scenario, account: str) -> None:
    forged = Pubkey.from_string("D" * 44)
    victim.world.put(forged, victim.world.data(victim.accounts[account]))
    for name in naming(account):
        assert attack(victim, name, {account: forged}) == "InvalidSeeds", name


@each_account
def test_account_of_another_type_is_refused(victim: Scenario, account: str) -> None:
    other = "witnesses" if account != "witnesses" else "members"
    forged = Pubkey.from_string("C" * 44)
    victim.world.put(forged, victim.world.data(victim.accounts[other]))
    for name in naming(account):
        refusal = attack(victim, name, {account: forged})
        assert refusal in ("InvalidAccountData", "NotGrown", "AccountDataTooSmall"), name


@pytest.mark.parametrize("account", [one for one in ACCOUNTS if one != "run"])
def test_account_of_another_run_is_refused(victim: Scenario, account: str) -> None:
    other = Scenario(victim.world, "other")
    if not victim.world.data(other.accounts["run"]):
        other.create().ok()
    for name in naming(account):
        assert attack(victim, name, {account: address(account, "other")}) == "InvalidSeeds", name


@each_account
def test_changed_account_must_be_writable(victim: Scenario, account: str) -> None:
    for name, written in WRITTEN.items():
        if (
            account in written
        ):  # the fee payer's own accounts would be writable anyway; these are not
            assert attack(victim, name, {}, {account: (False, False)}) == "ConstraintMut", name


def test_acting_wallet_must_sign(victim: Scenario) -> None:
    for name in ARGS.keys() - {"inspect"}:
        role = "authority" if name in OWNED else "user"
        assert attack(victim, name, {}, {role: (False, False)}) == "MissingRequiredSignature", name


def test_one_account_for_two_roles_is_refused(victim: Scenario) -> None:
    for name, written in WRITTEN.items():
        for first, second in combinations(sorted(written), 2):
            attack(victim, name, {first: victim.accounts[second]})


def test_forged_sysvar_is_refused(victim: Scenario) -> None:
    forged = Pubkey.from_string("B" * 44)
    victim.world.put(
        forged, bytes(48), owner=Pubkey.from_string("Sysvar1111111111111111111111111111111111111")
    )
    for name in naming("slot_hashes"):
        assert attack(victim, name, {"slot_hashes": forged}) == "WrongSlotHashes", name


def test_too_few_accounts_are_refused(victim: Scenario) -> None:

    whole = victim.instruction("tick", accounts={"user": member(0).pubkey()})
    for count in range(6):
        cut = Instruction(PROGRAM, bytes(whole.data), whole.accounts[:count])
        assert victim.world.send(cut, signers=[member(0)] if count else []).error is not None


def test_malformed_data_is_refused(victim: Scenario) -> None:

    for name in ("join_run", "witness", "update", "attest", "checkpoint"):
        whole = victim.instruction(name, *ARGS[name], accounts={"user": member(0).pubkey()})
        signers = [victim.authority] if name == "update" else [member(0)]
        for length in (0, 7, 8, 9, len(whole.data) - 1):
            cut = Instruction(PROGRAM, bytes(whole.data)[:length], whole.accounts)
            assert victim.world.send(cut, signers=signers).error is not None
    # a vector that claims 4 billion hashes
    whole = victim.instruction("attest", *ARGS["attest"], accounts={"user": member(0).pubkey()})
    bomb = bytes(whole.data)[:26] + b"\xff" * 4 + bytes(32)
    assert (
        victim.world.send(Instruction(PROGRAM, bomb, whole.accounts), signers=[member(0)]).error
        is not None
    )


def test_closed_run_is_not_revived_within_its_transaction(world: World) -> None:
    run = Scenario(world).start()
    run.owner("set_paused", True).ok()
    close = run.instruction("close_run")
    use = run.instruction("set_paused", False)
    assert world.send(close, use, signers=[run.authority]).error is not None

    refund = transfer(
        TransferParams(
            from_pubkey=world.payer.pubkey(), to_pubkey=run.accounts["run"], lamports=10**8
        )
    )
    world.send(close, refund, signers=[run.authority]).ok()
    assert run.owner("set_paused", False).error is not None
