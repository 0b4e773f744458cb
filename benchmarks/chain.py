"""Measure what the programs cost: compute units, account bytes, rent, pushed bytes and fees.

python benchmarks/chain.py [--json] [--members 3 32 256]
"""

# How it is measured:
# - Run a whole epoch per size in LiteSVM with the committed programs, and measure each
#   transaction.
# - Units are the highest of an instruction.
# - Pushed bytes are the websocket message to a subscriber of the Run account after a transaction,
#   in the two encodings that clients use.
# - Fees count one signature per transaction and no priority fee.

import argparse
import base64
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zstandard
from solders.instruction import Instruction
from solders.pubkey import Pubkey

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from aftermath.chain.instructions import SPEC_PART
from aftermath.rules import assignment, audits, bitmap, committee, eviction
from aftermath.rules.run import MAX_WITNESSES
from aftermath.rules.state import EstablishedOnly, MemberState, RunState
from programs import evidence
from programs.audit_cases import audit_of, vote
from programs.harness import AUTHORIZER, PROGRAM, Outcome, World, authorization_address, build, idl
from programs.scenario import EVERYONE, SPEC, Scenario, member

# Upstream draws a committee by 90 rounds of swap-or-not with two SHA-256 each: one position of one
# member among 256, measured in a probe program that the same toolchain built. Not measured again by
# this benchmark.
UPSTREAM_ONE_POSITION = 29_026
FEE = 5_000
GOAL_UNITS = 50_000
LIMIT_UNITS = 150_000
GOAL_PUSH = 2_048
HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}
ENCODINGS = ("base64", "base64+zstd")


