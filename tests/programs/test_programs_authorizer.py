"""Test that authorizations are created, switched, delegated and closed."""

import struct
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from programs.harness import AUTHORIZER, START, Outcome, World, authorization_address, build

SCOPE = b"CoordinatorJoinRun"
GRANTOR = Keypair.from_seed(b"G" * 32)
GRANTEE = Keypair.from_seed(b"E" * 32)
KEY = authorization_address(GRANTOR.pubkey(), GRANTEE.pubkey())


def call(world: World, name: str, *args: Any, signer: Keypair, **accounts: Pubkey) -> Outcome:
    keys = {"payer": world.payer.pubkey(), "grantor": GRANTOR.pubkey(), "grantee": GRANTEE.pubkey()}
    keys |= {
        "authorization": KEY,
        "sponsor": world.payer.pubkey(),
        "delegates_sponsor": world.payer.pubkey(),
    }
    return world.send(build(AUTHORIZER, name, keys | accounts, args), signers=[signer])


def create(world: World, scope: bytes = SCOPE) -> Outcome:
    return call(world, "create", GRANTEE.pubkey(), scope, signer=GRANTOR)


def delegates(world: World) -> list[bytes]:
    data = world.data(KEY)
    tail = 8 + 1 + 64 + 4 + len(SCOPE) + 1 + 8 + 64
    (count,) = struct.unpack_from("<I", data, tail)
    assert len(data) == tail + 4 + 32 * count
    return [data[tail + 4 + 32 * index :][:32] for index in range(count)]


def test_authorization_is_inactive_until_grantor_activates_it(world: World) -> None:
    create(world).ok()
    data = world.data(KEY)
    assert data[9:73] == bytes(GRANTOR.pubkey()) + bytes(GRANTEE.pubkey())
    assert data[73:95] == struct.pack("<I", 18) + SCOPE
    assert (data[95], struct.unpack_from("<q", data, 96)[0]) == (0, START)
    world.advance(10)
    call(world, "grantor_update", True, signer=GRANTOR).ok()
    assert (world.data(KEY)[95], struct.unpack_from("<q", world.data(KEY), 96)[0]) == (
        1,
        START + 10,
    )
    assert create(world).error is not None  # exists


@pytest.mark.parametrize("scope", [b"", b"s" * 33])
def test_authorization_scope_has_1_to_32_bytes(world: World, scope: bytes) -> None:
    if scope:
        # longer than a seed: no address can be derived from it
        assert create(world, scope).error in (
            "ScopeLength",
            "InvalidSeeds",
            "MaxSeedLengthExceeded",
        )
    else:
        key = authorization_address(GRANTOR.pubkey(), GRANTEE.pubkey(), scope)
        call(world, "create", GRANTEE.pubkey(), scope, signer=GRANTOR, authorization=key).refused(
            "ScopeLength"
        )


def test_one_wallet_may_pay_and_grant(world: World) -> None:
    world.airdrop(GRANTOR.pubkey(), 10**9)
    call(world, "create", GRANTEE.pubkey(), SCOPE, signer=GRANTOR, payer=GRANTOR.pubkey()).ok()
    world.airdrop(GRANTEE.pubkey(), 10**9)
    keys = {"payer": GRANTEE.pubkey(), "delegates_sponsor": GRANTOR.pubkey()}
    call(world, "grantee_update", False, [GRANTOR.pubkey()], signer=GRANTEE, **keys).ok()
    assert delegates(world) == [bytes(GRANTOR.pubkey())]


def test_delegates_are_added_cleared_and_bounded(world: World) -> None:
    create(world).ok()
    keys = [Keypair.from_seed(bytes([index]) * 32).pubkey() for index in range(65)]
    # a transaction holds 27 keys at most
    for start in (0, 25, 50):
        call(
            world, "grantee_update", False, keys[start : start + 25][: 64 - start], signer=GRANTEE
        ).ok()
    assert delegates(world) == [bytes(key) for key in keys[:64]]
    call(world, "grantee_update", False, keys[64:], signer=GRANTEE).refused("TooManyDelegates")
    call(world, "grantee_update", True, keys[64:], signer=GRANTEE).ok()
    assert delegates(world) == [bytes(keys[64])]
    rent = world.svm.minimum_balance_for_rent_exemption(len(world.data(KEY)))
    assert world.svm.get_balance(KEY) == rent
    call(world, "grantee_update", True, [], signer=GRANTEE).ok()
    assert delegates(world) == []


