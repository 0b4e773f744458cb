"""Test memberships: rent and bond, which make seats cost something, points that outlast a seat, and
bars.
"""

from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from aftermath.rules.state import MemberState, RunState
from programs.evidence import IX as SIGNATURES
from programs.evidence import LIAR, p2p, pair
from programs.harness import PROGRAM, Outcome, World, membership_address
from programs.scenario import SCHEMA, Scenario, member

BOND = 50_000_000
INCINERATOR = Pubkey.from_string("1nc1nerator11111111111111111111111111111111")
JOIN = {
    "p2p": b"p" * 32,
    "tier": 0,
    "weight": 1,
    "schema_hash": SCHEMA,
    "client_version": "",
    "stateless": False,
}


@pytest.fixture
def bonded(world: World) -> Scenario:
    """Return a run that requires a bond."""
    return Scenario(world).start(join_bond=BOND)


def rent(run: Scenario) -> int:
    data = run.world.data(key(run, 0)) or run.world.data(key(run, LIAR))
    return run.world.svm.minimum_balance_for_rent_exemption(len(data))


def key(run: Scenario, index: int) -> Pubkey:
    return run.membership_key(member(index).pubkey())


def lamports_of(run: Scenario, index: int) -> int:
    return run.world.lamports(member(index).pubkey())


def withdraw(run: Scenario, index: int, **forged: Any) -> Outcome:
    return run.by(index, "withdraw", **forged)


def kick(run: Scenario, index: int, *, barred: bool) -> Outcome:
    return run.owner("kick", member(index).pubkey(), barred)


def begin(run: Scenario) -> Scenario:
    """Start round 0 with three members that have real p2p keys."""
    for index in range(3):
        run.join(index, p2p=p2p(index)).ok()
    run.world.advance(6)
    run.tick().ok()
    run.world.advance(31)
    run.tick().ok()
    return run


def convict(run: Scenario) -> None:
    """Prove that one of the three signed two results."""
    proof = run.instruction("prove_equivocation", accounts={"user": member(0).pubkey()})
    run.world.send(SIGNATURES.check_signatures(pair(run)), proof, signers=[member(0)]).ok()


def end_epoch(run: Scenario) -> None:
    for _ in range(9):
        if run.run.state is RunState.WAITING_FOR_MEMBERS:
            return
        run.world.advance(31)
        run.tick(0).ok()
    raise AssertionError("the epoch does not end")


# ---- what a seat costs
def test_empty_wallet_gets_no_seat(bonded: Scenario) -> None:
    """The exploit: a seat cost only a transaction fee, which anyone could pay. 256 wallets filled a
    run.
    """
    wallet = member(7).pubkey()
    join = bonded.by(7, "join_run", JOIN)
    join.refused("NotEnrolled")
    assert bonded.by(7, "enroll", BOND).error is not None  # the wallet is empty
    assert (bonded.world.data(key(bonded, 7)), bonded.world.lamports(wallet)) == (b"", 0)
    bonded.by(7, "join_run", JOIN).refused("NotEnrolled")


def test_idle_256_seats_lock_256_rents_and_bonds() -> None:
    run = Scenario(World()).start(join_bond=BOND, init_min_clients=256)
    for index in range(256):
        run.join(index).ok()
    locked = sum(run.world.lamports(key(run, index)) for index in range(256))
    assert locked == 256 * (rent(run) + BOND)
    assert rent(run) == (len(run.world.data(key(run, 0))) + 128) * 6_960
    run.join(256).refused("MembersFull")


def test_member_pays_rent_and_bond_and_gets_both_back(bonded: Scenario) -> None:
    bonded.world.fund(member(0).pubkey())
    before = lamports_of(bonded, 0)
    bonded.join(0).ok()
    assert before - lamports_of(bonded, 0) == rent(bonded) + BOND
    bonded.enroll(0).ok()  # it has paid
    assert before - lamports_of(bonded, 0) == rent(bonded) + BOND
    bonded.by(0, "leave_run").ok()
    withdraw(bonded, 0).ok()
    assert (lamports_of(bonded, 0), bonded.world.data(key(bonded, 0))) == (before, b"")
    assert bonded.members.find(bytes(member(0).pubkey())) is None
    bonded.by(0, "join_run", JOIN).refused("NotEnrolled")
    bonded.join(0).ok()