class Recorder(World):
    """A world that records each instruction's compute units and the bytes pushed to a subscriber of
    the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.units: dict[str, int] = defaultdict(int)
        self.push: dict[str, dict[str, int]] = {
            encoding: defaultdict(int) for encoding in ENCODINGS
        }
        self.transactions: dict[str, int] = defaultdict(int)
        self.watched: Pubkey | None = None
        self.label: str | None = None
        self.names = {
            bytes(entry["discriminator"]): prefix + entry["name"]
            for program, prefix in ((AUTHORIZER, "authorizer."), (PROGRAM, ""))
            for entry in idl(program)["instructions"]
        }

    def send(self, *instructions: Instruction, **rest: Any) -> Outcome:
        before = self.data(self.watched) if self.watched else b""
        outcome = super().send(*instructions, **rest).ok()
        name = self.label or self.names[bytes(instructions[-1].data)[:8]]
        if (
            len(instructions) == 1 or name == "prove_equivocation"
        ):  # signature checks cost no compute units
            self.units[name] = max(self.units[name], outcome.units)
        self.transactions[name] += 1
        after = self.data(self.watched) if self.watched else b""
        if after and after != before:
            for encoding, sizes in self.push.items():
                sizes[name] = max(sizes[name], len(self.notification(after, encoding)))
        return outcome

    def notification(self, data: bytes, encoding: str) -> str:
        """Return the message of `accountSubscribe` as the validator writes it."""
        assert self.watched
        body = zstandard.compress(data) if encoding == "base64+zstd" else data
        value: dict[str, Any] = {
            "lamports": self.svm.get_balance(self.watched),
            "data": [base64.b64encode(body).decode(), encoding],
        }
        value |= {
            "owner": str(PROGRAM),
            "executable": False,
            "rentEpoch": 2**64 - 1,
            "space": len(data),
        }
        result = {"context": {"slot": 400_000_000 + self.slot}, "value": value}
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": "accountNotification"}
        params = {"params": {"result": result, "subscription": 1_000_000}}
        return json.dumps(message | params, separators=(",", ":"))


def prepare(world: Recorder, clients: int, tiers: int = 3) -> Scenario:
    """Return a run with `clients` members in its first warm-up. Each instruction has its own
    transaction.
    """
    run = Scenario(world, tiers=tiers)
    world.fund(run.authority.pubkey())
    for instruction in run.creation():
        world.send(instruction)
    world.watched = run.accounts["run"]
    percent = 100 if clients < 10 else 10
    run.write_spec(SPEC.ljust(SPEC_PART))
    run.configure(
        init_min_clients=clients, min_clients=1, rounds_per_epoch=3, verification_percent=percent,
        global_batch_size_start=16 * clients, global_batch_size_end=16 * clients, join_bond=1_000_000,
    )  # fmt: skip
    run.update(
        metadata={"name": "n" * 64, "description": "d" * 280, "num_parameters": 1, "vocab_size": 1}
    )
    authorizations(run)
    run.owner("set_future_epoch_rates", 10_000, 10)
    run.owner("set_paused", False)
    for index in range(clients):
        key = {"p2p": evidence.p2p(index)} if index == evidence.LIAR else {}
        run.join(index, tier=index % tiers if clients > 9 else 0, weight=1 + index, **key)
    world.advance(6)
    run.tick()
    return run.draw()


def authorizations(run: Scenario) -> None:
    """Let everyone join, and send every change of a second authorization."""
    grantor = run.grantor
    grantee = member(5_000)
    keys = dict.fromkeys(("payer", "sponsor", "delegates_sponsor"), run.world.payer.pubkey())
    keys |= {"grantor": grantor.pubkey(), "grantee": grantee.pubkey()}
    public = keys | {"authorization": authorization_address(grantor.pubkey(), EVERYONE)}
    private = keys | {"authorization": authorization_address(grantor.pubkey(), grantee.pubkey())}
    scope = b"CoordinatorJoinRun"
    steps: list[tuple[str, dict[str, Pubkey], tuple[Any, ...]]] = [
        ("create", public, (EVERYONE, scope)),
        ("grantor_update", public, (True,)),
        ("create", private, (grantee.pubkey(), scope)),
        (
            "grantee_update",
            private,
            (False, [member(6_000 + index).pubkey() for index in range(25)]),
        ),
        ("grantee_update", private, (True, [])),
        ("close", private, ()),
    ]
    for name, accounts, args in steps:
        run.world.send(build(AUTHORIZER, name, accounts, args), signers=[grantor, grantee])


def train(run: Scenario, world: Recorder) -> None:
    """Send the transactions of warm-up, a full round, two with many missing shares, two votes on
    a case, a health check and the drain round. From the second round on, all members count as
    established at the epoch's start.
    """
    for index in run.elected():
        if run.run.state is RunState.WARMUP:
            run.by(index, "warmup_witness", run.seat_of(index))
    everyone_attests(run)
    record = world.record("Members", run.run_id)
    establish_all(run, record, run.run.levels)
    world.store("Members", run.run_id, record)
    for part, every in (
        ("half", 2),
        ("a third", 3),
    ):  # with 256 members, missing half makes more gaps than the backlog can hold
        judged = run.run.current.height - 1
        world.label = f"witness ({part} of the shares missing, all disagree)"
        everyone_attests(run, disagreeing(run, judged, every))
    world.label = None
    judge(run, world)
    record = world.record("Run", run.run_id)
    record["config"]["verification_percent"] = 0  # so that `checkpoint` ends the epoch
    record["draining"] = min(record["draining"], 1)
    world.store("Run", run.run_id, record)
    closed = run.run.round(judged + 1)
    assert closed is not None
    missing = [seat for seat in closed.members if not bitmap.contains(closed.attested, seat)]
    sender = next(seat for seat in closed.members if seat not in missing)
    run.by(run.index_of(run.members.seats[sender].signer), "health_check", run.names(missing))
    proof = run.instruction("prove_equivocation", accounts={"user": member(0).pubkey()})
    world.send(evidence.IX.check_signatures(evidence.pair(run)), proof)
    while run.run.state is not RunState.COOLDOWN:
        healthy = [
            index
            for index in run.elected()
            if run.members.seats[run.seat_of(index)].state is MemberState.HEALTHY
        ]
        everyone_attests(run, indices=healthy)
        if run.run.state is RunState.ROUND_TRAIN and run.run.current.attestations:
            world.advance(21)
            run.tick(healthy[0])
        if run.run.state is RunState.ROUND_WITNESS:
            world.advance(6)
            run.tick(healthy[0])


def disagreeing(run: Scenario, height: int, every: int) -> list[int]:
    """Return each witness's bit mask. It lacks every `every`-th share, except a quarter of these,
    which differs by witness.
    """
    judged = run.run.round(height)
    assert judged is not None
    shares = assignment.assign(judged, run.members)
    owing = [seat for seat, share in shares.items() if share.len]
    return [
        bitmap.from_seats(
            seat for place, seat in enumerate(owing) if place % every or (place + witness) % 4 == 0
        )
        for witness in range(MAX_WITNESSES)
    ]


def everyone_attests(
    run: Scenario, participation: Sequence[int] = (), indices: Sequence[int] | None = None
) -> None:
    height = run.run.current.height
    for place, index in enumerate(run.elected() if indices is None else indices):
        if run.run.current.height == height and run.run.state.training:
            run.witness(index, participation[place] if participation else None)


def judge(run: Scenario, world: Recorder) -> None:
    """Open a case about a drawn result, and cast another vote on it."""
    if not run.run.seed_is_drawn:
        run.draw()
    heights = audits.auditable_heights(run.run)
    drawn = [height for height in heights if audits.drawn_results(run.run, run.members, height)]
    if not drawn:
        return  # four members at least
    audit = audit_of(run, drawn[0])
    world.label = "verify (opens a case)"
    vote(run, audit.auditor, audit)
    world.label = None
    vote(run, audit.others[0], audit, mismatch=False)


def finish(run: Scenario, world: Recorder) -> None:
    """Send the level hashes, a checkpoint, and every instruction that ends a run."""
    for seat, one in enumerate(run.members.seats):
        levels = committee.levels_to_attest(run.run, run.members, seat) if one.used else ()
        if levels and one.state is MemberState.HEALTHY and run.run.state is RunState.COOLDOWN:
            run.attest(run.index_of(one.signer), {level: HASHES[level] for level in levels})
    if run.run.levels_attested != 0b111:  # too few committee members are left
        world.advance(31)
        run.tick()
    named = {"kind": 1, "repo": "r" * 64, "revision": "v" * 40, "hashes": list(HASHES.values())}
    keys = {"user": run.authority.pubkey()}
    world.send(run.instruction("checkpoint", named, accounts=keys), signers=[run.authority])
    last = run.run.finishers.bit_length() - 1
    run.join(last)
    run.by(last, "leave_run")
    world.advance(40)  # the wait for holders of the model is over
    run.join(8_000)  # if all seats are taken, one member loses its seat
    run.by(8_000, "leave_run")
    run.settle(8_000)
    run.by(8_000, "withdraw")
    for seat in bitmap.seats(run.members.forfeited):
        run.settle(run.index_of(run.members.seats[seat].signer))
    for which, name in ((0, "witnesses"), (1, "auditors"), (2, "data")):
        world.label = f"inspect ({name})"
        world.send(run.instruction("inspect", which, 0))
    world.label = None
    run.owner("set_paused", True)
    run.owner("rewind", 0, run.model.checkpoint_step)
    run.owner("kick", member(7_000).pubkey(), True)
    run.owner("update_client_version", "v" * 96)
    run.owner("close_run")


def begun(clients: int, tiers: int) -> Scenario:
    """Return a run whose first round has begun."""
    run = prepare(Recorder(), clients, tiers)
    for index in run.elected():
        if run.run.state is RunState.WARMUP:
            run.by(index, "warmup_witness", run.seat_of(index))
    return run


def timed_out_tick_units(
    clients: int, tiers: int, *, half: bool, failed: bool = False, last: bool = False
) -> int:
    """Return the compute units of a `tick` that ends a timed-out cooldown without attestations, or
    with those of half of each level's committee (`half`).

    With `failed`, all but the smallest tier failed most rounds. With `last`, the run finishes, and
    all seats wait for the next epoch.
    """
    run = begun(clients, tiers)
    while run.run.state is not RunState.COOLDOWN:
        everyone_attests(run)
    committees = {
        level: committee.cooldown_electees(run.run, run.members, level) for level in range(tiers)
    }
    told: dict[int, dict[int, bytes]] = defaultdict(dict)
    for level, electees in committees.items() if half else ():
        for seat in electees[: -(-len(electees) // 2)]:
            told[seat][level] = bytes([level + 1]) * 32
    for seat, hashes in sorted(told.items()):
        run.attest(run.index_of(run.members.seats[seat].signer), hashes)
    if run.run.state is not RunState.COOLDOWN:
        raise SystemExit("error: half of the committees ended the cooldown before its timeout")
    if failed:
        fail_larger_tiers(run, tiers)
    if last:
        end_after_epoch(run)
    run.world.advance(31)
    return run.tick().units


def end_after_epoch(run: Scenario) -> None:
    """Make this epoch the last one, and let all seats wait for the next."""
    state = run.world.record("Run", run.run_id)
    record = run.world.record("Members", run.run_id)
    state["config"]["total_steps"] = state["step"] - 1
    record["seats"]["pending"] = record["seats"]["used"]
    run.world.store("Run", run.run_id, state)
    run.world.store("Members", run.run_id, record)


def fail_larger_tiers(run: Scenario, tiers: int) -> None:
    """Mark all but the smallest tier as failed: they may not attest."""
    record = run.world.record("Members", run.run_id)
    passed = bitmap.from_seats(
        seat for seat, one in enumerate(run.members.seats) if one.tier == tiers - 1
    )
    establish_all(run, record, tiers)
    everybody = (1 << bitmap.MAX_MEMBERS) - 1
    record["shown"][0][:-1] = bitmap.to_bytes(everybody & ~passed)
    record["shown"][0][-1] = bitmap.to_bytes(passed)
    record["proven"][0] = bitmap.to_bytes(run.members.proven & passed)
    run.world.store("Members", run.run_id, record)


def establish_all(run: Scenario, record: Any, tiers: int) -> None:
    """Make all members established, and holders of the model since the epoch's start."""
    state = run.world.record("Run", run.run_id)
    state["levels_established"] = (1 << tiers) - 1
    # later rounds copy this from the round before
    state["rounds"][0]["established"][state["head"][0]] = EstablishedOnly.WITNESS
    run.world.store("Run", run.run_id, state)
    record["established"][0] = record["judges"][0] = record["healthy"][0]