def test_authorization_is_changed_only_by_its_parties(world: World) -> None:
    create(world).ok()
    stranger = Keypair()
    call(world, "grantor_update", True, signer=stranger, grantor=stranger.pubkey()).refused(
        "NotGrantor"
    )
    call(world, "grantor_update", True, signer=GRANTEE, grantor=GRANTEE.pubkey()).refused(
        "NotGrantor"
    )
    call(world, "grantee_update", False, [], signer=GRANTOR, grantee=GRANTOR.pubkey()).refused(
        "NotGrantee"
    )
    call(world, "close", signer=stranger, grantor=stranger.pubkey()).refused("NotGrantor")


def test_closing_waits_for_delegates(world: World) -> None:
    create(world).ok()
    call(world, "grantor_update", True, signer=GRANTOR).ok()
    call(world, "close", signer=GRANTOR).refused("StillActive")
    call(world, "grantee_update", False, [GRANTOR.pubkey()], signer=GRANTEE).ok()
    call(world, "grantor_update", False, signer=GRANTOR).ok()
    world.advance(30 * 86_400 - 1)
    call(world, "close", signer=GRANTOR).refused("ClosedTooEarly")
    world.advance(1)
    assert call(world, "close", signer=GRANTOR, sponsor=KEY).error is not None
    call(world, "close", signer=GRANTOR).ok()
    assert world.data(KEY) == b""


def _funded(world: World, seed: bytes) -> Keypair:
    wallet = Keypair.from_seed(seed * 32)
    world.airdrop(wallet.pubkey(), 10**9)
    return wallet


def test_sponsored_rent_returns_to_sponsor(world: World) -> None:
    """One wallet paid for the account and another for delegates.

    Closing and clearing return each its own rent.
    """
    for wallet in (GRANTOR, GRANTEE):
        world.airdrop(wallet.pubkey(), 10**9)
    sponsor = _funded(world, b"S")
    helper = _funded(world, b"H")
    fees = 10**9 * 2
    for payer, name, args, signer in (
        (sponsor, "create", (GRANTEE.pubkey(), SCOPE), GRANTOR),
        (helper, "grantee_update", (False, [Keypair().pubkey() for _ in range(5)]), GRANTEE),
    ):
        keys = {
            "payer": payer.pubkey(),
            "grantor": GRANTOR.pubkey(),
            "grantee": GRANTEE.pubkey(),
            "authorization": KEY,
        }
        step = build(AUTHORIZER, name, keys | {"delegates_sponsor": sponsor.pubkey()}, args)
        world.send(step, signers=[payer, signer]).ok()
    spent = fees - sum(world.svm.get_balance(one.pubkey()) or 0 for one in (sponsor, helper))
    assert spent == world.svm.get_balance(KEY)
    thief = GRANTEE.pubkey()
    call(
        world, "grantee_update", True, [], signer=GRANTEE, payer=thief, delegates_sponsor=thief
    ).refused("WrongSponsor")
    more = [Keypair().pubkey()]
    call(
        world,
        "grantee_update",
        False,
        more,
        signer=GRANTEE,
        payer=thief,
        delegates_sponsor=helper.pubkey(),
    ).refused("WrongSponsor")
    call(
        world,
        "grantee_update",
        True,
        more,
        signer=GRANTEE,
        payer=thief,
        delegates_sponsor=helper.pubkey(),
    ).refused("WrongSponsor")
    for clear, added in ((True, []), (False, more)):
        call(
            world,
            "grantee_update",
            clear,
            added,
            signer=GRANTEE,
            payer=thief,
            delegates_sponsor=helper.pubkey(),
        ).ok()
    assert world.svm.get_balance(helper.pubkey()) == 10**9
    assert delegates(world) == [bytes(more[0])]
    world.advance(30 * 86_400)
    call(world, "close", signer=GRANTOR, sponsor=GRANTOR.pubkey(), delegates_sponsor=thief).refused(
        "WrongSponsor"
    )
    call(
        world, "close", signer=GRANTOR, sponsor=sponsor.pubkey(), delegates_sponsor=GRANTOR.pubkey()
    ).refused("WrongSponsor")
    call(world, "close", signer=GRANTOR, sponsor=sponsor.pubkey(), delegates_sponsor=thief).ok()
    assert world.svm.get_balance(sponsor.pubkey()) == 10**9
    assert world.svm.get_balance(thief) == 10**9
    assert world.data(KEY) == b""


def test_authorization_without_delegates_closes_at_once(world: World) -> None:
    create(world).ok()
    call(world, "close", signer=GRANTOR).ok()
    create(world).ok()