def test_bond_above_agreed_limit_is_refused(bonded: Scenario) -> None:
    bonded.enroll(0, max_bond=BOND - 1).refused("BondAboveLimit")
    bonded.enroll(0, max_bond=BOND).ok()


def test_member_pays_difference_of_raised_bond(bonded: Scenario) -> None:
    bonded.join(0).ok()
    bonded.owner("set_paused", True).ok()
    bonded.configure(join_bond=2 * BOND).ok()
    bonded.owner("set_paused", False).ok()
    bonded.join(0).refused("BondTooLow")
    before = lamports_of(bonded, 0)
    bonded.enroll(0).ok()
    assert before - lamports_of(bonded, 0) == BOND
    bonded.join(0).ok()
    bonded.by(0, "leave_run").ok()
    withdraw(bonded, 0).ok()
    assert lamports_of(bonded, 0) - before == BOND + rent_of(bonded, 1)


def rent_of(run: Scenario, index: int) -> int:
    """Return the rent of a membership, as another member pays it."""
    run.enroll(index).ok()
    return run.world.lamports(key(run, index)) - run.run.config.join_bond


def test_prefunded_membership_address_can_enroll(bonded: Scenario) -> None:
    gift = transfer(
        TransferParams(
            from_pubkey=bonded.world.payer.pubkey(), to_pubkey=key(bonded, 0), lamports=1_000_000
        )
    )
    bonded.world.send(gift).ok()
    bonded.join(0).ok()
    assert bonded.world.lamports(key(bonded, 0)) == rent(bonded) + BOND


# ---- when it comes back
def test_bond_stays_until_all_verdicts_are_given(bonded: Scenario) -> None:
    """The exploit: leave right after a false result, and take back the bond before anybody has
    checked the result.
    """
    bonded.join(5).ok()
    withdraw(bonded, 5).refused("StillBound")  # it waits for the next epoch
    bonded.by(5, "leave_run").ok()
    withdraw(bonded, 5).ok()
    begin(bonded)
    withdraw(bonded, LIAR).refused("StillBound")
    bonded.by(LIAR, "leave_run").ok()
    assert bonded.members.seats[bonded.seat_of(LIAR)].state is MemberState.WITHDRAWN
    withdraw(bonded, LIAR).refused("StillBound")
    end_epoch(bonded)
    before = lamports_of(bonded, LIAR)
    returned = rent(bonded) + BOND
    withdraw(bonded, LIAR).ok()
    assert lamports_of(bonded, LIAR) - before == returned


def test_bond_of_leaver_convicted_later_is_destroyed(bonded: Scenario) -> None:
    begin(bonded)
    bonded.by(LIAR, "leave_run").ok()
    convict(bonded)
    end_epoch(bonded)
    before = lamports_of(bonded, LIAR)
    burnt = bonded.world.lamports(INCINERATOR)
    owner = bonded.authority.pubkey()
    owned = bonded.world.lamports(owner)
    returned = rent(bonded)
    withdraw(bonded, LIAR).ok()
    assert lamports_of(bonded, LIAR) - before == returned
    assert bonded.world.lamports(INCINERATOR) - burnt == BOND
    assert bonded.world.lamports(owner) == owned  # nobody profits from an ejection


def test_forfeited_bond_is_destroyed_by_anyone_at_once(bonded: Scenario) -> None:
    begin(bonded)
    convict(bonded)
    seat = bonded.seat_of(LIAR)
    assert bonded.members.forfeited == 1 << seat
    bonded.settle(LIAR).ok()
    assert (bonded.world.lamports(key(bonded, LIAR)), bonded.members.forfeited) == (rent(bonded), 0)
    membership = bonded.membership(LIAR)
    assert membership is not None
    assert (membership.bond, membership.forfeited, membership.ejections) == (0, 0, 1)
    seq = bonded.run.seq
    bonded.settle(LIAR).ok()
    bonded.settle(0).ok()
    assert bonded.run.seq == seq  # no notification is sent
    assert bonded.world.lamports(key(bonded, 0)) == rent(bonded) + BOND
    bonded.settle(9).refused("AccountDataTooSmall")