def level_drop_units(clients: int) -> int:
    """Return the compute units of dropping the holders of level 0 that were not elected, after a
    quorum reported them missing.

    All members are established, and the scores of the dropped members are low enough for a drop.
    """
    run = begun(clients, 3)
    everyone_attests(run)
    everyone_attests(run)
    seats = run.members.seats
    chosen = [run.seat_of(index) for index in run.elected()]
    judges = [seat for seat in chosen if seats[seat].tier == 0]
    judged = run.run.round(run.run.current.height - 1)
    assert judged is not None
    shares = assignment.assign(judged, run.members)
    owing = [seat for seat, share in shares.items() if share.len and seats[seat].tier == 0]
    hidden = bitmap.from_seats([seat for seat in owing if seat not in judges] or owing[:1])
    others = [seat for seat in judges if not bitmap.contains(hidden, seat)]
    # an accused judge that did not attest counts as a vote for itself
    without = others[: committee.quorum(len(judges) + 1)]
    everyone_attests(run, [judged.roster & ~(hidden if seat in without else 0) for seat in chosen])
    record = run.world.record("Members", run.run_id)
    establish_all(run, record, 3)
    add_rounds(run, record, eviction.OFTEN)
    for bit in range(7):
        everybody = (1 << bitmap.MAX_MEMBERS) - 1
        record["shown"][0][bit] = bitmap.to_bytes(
            everybody if 64 - eviction.OFTEN >> bit & 1 else 0
        )
    run.world.store("Members", run.run_id, record)
    sender = run.index_of(seats[without[0]].signer)
    return run.by(sender, "health_check", run.names(bitmap.seats(hidden))).units


