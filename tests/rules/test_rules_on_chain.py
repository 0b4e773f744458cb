"""Test that the rules in Python and in the compiled program agree, case by case."""

from __future__ import annotations

import dataclasses
import random
import struct
import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from solders.account import Account

from aftermath.chain import views
from aftermath.config.document import RunConfig
from aftermath.config.rules import program_errors
from aftermath.rules import assignment, audits, bitmap, committee, consensus, eviction
from aftermath.rules.deadlines import next_deadline
from aftermath.rules.run import Run
from aftermath.rules.state import EstablishedOnly, MemberState, RunState
from config.config_cases import RULES, SEED, changed
from rules import backlog, program_rules
from rules.backlog import Backlog
from rules.builders import header
from rules.onchain import RUN_ID, Onchain, Refused


@pytest.fixture
def chain() -> Onchain:
    chain = Onchain()
    chain.create()
    return chain


@pytest.fixture(scope="module")
def unchanged_chain() -> Iterator[Onchain]:
    """Return one run for all tests of refusals: they write training specs, and every update is
    refused.
    """

    def run_without_counters() -> Run:
        run = views.parse_run(chain.data(chain.addresses.run))
        return dataclasses.replace(run, seq=0, model_seq=0)

    chain = Onchain()
    chain.create()
    before = run_without_counters()
    yield chain
    assert run_without_counters() == before


def overwrite(chain: Onchain, account: views.layout.Account, address: Any, **fields: Any) -> None:
    """Replace fields of an account in place, which no instruction could do."""
    data = bytearray(chain.data(address))
    record = np.frombuffer(data, account.dtype, count=1, offset=8)[0]
    for name, value in fields.items():
        record[name] = value
    old_account = chain.svm.get_account(address)
    assert old_account is not None
    chain.world.set_account(address, Account(old_account.lamports, bytes(data), old_account.owner))


SLOW_SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]


@pytest.mark.parametrize("cases", [120, pytest.param(600, marks=pytest.mark.slow)])
def test_shuffles_committees_and_shares_match_program(chain: Onchain, cases: int) -> None:
    """Compare random rounds with `inspect`: any roster, seed, weights and batch."""
    rng = random.Random(cases)
    run_layout = views.run_account()
    members_layout = views.members_account()
    for _ in range(cases):
        clients = rng.choice([1, 2, 3, 31, 32, 33, 64, 255, 256, rng.randint(1, 256)])
        roster = bitmap.from_seats(rng.sample(range(256), clients))
        batch = rng.choice([0, 1, clients, 65535, rng.randint(0, 65535)])
        began = roster | bitmap.from_seats(
            rng.sample(range(256), rng.choice([0, 1, 20, rng.randint(0, 256)]))
        )
        alone = rng.choice(list(EstablishedOnly))
        round_ = header(
            roster, began=began, seed=rng.getrandbits(64), batch=batch, established=alone
        )
        rounds = np.zeros(4, run_layout.dtype["rounds"].base)
        rounds[2] = _round_record(rounds[2], round_)
        written = {"rounds": rounds, "began": bitmap.to_bytes(began)}
        overwrite(chain, run_layout, chain.addresses.run, **written)
        seats = np.zeros(256, members_layout.dtype["seats"].base)
        seats["weight"] = [rng.choice([1, 7, 65535, rng.randint(1, 65535)]) for _ in range(256)]
        judges = bitmap.from_seats(
            rng.sample(sorted(bitmap.seats(roster)), rng.randint(1, clients))
        )
        overwrite(
            chain,
            members_layout,
            chain.addresses.members,
            seats=seats,
            judges=bitmap.to_bytes(judges),
        )
        if alone is EstablishedOnly.NOTHING:
            assert list(chain.inspect(0, 2)) == program_rules.witness_positions(round_)
        shares = assignment.assign(round_, chain.members)
        rows = dict(
            zip(bitmap.seats(began), struct.iter_unpack("<HH", chain.inspect(2, 2)), strict=True)
        )
        returned = {seat: row for seat, row in rows.items() if bitmap.contains(roster, seat)}
        assert returned == {seat: (share.start, share.len) for seat, share in shares.items()}
        assert not any(length for seat, (_, length) in rows.items() if seat not in returned)