def test_ejected_member_loses_queue_place_and_pays_again(bonded: Scenario) -> None:
    begin(bonded)
    bonded.join(LIAR).ok()  # it waits for the next epoch
    convict(bonded)
    assert bonded.members.pending == 0
    bonded.join(LIAR).refused("BondTooLow")
    bonded.enroll(LIAR).ok()
    # the loss is recorded only now, so the member has not paid again
    bonded.join(LIAR).refused("BondTooLow")
    bonded.settle(LIAR).ok()
    bonded.enroll(LIAR).ok()
    bonded.join(LIAR).ok()
    assert bonded.members.pending == 1 << bonded.seat_of(LIAR)
    end_epoch(bonded)
    bonded.by(LIAR, "leave_run").ok()
    withdraw(bonded, LIAR).ok()
    assert bonded.world.lamports(INCINERATOR) == BOND


def test_eviction_keeps_bond_forfeited(bonded: Scenario) -> None:
    begin(bonded)
    convict(bonded)
    end_epoch(bonded)
    fill(bonded, but=LIAR)
    loser = bonded.losing(bytes(member(LIAR).pubkey()))
    bonded.enroll(9).ok()
    bonded.by(9, "join_run", JOIN, accounts=loser).ok()
    assert bonded.members.forfeited == 0
    before = lamports_of(bonded, LIAR)
    returned = rent(bonded)
    withdraw(bonded, LIAR).ok()
    assert lamports_of(bonded, LIAR) - before == returned


def fill(run: Scenario, but: int | None = None) -> None:
    """Let other wallets wait for the next epoch in all of the 256 seats."""
    record = run.world.record("Members", run.run_id)
    seats = record["seats"][0]
    for index in range(256):
        if not seats["used"][index]:
            seats["signer"][index] = bytes(member(1000 + index).pubkey())
    seats["used"] = 1
    seats["declared"] = 1
    seats["pending"] = 1
    if but is not None:
        seats["pending"][run.seat_of(but)] = 0
    run.world.store("Members", run.run_id, record)


# ---- points and seats
def test_points_survive_loss_of_seat(bonded: Scenario) -> None:
    bonded.join(3).ok()
    bonded.by(3, "leave_run").ok()
    record = bonded.world.record("Members", "test")
    record["seats"][0]["points"][0] = 70
    record["seats"][0]["slashed"][0] = 7
    bonded.world.store("Members", "test", record)
    fill(bonded, but=3)
    bonded.join(0).ok()
    membership = bonded.membership(3)
    assert membership is not None
    assert (
        membership.points,
        membership.slashed,
        bonded.seat_of(0),
        bonded.members.seats[0].points,
    ) == (
        70,
        7,
        0,
        0,
    )
    bonded.by(0, "leave_run").ok()
    withdraw(bonded, 0).ok()
    bonded.join(3).ok()
    seat = bonded.members.seats[0]
    assert (seat.signer, seat.points, seat.slashed) == (bytes(member(3).pubkey()), 70, 7)


def test_seat_is_taken_only_with_membership_of_its_owner(bonded: Scenario) -> None:
    bonded.join(3).ok()
    bonded.by(3, "leave_run").ok()
    fill(bonded, but=3)
    for index in (0, 1):
        bonded.enroll(index).ok()
    right = bonded.losing(bytes(member(3).pubkey()))["evicted"]
    forged = Keypair().pubkey()
    bonded.world.put(forged, bonded.world.data(right))
    other = Scenario(bonded.world, "other")
    other.create().ok()
    other.enroll(3).ok()
    for wrong, refusal in (
        (key(bonded, 0), "WrongEvicted"),
        (key(bonded, 1), "WrongEvicted"),
        (key(bonded, 77), "WrongEvicted"),
        (key(other, 3), "WrongEvicted"),
        (forged, "InvalidSeeds"),
        (other.accounts["members"], "InvalidAccountData"),
    ):
        assert bonded.by(0, "join_run", JOIN, accounts={"evicted": wrong}).error == refusal, refusal
    bonded.by(0, "join_run", JOIN, accounts={"evicted": right}).ok()