def add_rounds(run: Scenario, record: Any, rounds: int) -> None:
    """Add this number of further rounds that made a step in this epoch."""
    state = run.world.record("Run", run.run_id)
    state["step"] += rounds
    state["rounds"]["height"] += rounds
    run.world.store("Run", run.run_id, state)
    record["judged"] += rounds


def measure(clients: int) -> dict[str, Any]:
    """Return all figures of a run of `clients` members."""
    world = Recorder()
    run = prepare(world, clients)
    accounts = {
        name: len(world.data(run.accounts[name]))
        for name in ("run", "model", "members", "witnesses")
    }
    membership = len(world.data(run.membership_key(member(0).pubkey())))
    train(run, world)
    finish(run, world)
    for half, who in ((False, "nobody"), (True, "half")):
        for tiers in (3, 8):
            what = f"tick (ends a cooldown in which {who} attested, {tiers} levels)"
            world.units[what] = timed_out_tick_units(clients, tiers, half=half)
    what = "tick (ends a cooldown in which half attested, 8 levels, and most judges have failed)"
    world.units[what] = timed_out_tick_units(clients, 8, half=True, failed=True)
    what = what.replace(" and most", " most").replace(
        ")", ", and the run is done for which all wait)"
    )
    world.units[what] = timed_out_tick_units(clients, 8, half=True, failed=True, last=True)
    world.units["health_check (for a level, by its holders)"] = level_drop_units(clients)
    attestations = min(clients, 32)
    return {
        "units": dict(sorted(world.units.items())),
        "push": {encoding: dict(sizes) for encoding, sizes in world.push.items()},
        "accounts": accounts,
        "rent_lamports": {name: (size + 128) * 6_960 for name, size in accounts.items()},
        "membership": {"bytes": membership, "rent_lamports": (membership + 128) * 6_960},
        "lamports_per_1000_rounds": 1_000 * attestations * FEE,
    }