@pytest.mark.parametrize("cases", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_drawn_audits_match_program(chain: Onchain, cases: int) -> None:
    """Compare random rounds: any results, tiers, judges, percentage, overlap and time."""
    rng = random.Random(cases)
    run_layout = views.run_account()
    members_layout = views.members_account()
    audit_count = 0
    for _ in range(cases):
        clients = rng.choice([3, 4, 5, 33, 64, 256, rng.randint(1, 256)])
        roster = bitmap.from_seats(rng.sample(range(256), clients))
        established = rng.choice([*EstablishedOnly, EstablishedOnly.WITNESS])
        overlap = rng.choice([0, 1])
        since = rng.choice([0, 1, 1, 1, 2, 2, 2, 3])
        rounds = np.zeros(4, run_layout.dtype["rounds"].base)
        height = rng.choice([3, 4, 9])
        for ring in range(4):
            recorded = roster & rng.getrandbits(256) if rng.random() < 0.5 else roster
            round_ = header(
                roster,
                began=roster,
                seed=rng.getrandbits(64),
                batch=rng.choice([clients, 65535]),
                height=height - (2 - ring) % 4,
                established=established,
                attested=recorded,
            )
            rounds[ring] = _round_record(rounds[ring], round_)
        config = np.zeros(1, run_layout.dtype["config"])[0]
        config["verification_percent"] = rng.choice([0, 1, 6, 50, 100, rng.randint(0, 100)])
        config["overlap"] = overlap
        written = {
            "rounds": rounds,
            "config": config,
            "began": bitmap.to_bytes(roster),
            "head": 2,
            "state": RunState.COOLDOWN,
            "next_seed": rng.getrandbits(64),
            "seed_slot": rng.choice([0, 0, 8]),
        }
        overwrite(chain, run_layout, chain.addresses.run, **written)
        seats = np.zeros(256, members_layout.dtype["seats"].base)
        seats["used"] = 1
        seats["weight"] = [rng.choice([1, 7, 65535]) for _ in range(256)]
        seats["tier"] = [rng.randint(0, 2) for _ in range(256)]
        judges = bitmap.from_seats(
            rng.sample(sorted(bitmap.seats(roster)), rng.randint(1, clients))
        )
        overwrite(
            chain,
            members_layout,
            chain.addresses.members,
            seats=seats,
            judges=bitmap.to_bytes(judges),
        )
        back = (since + overlap) % 4
        answer = chain.inspect(1, (2 - back) % 4).ljust(2 * clients, b"\0")
        rows = zip(bitmap.seats(roster), struct.iter_unpack("BB", answer), strict=True)
        drawn = {seat: auditor for seat, (is_drawn, auditor) in rows if is_drawn}
        assert drawn == audits.drawn_results(chain.run, chain.members, height - back)
        audit_count += len(drawn)
    assert audit_count > cases // 2


@pytest.mark.parametrize("cases", [120, pytest.param(600, marks=pytest.mark.slow)])
def test_witnesses_match_program_when_members_leave(chain: Onchain, cases: int) -> None:
    """Compare the program's witnesses in random rounds: any votes, leavers and established
    holders.
    """
    rng = random.Random(cases)
    run_layout = views.run_account()
    members_layout = views.members_account()
    alone = set[bool]()
    for _ in range(cases):
        clients = rng.choice([1, 2, 3, rng.randint(1, 256), 256])
        seats_of_round = rng.sample(range(256), clients)
        elected = program_rules.elected_count(rng.choice([0, 1, 2, rng.randint(1, 32)]), clients)
        attested = bitmap.from_seats(
            rng.sample(seats_of_round, rng.randint(0, min(elected, clients)))
        )
        roster = bitmap.from_seats(seats_of_round)
        began = roster | bitmap.from_seats(rng.sample(range(256), rng.choice([0, 1, 20])))
        fields = {
            "elected": elected,
            "attested": attested,
            "established": EstablishedOnly(rng.choice([0, 1, 2])),
        }
        round_ = header(roster, began=began, seed=rng.getrandbits(64), **fields)
        rounds = np.zeros(4, run_layout.dtype["rounds"].base)
        rounds[1] = _round_record(rounds[1], round_)
        rounds[1]["attested"] = bitmap.to_bytes(attested)
        overwrite(
            chain, run_layout, chain.addresses.run, rounds=rounds, began=bitmap.to_bytes(began)
        )
        healthy = bitmap.from_seats(seat for seat in range(256) if rng.random() < 0.6)
        among = list(bitmap.seats(began & ~healthy & ~attested if rng.random() < 0.1 else began))
        judges = bitmap.from_seats(
            rng.sample(among, min(len(among), rng.choice([0, 2, 3, 10, 256])))
        )
        bits = {"healthy": bitmap.to_bytes(healthy), "judges": bitmap.to_bytes(judges)}
        overwrite(chain, members_layout, chain.addresses.members, **bits)
        expected = committee.witnesses(round_, chain.members)
        seated = chain.inspect(3, 1).ljust(began.bit_count(), b"\0")
        assert [
            seat for seat, one in zip(bitmap.seats(began), seated, strict=True) if one
        ] == sorted(expected)
        alone.add(
            bool(roster & healthy & ~judges)
            and bool(expected)
            and not set(expected) - set(bitmap.seats(judges))
        )
    assert alone == {True, False}


def _round_record(record: Any, round_: Any) -> Any:
    for name in ("seed", "data_index", "height", "batch", "clients", "elected", "established"):
        record[name] = getattr(round_, name)
    record["roster"] = bitmap.to_bytes(round_.roster)
    record["attested"] = bitmap.to_bytes(round_.attested)
    return record


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_failed_epoch_leaves_predicted_backlog(chain: Onchain, seed: int, overlap: int) -> None:
    """Members and witnesses fail at random. The test predicts each round's outcome before it
    closes.
    """
    rng = random.Random(seed)
    members = {number: (number % 3, rng.randint(1, 9)) for number in range(1, 7)}
    chain.configure(
        SEED,
        min_clients=3,
        init_min_clients=6,
        witness_nodes=3,
        verification_percent=20,
        overlap=overlap,
    )
    chain.begin(members)
    predicted = Backlog()
    while chain.run.state.training:
        run = chain.run
        round_ = run.current
        judged = run.round(run.config.judged(run.current.height))
        if round_.batch:
            batch = assignment.batch_size(run.config, round_.data_index)
            assert round_.batch == predicted.batch(batch)
            redo, predicted = predicted.take(batch)
            assert round_.redo == redo
        present = [
            seat for seat in committee.witnesses(round_, chain.members) if rng.random() < 0.9
        ]
        sent = [_attest(chain, rng, seat, judged.roster if judged else 0) for seat in present]
        while (
            chain.run.current.height == round_.height and chain.run.state is not RunState.COOLDOWN
        ):
            chain.tick_at_deadline()
        closed = chain.run.round(round_.height)
        assert closed is not None
        assert chain.attestations(chain.run.ring(round_.height) or 0, len(sent)) == tuple(sent)
        if judged is not None:
            shares = assignment.assign(judged, chain.members)
            idle = bitmap.from_seats(seat for seat, share in shares.items() if share.len == 0)
            agreed = program_rules.attested_mask(round_, sent, judged, idle)
            settled = backlog.settle(predicted, judged, shares, agreed)
            attested = settled.attested
            predicted = settled.backlog
            assert closed.attested == attested
            assert chain.run.step == run.step + settled.worked
            applied = bitmap.from_seats(consensus.consensus(closed, sent, judged.roster))
            assert applied & ~idle == attested & ~idle
        if not sent and overlap and not run.draining:
            predicted = backlog.put_back(predicted, round_)
        after = chain.run
        batch = (
            0 if after.draining else assignment.batch_size(after.config, after.current.data_index)
        )
        left = predicted if after.current.height == round_.height else predicted.take(batch)[1]
        assert chain.backlog() == left.intervals
        assert (after.backlog, after.lost_sequences) == (left.waiting, 0)
    assert chain.run.state is RunState.COOLDOWN


def _attest(chain: Onchain, rng: random.Random, witness: int, roster: int) -> Any:
    """Return an attestation with most results, some missing, and some of another fingerprint."""
    results = {
        seat: bytes([seat, 0 if rng.random() < 0.9 else rng.randint(1, 2)]) * 16
        for seat in bitmap.seats(roster)
        if rng.random() < 0.9
    }
    salt = chain.run.current.salt
    chain.witness(witness, results)
    packed = consensus.pack_fingerprints(results, roster, salt) if roster else bytes(320)
    return views.Attestation(witness, bitmap.from_seats(results), packed)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_program_drops_members_that_left_out_names(chain: Onchain, seed: int, overlap: int) -> None:
    """After random attestations by any witnesses, `health_check` drops a member iff the client
    names it.
    """
    rng = random.Random(seed)
    members = 6
    chain.configure(
        SEED, min_clients=members, init_min_clients=members, witness_nodes=members, overlap=overlap
    )
    chain.begin(dict.fromkeys(range(1, members + 1), (0, 1)))
    while chain.run.current.height < 2:
        chain.at(chain.now + 1)
        for seat in range(members):
            judged = chain.run.round(chain.run.config.judged(chain.run.current.height))
            chain.witness(seat, dict.fromkeys(range(members), bytes(32)) if judged else {})
    taken = 0
    for _ in range(60):
        participations = [rng.getrandbits(members) for _ in range(rng.randint(0, members))]
        _write_attestations(chain, participations, attested=rng.getrandbits(members))
        _have_gone(chain, {seat for seat in range(1, members) if rng.random() < 0.1})
        judges = chain.run.round(1)
        judged = chain.run.round(chain.run.config.judged(1))
        assert judges is not None
        assert judged is not None
        healthy = chain.members.mask(MemberState.HEALTHY)
        absent = consensus.left_out(
            judges,
            chain.attestations(chain.run.ring(1) or 0, len(participations)),
            chain.run,
            chain.members,
        )
        for seat in range(members):
            expected = bitmap.contains(judged.roster & ~judges.attested & absent & healthy, seat)
            assert _takes(chain, 1 << seat) == expected, (participations, seat)
            taken += expected
    assert 0 < taken < 60 * members


@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_program_drops_members_that_incomplete_names(chain: Onchain, seed: int) -> None:
    """Attestations of three tiers are random, and some members have shown their levels before.

    If a quorum of all witnesses has a member's result, `health_check` drops the member iff the
    client names it.
    """
    rng = random.Random(seed)
    size = 8
    chain.configure(
        SEED, min_clients=2, init_min_clients=size, witness_nodes=2, rounds_per_epoch=60
    )
    chain.begin({number: (rng.randrange(3), 1) for number in range(1, size + 1)})
    while chain.run.current.height < 2 + eviction.OFTEN:  # enough rounds to convict
        chain.at(chain.now + 1)
        for seat in committee.witnesses(chain.run.current, chain.members):
            chain.witness(
                seat, dict.fromkeys(range(size), bytes(32)) if chain.run.current.height else {}
            )
    taken = 0
    for _ in range(60):
        participations = [
            rng.getrandbits(size) | rng.getrandbits(size) for _ in range(rng.randint(1, size))
        ]
        _write_attestations(
            chain, participations, attested=rng.getrandbits(size) | rng.getrandbits(size)
        )
        _appoint(chain, rng.getrandbits(size) | rng.getrandbits(size))
        counts = [64 - eviction.OFTEN + rng.randint(-1, 1) for _ in range(size)]
        planes = [
            bitmap.to_bytes(sum((one >> bit & 1) << at for at, one in enumerate(counts)))
            for bit in range(7)
        ]
        overwrite(chain, views.members_account(), chain.addresses.members, shown=planes)
        members = chain.members
        last = chain.run.current.height - 1
        judges = chain.run.round(last)
        ring = chain.run.ring(last)
        assert judges is not None
        assert ring is not None
        attestations = chain.attestations(ring, len(participations))
        absent = consensus.left_out(judges, attestations, chain.run, members) & ~judges.attested
        expected = eviction.incomplete(chain.run, members, attestations)
        for seat in range(size):
            assert _takes(chain, 1 << seat) == bitmap.contains(expected | absent, seat), (
                participations,
                seat,
            )
            taken += bitmap.contains(expected & ~absent, seat)
    assert 0 < taken < 60 * size


def _appoint(chain: Onchain, judges: int) -> None:
    """Set the established holders with which the epoch began."""
    smallest = min((chain.members.seats[seat].tier for seat in bitmap.seats(judges)), default=3)
    levels = 0b111 & ~((1 << smallest) - 1)
    who = bitmap.to_bytes(judges)
    overwrite(chain, views.run_account(), chain.addresses.run, levels_established=levels)
    overwrite(chain, views.members_account(), chain.addresses.members, judges=who, established=who)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_level_judges_match_program(chain: Onchain, seed: int, overlap: int) -> None:
    """Attestations of three tiers are random, and some members judged since the epoch began.

    A member has shown its levels in a round if a quorum of the client's judges recorded each. It
    has not if a quorum missed one, or if most witnesses have no result of it. For levels without
    established holders, more than half are enough for either. All members are witnesses, so what no
    majority of them states does not count.
    """
    rng = random.Random(seed)
    size = 8
    chain.configure(
        SEED,
        min_clients=2,
        init_min_clients=size,
        witness_nodes=0,
        rounds_per_epoch=60,
        overlap=overlap,
    )
    chain.begin({number: (rng.randrange(3), 1) for number in range(1, size + 1)})
    everybody = (1 << size) - 1
    while chain.run.config.judged(chain.run.current.height) < 0:
        chain.at(chain.now + 1)
        for seat in range(size):
            _attest(chain, rng, seat, 0)
    outcomes = set[int]()
    splits = 0
    for _ in range(25):
        judges = rng.choice([0, rng.getrandbits(size), 1 << rng.randrange(size)])
        closing = chain.run.current.height
        if (
            judges.bit_count() >= committee.MIN_ESTABLISHED
        ):  # holders of all levels would attest alone
            judges &= ~bitmap.from_seats(
                seat for seat in range(size) if not chain.members.seats[seat].tier
            )
        _appoint(chain, judges)
        known = chain.run.levels_established
        chain.at(chain.now + 1)
        attestations = [_attest(chain, rng, seat, everybody) for seat in range(size)]
        closed = chain.run.round(closing)
        before = chain.members
        assert closed is not None
        chain.at(chain.now + 1)
        _attest(
            chain, rng, 0, everybody
        )  # the first attestation of the next round counts the previous round
        results_by_seat = {
            one.seat: consensus.unpack_fingerprints(one, everybody) for one in attestations
        }
        accepted = consensus.consensus(closed, attestations, everybody)
        for seat in range(size):
            own = range(before.seats[seat].tier, 3)
            judgements = [
                consensus.judging(attestations, chain.run, before, level) for level in own
            ]
            leads = program_rules.leading(
                results_by_seat[one.seat].get(seat) for one in attestations
            )
            recorded = [
                [results_by_seat[one.seat].get(seat) == leads for one in votes]
                for votes in judgements
            ]
            needed = [
                committee.quorum(len(votes)) if known >> level & 1 else len(votes) // 2 + 1
                for level, votes in zip(own, recorded, strict=True)
            ]
            denied = [
                votes.count(False) >= enough for votes, enough in zip(recorded, needed, strict=True)
            ]
            if known and len(recorded[-1]) == 2:
                needed[-1] = 1  # of two judges of the last level, one is enough
            had = [
                votes.count(True) >= enough for votes, enough in zip(recorded, needed, strict=True)
            ]
            most = (
                2 * sum(results_by_seat[one.seat].get(seat) == leads for one in attestations) > size
            )
            whole = most and leads is not None and all(had)
            against = most and (leads is None or any(denied))
            owed = whole or seat in accepted or not bitmap.contains(closed.attested, seat)
            step = (whole - against) if owed and all(judgements) else 0
            assert chain.members.shown[seat] - before.shown[seat] == step, (seat, known, judges)
            outcomes.add(step)
            splits += bool(owed and all(judgements) and not step)
        for seat in range(1, size):
            _attest(chain, rng, seat, everybody)
    assert outcomes == {-1, 0, 1}
    assert splits


def _write_attestations(chain: Onchain, participations: list[int], attested: int) -> None:
    """Write these participations, and no others, as the attestations of the last closed round."""
    ring = chain.run.ring(chain.run.current.height - 1)
    for layout, address, change in (
        (
            views.run_account(),
            chain.addresses.run,
            {"attestations": len(participations), "attested": bitmap.to_bytes(attested)},
        ),
        (views.witnesses_account(), chain.addresses.witnesses, {}),
    ):
        rounds = np.frombuffer(chain.data(address), layout.dtype, count=1, offset=8)[0][
            "rounds"
        ].copy()
        for name, value in change.items():
            rounds[ring][name] = value
        for place, participation in enumerate(participations if not change else []):
            rounds[ring]["attestations"][place]["seat"] = place
            rounds[ring]["attestations"][place]["participation"] = bitmap.to_bytes(participation)
        overwrite(chain, layout, address, rounds=rounds)


def _have_gone(chain: Onchain, gone: set[int]) -> None:
    """Mark these members as gone and all others as healthy."""
    record = np.frombuffer(
        chain.data(chain.addresses.members), views.members_account().dtype, count=1, offset=8
    )[0]
    seats = record["seats"].copy()
    used = np.flatnonzero(seats["used"])
    seats["state"][used] = [
        (MemberState.DROPPED if seat in gone else MemberState.HEALTHY).value for seat in used
    ]
    healthy = bitmap.to_bytes(bitmap.from_seats(set(used.tolist()) - gone))
    overwrite(chain, views.members_account(), chain.addresses.members, seats=seats, healthy=healthy)


def _takes(chain: Onchain, dropped: int) -> bool:
    """Return whether a health check that names these seats is accepted. The chain stays
    unchanged.
    """
    accounts = (chain.addresses.run, chain.addresses.members)
    before = {address: chain.svm.get_account(address) for address in accounts}
    wallet = chain.wallet(1)
    try:
        chain.send(wallet, chain.ix(wallet).health_check(RUN_ID, dropped))
    except Refused as refusal:
        if refusal.name != "NotUnhealthy":
            raise
        return False
    for address, account in before.items():
        assert account is not None
        chain.world.set_account(address, account)
    return True


def test_tick_is_refused_before_deadline_and_works_at_it(chain: Onchain) -> None:
    chain.configure(SEED, min_clients=1, init_min_clients=1)
    chain.join(1)
    for expected in (
        RunState.WARMUP,
        RunState.ROUND_TRAIN,
        RunState.ROUND_WITNESS,
        RunState.COOLDOWN,
    ):
        if not chain.run.seed_is_drawn:  # the first instruction draws it
            chain.at(chain.now)
            chain.tick()
        deadline = next_deadline(chain.run, chain.members)
        assert deadline is not None
        chain.at(deadline - 1)
        if chain.now > chain.run.state_started_at:
            with pytest.raises(Refused, match="NothingToTick"):
                chain.tick()
        chain.tick_at_deadline()
        assert chain.run.state is expected
    chain.tick_at_deadline()
    assert chain.run.state is RunState.WAITING_FOR_MEMBERS


def test_level_committees_match_program(chain: Onchain) -> None:
    """Members deliver at random, and some leave. All of them claim every level.

    The program stores each claim at the member's position in the level's committee, if it has one.
    """
    rng = random.Random(7)
    chain.configure(SEED, min_clients=1, init_min_clients=40, witness_nodes=1, rounds_per_epoch=9)
    chain.begin({number: (number % 3, 1) for number in range(1, 41)})
    while chain.run.state is not RunState.COOLDOWN:
        run = chain.run
        judged = run.round(run.config.judged(run.current.height))
        (witness,) = committee.witnesses(run.current, chain.members)
        chain.at(chain.now + 1)
        seats = [
            seat
            for seat in bitmap.seats(judged.roster if judged else 0)
            if rng.random() < (seat + 1) / 40
        ]
        chain.witness(witness, dict.fromkeys(seats, bytes(32)))
        if rng.random() < 0.3 and run.current.height and chain.run.state.training:
            wallet = chain.wallet(rng.choice(list(bitmap.seats(chain.members.healthy))) + 1)
            chain.send(wallet, chain.ix(wallet).leave_run(RUN_ID, chain.run.round_id))
    run = chain.run
    members = chain.members
    committees = [committee.cooldown_electees(run, members, level) for level in range(3)]
    assert 0 < len(committees[0]) < len(committees[2]) < 40
    expected: list[dict[int, bytes]] = [{} for _ in range(8)]
    for seat in bitmap.seats(members.healthy):
        owed = committee.levels_to_attest(run, members, seat)
        wallet = chain.wallet(seat + 1)
        instruction = chain.ix(wallet).attest(
            RUN_ID, seat, run.round_id, {level: bytes([seat, 1]) * 16 for level in range(3)}
        )
        if not owed:
            with pytest.raises(Refused, match="NotElected"):
                chain.send(wallet, instruction)
            continue
        chain.send(wallet, instruction)
        for level in owed:
            expected[level][committees[level].index(seat)] = bytes([seat, 1]) * 16
        assert chain.cooldown() == tuple(expected)


@pytest.mark.parametrize("least", [0, 1, 2])
def test_level_committees_match_with_established_members(chain: Onchain, least: int) -> None:
    """Some of 130 members are established, but none holds the smallest tiers.

    The committees match, and each has its full size.
    """
    rng = random.Random(least)
    size = 130
    chain.configure(SEED, min_clients=1, init_min_clients=size, witness_nodes=1, rounds_per_epoch=3)
    chain.begin({number: (number % 3, 1) for number in range(1, size + 1)})
    while chain.run.state is not RunState.COOLDOWN:
        (witness,) = committee.witnesses(chain.run.current, chain.members)
        judged = chain.run.round(chain.run.config.judged(chain.run.current.height))
        chain.at(chain.now + 1)
        chain.witness(
            witness, dict.fromkeys(bitmap.seats(judged.roster if judged else 0), bytes(32))
        )
    tiers = [seat.tier for seat in chain.members.seats[:size]]
    _appoint(
        chain, bitmap.from_seats(seat for seat in range(size) if tiers[seat] >= least and seat % 7)
    )
    run = chain.run
    members = chain.members
    committees = [committee.cooldown_electees(run, members, level) for level in range(3)]
    for level, electees in enumerate(committees):
        alone = bitmap.from_seats(electees) & ~members.judges == 0
        assert alone is (level >= least)
        assert len(electees) == 32
    for seat in rng.sample(range(size), size):
        owed = committee.levels_to_attest(run, members, seat)
        wallet = chain.wallet(seat + 1)
        hashes = {level: bytes([seat, 1]) * 16 for level in range(3)}
        instruction = chain.ix(wallet).attest(RUN_ID, seat, run.round_id, hashes)
        if owed:
            chain.send(wallet, instruction)
            hashes_by_level = chain.cooldown()
            for level in range(3):
                here = committees[level].index(seat) if level in owed else None
                assert [
                    place for place, one in hashes_by_level[level].items() if one == hashes[level]
                ] == ([] if here is None else [here])
        else:
            with pytest.raises(Refused, match="NotElected"):
                chain.send(wallet, instruction)


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "line"),
    [rule for rule in RULES if rule[0] in program_errors()],
)
def test_program_refuses_config_refused_by_client(
    unchanged_chain: Onchain, name: str, pattern: str, replacement: str, line: int
) -> None:
    config = RunConfig.model_validate(tomllib.loads(changed((pattern, replacement))))
    parts = config.to_chain()
    unchanged_chain.write_spec(config)
    with pytest.raises(Refused) as caught:
        unchanged_chain.update(config=parts["config"], model=parts["model"])
    assert caught.value.name == name


def test_program_accepts_config_accepted_by_client(chain: Onchain) -> None:
    chain.configure(SEED)
    assert chain.run.config.rounds_per_epoch == 20
    assert chain.model.lr_schedule.base_lr == 4.0e-4
    assert chain.model.optimizer.decay == 0.999
    assert chain.model.data_location.secondary == "fineweb-edu-tokenized-llama2"
    assert chain.model.checkpoint.repo == "emozilla/llama2-20m-init"