def test_abandoned_seat_goes_to_next_member(bonded: Scenario) -> None:
    for index in range(3):
        bonded.join(index).ok()
    bonded.by(1, "leave_run").ok()
    state = bonded.world.record("Run", "test")
    state["finishers"][0] = b"\x07" + bytes(31)
    bonded.world.store("Run", "test", state)
    seqs = bonded.run.seq, bonded.run.members_seq
    withdraw(bonded, 1).ok()
    assert (bonded.run.seq, bonded.run.members_seq) == (seqs[0] + 1, seqs[1] + 1)
    assert bonded.run.finishers == 0b101
    assert [seat.used for seat in bonded.members.seats[:4]] == [True, False, True, False]
    bonded.join(2).ok()  # members after the gap are found
    assert bonded.seat_of(2) == 2
    bonded.join(9).ok()
    assert bonded.seat_of(9) == 1
    bonded.join(8).ok()
    assert bonded.seat_of(8) == 3


def test_delivered_and_due_counts_are_recorded(world: World) -> None:
    run = Scenario(world).start(rounds_per_epoch=2, overlap=0)
    for epoch in range(2):
        run.train([0, 1, 2])
        silent = run.seat_of(2)
        while run.run.state.training:
            for index in run.elected():
                run.witness(
                    index, run.run.current.roster & ~(1 << silent if run.run.current.height else 0)
                ).ok()
        for _ in range(2):  # the second call counts nothing
            run.settle(0).ok()
            run.settle(2).ok()
        one = run.membership(0)
        two = run.membership(2)
        assert one is not None
        assert two is not None
        assert (one.delivered, one.due, two.delivered, two.due) == (
            2 * (epoch + 1),
            2 * (epoch + 1),
            epoch + 1,
            2 * (epoch + 1),
        )
        end_epoch(run)


def test_member_of_abandoned_attempt_owes_nothing(world: World) -> None:
    run = Scenario(world).start(min_clients=3, rounds_per_epoch=2, overlap=0)
    for _ in range(2):
        run.train([0, 1, 2]).finish_rounds()
        end_epoch(run)
    run.warm_up([0, 1, 2])
    run.by(2, "leave_run").ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    run.train([0, 1, 3]).finish_rounds()
    run.settle(2).ok()
    away = run.membership(2)
    assert away is not None
    assert (away.delivered, away.due) == (4, 4)


# ---- a run that ends
def test_closed_run_refunds_bonds_except_of_ejected_members(
    bonded: Scenario,
) -> None:
    begin(bonded)
    convict(bonded)
    end_epoch(bonded)
    keys = {index: key(bonded, index) for index in range(3)}
    bonded.owner("set_paused", True).ok()
    bonded.owner("close_run").refused("BondsUnsettled")
    bonded.settle(LIAR).ok()
    bonded.owner("close_run").ok()
    cost = bonded.world.svm.minimum_balance_for_rent_exemption(len(bonded.world.data(keys[0])))
    for index, own in keys.items():
        before = lamports_of(bonded, index)
        gone = {"membership": own, "evicted": own, "sponsor": member(index).pubkey()}
        withdraw(bonded, index, accounts=gone).ok()
        assert lamports_of(bonded, index) - before == cost + (0 if index == LIAR else BOND)


def test_reused_run_name_ignores_old_memberships(
    bonded: Scenario,
) -> None:
    bonded.join(0).ok()
    kick(bonded, 4, barred=True).ok()
    old = key(bonded, 0)
    created = bonded.run.created
    bonded.owner("set_paused", True).ok()
    bonded.owner("close_run").ok()
    bonded.world.advance(1)
    bonded.create().ok()
    bonded.configure(join_bond=1).ok()
    bonded.owner("set_paused", False).ok()
    assert bonded.run.created > created
    assert key(bonded, 0) != old
    bonded.by(0, "join_run", JOIN, accounts={"membership": old, "evicted": old}).refused(
        "WrongMembership"
    )
    bonded.join(0).ok()
    bonded.join(4).ok()
    members = bonded.members
    before = lamports_of(bonded, 0)
    gone = {"membership": old, "evicted": old, "sponsor": member(0).pubkey()}
    withdraw(bonded, 0, accounts=gone).ok()  # although the wallet waits in the new run
    assert lamports_of(bonded, 0) - before == rent(bonded) + BOND
    assert bonded.members == members