def report(sizes: Sequence[int]) -> dict[str, Any]:
    results = {clients: measure(clients) for clients in sizes}
    last = results[sizes[-1]]
    units = {name: [results[size]["units"].get(name) for size in sizes] for name in last["units"]}
    highest = max(max(result["units"].values()) for result in results.values())
    pushed = {
        encoding: max(max(result["push"][encoding].values()) for result in results.values())
        for encoding in ENCODINGS
    }
    return {
        "members": list(sizes),
        "compute_units": units,
        "compute_units_max": highest,
        "compute_units_goal_met": highest <= GOAL_UNITS,
        "compute_units_limit_met": highest <= LIMIT_UNITS,
        "push_bytes_max": pushed,
        "push_goal_met": max(pushed.values()) <= GOAL_PUSH,
        "push_bytes": last["push"],
        "account_bytes": last["accounts"],
        "rent_lamports": last["rent_lamports"],
        "membership": last["membership"],
        "rent_lamports_total": sum(last["rent_lamports"].values()),
        "lamports_per_1000_rounds": {
            size: results[size]["lamports_per_1000_rounds"] for size in sizes
        },
        "all_positions_units": last["units"]["inspect (witnesses)"],
        "upstream_one_position_units": UPSTREAM_ONE_POSITION,
    }


def show(result: dict[str, Any]) -> None:
    sizes = result["members"]
    print("compute units".ljust(36), *(f"{size:>8}" for size in sizes))
    for name, units in result["compute_units"].items():
        print(
            name.ljust(36), *(f"{unit:>8,}" if unit is not None else f"{'-':>8}" for unit in units)
        )
    print(f"\nhighest {result['compute_units_max']:,} (goal {GOAL_UNITS:,}, limit {LIMIT_UNITS:,})")
    ours = result["all_positions_units"]
    theirs = result["upstream_one_position_units"]
    print(
        f"all {sizes[-1]} positions of a committee: {ours:,}; upstream's draw of one position: {theirs:,}"
    )
    for name, size in result["account_bytes"].items():
        print(f"{name:<10} {size:>7,} bytes, rent {result['rent_lamports'][name]:>12,} lamports")
    print("pushed to a subscriber, at most:", result["push_bytes_max"], f"(goal {GOAL_PUSH:,})")
    print("lamports of fees per 1,000 rounds:", result["lamports_per_1000_rounds"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--members",
        type=int,
        nargs="+",
        default=[3, 32, 256],
        metavar="N",
        help="default: 3 32 256",
    )
    arguments = parser.parse_args()
    result = report(arguments.members)
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