# ---- bars
def test_ban_takes_no_seat_and_its_rent_returns(bonded: Scenario) -> None:
    """The exploit: each bar of a wallet that never came took a seat that nobody else could have."""
    owner = bonded.authority.pubkey()
    before = bonded.world.lamports(owner)
    kick(bonded, 9, barred=False).refused("NotAMember")
    kick(bonded, 9, barred=True).ok()
    assert not any(seat.used for seat in bonded.members.seats)
    bonded.enroll(9).refused("Barred")
    bonded.by(9, "join_run", JOIN).refused("Barred")
    withdraw(bonded, 9).refused("NotOwnMembership")
    kick(bonded, 9, barred=True).ok()
    stranger = {"sponsor": member(9).pubkey()}
    bonded.owner("kick", member(9).pubkey(), False, accounts=stranger).refused("WrongSponsor")
    kick(bonded, 9, barred=False).ok()
    assert (bonded.world.lamports(owner), bonded.world.data(key(bonded, 9))) == (before, b"")
    bonded.join(9).ok()


def test_ban_outlasts_seat_and_membership_but_keeps_no_bond(bonded: Scenario) -> None:
    bonded.join(0).ok()
    kick(bonded, 0, barred=True).ok()
    fill(bonded, but=0)
    bonded.join(3).ok()  # member 3 loses its seat
    bonded.by(3, "leave_run").ok()
    bonded.by(0, "join_run", JOIN, accounts=bonded.losing(bytes(member(3).pubkey()))).refused(
        "Barred"
    )
    before = lamports_of(bonded, 0)
    withdraw(bonded, 0).ok()
    assert lamports_of(bonded, 0) - before == BOND
    bonded.enroll(0).refused("Barred")
    withdraw(bonded, 0).refused("Barred")
    kick(bonded, 0, barred=False).ok()
    assert lamports_of(bonded, 0) - before == BOND + rent_of(bonded, 5)
    bonded.join(0).ok()


def test_rent_of_closed_runs_ban_returns_to_its_payer(bonded: Scenario) -> None:
    kick(bonded, 9, barred=True).ok()
    own = key(bonded, 9)
    owner = bonded.authority.pubkey()
    bonded.owner("set_paused", True).ok()
    bonded.owner("close_run").ok()
    keys = {"membership": own, "evicted": own, "sponsor": owner}
    withdraw(bonded, 9, accounts=keys).refused("NotOwnMembership")
    before = bonded.world.lamports(owner)
    bonded.owner("withdraw", accounts=keys | {"user": owner}).ok()
    assert bonded.world.lamports(owner) - before > 1_000_000
    assert bonded.world.data(own) == b""


# ---- forged accounts
def test_membership_withdrawal_to_or_by_others_is_refused(
    bonded: Scenario,
) -> None:
    bonded.join(0).ok()
    bonded.by(0, "leave_run").ok()
    bonded.enroll(1).ok()
    own = key(bonded, 0)
    other = Scenario(bonded.world, "other")
    other.create().ok()
    forged = Keypair().pubkey()
    bonded.world.put(forged, bonded.world.data(own))
    alien = Keypair().pubkey()
    bonded.world.put(alien, bonded.world.data(own), owner=Pubkey.from_string("E" * 44))
    before = bonded.world.data(own), bonded.world.lamports(own)
    withdraw(bonded, 1, accounts={"membership": own, "sponsor": member(0).pubkey()}).refused(
        "NotOwnMembership"
    )
    for accounts, refusal in (
        ({"sponsor": member(1).pubkey()}, "WrongSponsor"),
        ({"incinerator": member(1).pubkey()}, "WrongIncinerator"),
        ({"run": other.accounts["run"]}, "WrongMembership"),
        ({"run": bonded.accounts["model"]}, "WrongMembership"),
        ({"members": other.accounts["members"]}, "InvalidSeeds"),
        ({"members": bonded.accounts["witnesses"]}, "InvalidSeeds"),
        ({"membership": forged, "sponsor": member(0).pubkey()}, "InvalidSeeds"),
        ({"membership": other.accounts["members"]}, "InvalidAccountData"),
        ({"membership": alien, "sponsor": member(0).pubkey()}, "IllegalOwner"),
    ):
        error = withdraw(bonded, 0, accounts=accounts).error
        assert error == refusal, f"{accounts}: {error}"
    unsigned = bonded.instruction(
        "withdraw", accounts={"user": member(0).pubkey()}, flags={"user": (False, True)}
    )
    assert bonded.world.send(unsigned).error == "MissingRequiredSignature"
    for name in ("run", "members", "membership", "incinerator"):
        assert withdraw(bonded, 0, flags={name: (False, False)}).error == "ConstraintMut", name
    assert (bonded.world.data(own), bonded.world.lamports(own)) == before
    withdraw(bonded, 0).ok()


def test_join_with_foreign_membership_is_refused(bonded: Scenario) -> None:
    for index in (0, 1):
        bonded.enroll(index).ok()
    own = key(bonded, 0)
    other = Scenario(bonded.world, "other")
    other.create().ok()
    other.enroll(0).ok()
    forged = Keypair().pubkey()
    alien = Keypair().pubkey()
    bonded.world.put(forged, bonded.world.data(own))
    bonded.world.put(alien, bonded.world.data(own), owner=Pubkey.from_string("E" * 44))
    for wrong, refusal in (
        (key(bonded, 1), "WrongMembership"),
        (key(other, 0), "WrongMembership"),
        (forged, "InvalidSeeds"),
        (alien, "NotEnrolled"),
        (other.accounts["members"], "InvalidAccountData"),
    ):
        for name, args in (("join_run", [JOIN]), ("enroll", [BOND])):
            error = bonded.by(
                0, name, *args, accounts={"membership": wrong, "evicted": wrong}
            ).error
            if name == "enroll" and wrong == alien:
                refusal = "InvalidSeeds"  # the program would create it
            assert error == refusal, f"{name}: {error}"
    for name, args in (("join_run", [JOIN]), ("enroll", [BOND])):
        assert bonded.by(
            0, name, *args, flags={"membership": (False, False), "evicted": (False, False)}
        ).error in (
            "ConstraintMut",
            "ConstraintDuplicateMut",
        )
        bonded.by(0, name, *args).ok()


def test_settle_with_membership_of_other_run_is_refused(bonded: Scenario) -> None:
    bonded.join(0).ok()
    other = Scenario(bonded.world, "other")
    other.create().ok()
    other.enroll(0).ok()
    forged = Keypair().pubkey()
    bonded.world.put(forged, bonded.world.data(key(bonded, 0)))
    for wrong, refusal in ((key(other, 0), "WrongMembership"), (forged, "InvalidSeeds")):
        bonded.world.send(bonded.instruction("settle", accounts={"membership": wrong})).refused(
            refusal
        )
    bonded.enroll(1).ok()
    bonded.settle(1).refused("NotAMember")
    wrong = {"membership": key(bonded, 0), "incinerator": member(5).pubkey()}
    bonded.world.send(bonded.instruction("settle", accounts=wrong)).refused("WrongIncinerator")


def test_membership_address_is_unique_per_wallet_run_creation(bonded: Scenario) -> None:
    wallet = member(0).pubkey()
    run = bonded.accounts["run"]
    created = bonded.run.created
    bonded.enroll(0).ok()
    membership = bonded.membership(0)
    assert membership is not None
    assert (membership.run, membership.wallet, membership.created) == (
        bytes(run),
        bytes(wallet),
        created,
    )
    assert bonded.world.data(membership_address(run, created, wallet))
    assert len({membership_address(run, created + more, wallet) for more in range(3)}) == 3
    assert bonded.world.svm.get_account(key(bonded, 0)).owner == PROGRAM  # type: ignore[union-attr]


def test_ejected_member_with_lost_bond_is_in_no_epoch(bonded: Scenario) -> None:
    begin(bonded)
    record = bonded.world.record("Members", "test")
    record["forfeited"][0] = b"\x01" + bytes(31)
    bonded.world.store("Members", "test", record)
    bonded.by(2, "leave_run").refused("InvariantBroken")
