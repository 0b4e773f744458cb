"""Random cooldowns of up to 256 members and 8 levels, written into the accounts of one run.

Each state is drawn field by field within the program's invariant: histories would reach few states.
Members may be judges, have shown levels, have left in some round, or be dropped or ejected. `Drawn`
holds the client's and the oracle's view, and a short second version of a cooldown's outcome.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from aftermath.chain import layout
from aftermath.rules import bitmap, committee
from aftermath.rules.committee import quorum
from aftermath.rules.limits import MAX_LEVELS
from aftermath.rules.members import Members
from aftermath.rules.run import MAX_WITNESSES, STORED_ROUNDS, Run
from aftermath.rules.state import MemberState, ModelSource, RunState
from programs.harness import PROGRAM, Outcome, World, instruction_of
from programs.oracle_records import UNATTESTED, UNKNOWN, OracleRound, Seat
from programs.scenario import Scenario, member
from programs.transitions import Transitions

SEATS = bitmap.MAX_MEMBERS
BALANCED = 64
STEP = 40
EPOCH = 5
DURABLE = tuple(bytes([0xD0 + level]) * 32 for level in range(MAX_LEVELS))
GONE = (
    MemberState.DROPPED,
    MemberState.WITHDRAWN,
    MemberState.EJECTED,
    MemberState.LEFT_EARLY,
    MemberState.RESTARTED,
)
# probabilities that a member has each property; each state draws one of them
CHANCES: Mapping[str, tuple[float, ...]] = {
    "judge": (0, 0.1, 0.5, 0.9, 1),
    "proven": (0.1, 0.5, 0.9, 1, 1),
    "gone": (0, 0, 0.1, 0.4, 0.6, 0.9),
    "late": (0, 0.1, 0.5, 1),
    "idle": (0, 0, 0.1, 0.5),
}


@cache
def wallet(seat: int) -> bytes:
    return bytes(member(seat).pubkey())


@dataclass
class Sets:
    """Sets of seats, as bitmaps."""

    began: int = 0
    judges: int = 0
    proven: int = 0
    healthy: int = 0
    established: int = 0
    forfeited: int = 0


@dataclass
class Drawn:
    """A cooldown as the client reads it, its attestations so far, and the oracle's view of the
    same.
    """

    run: Run
    members: Members
    oracle: Transitions
    worked: bool
    committees: list[tuple[int, ...]] = field(init=False)
    statements: list[dict[int, bytes]] = field(init=False)
    """The attested hash of each level, by seat."""
    attested: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        levels = range(self.run.levels)
        self.committees = [
            committee.cooldown_electees(self.run, self.members, level) for level in levels
        ]
        self.statements = [{} for _ in levels]

    def attesters(self) -> list[int]:
        """Return the seats that may attest a level."""
        all_electees = {seat for electees in self.committees for seat in electees}
        return [
            seat
            for seat in sorted(all_electees)
            if bitmap.contains(self.members.proven & self.members.healthy, seat)
        ]

    def record(self, seat: int, hashes: Mapping[int, bytes]) -> str | None:
        """Record this member's attestation. Return the error instead if the program refuses it."""
        if self.members.seats[seat].state is not MemberState.HEALTHY:
            return "SeatMismatch"
        own = [
            level for level in hashes if level < self.run.levels and seat in self.committees[level]
        ]
        if not bitmap.contains(self.members.proven, seat) or not own:
            return "NotElected"
        if any(seat in self.statements[level] for level in own):
            return "DuplicateWitness"
        for level in own:
            self.statements[level][seat] = hashes[level]
            alike = list(self.statements[level].values()).count(hashes[level])
            if level not in self.attested and alike >= quorum(len(self.committees[level])):
                self.attested[level] = hashes[level]
        return None

    def stated_hashes(self) -> list[dict[int, bytes]]:
        """Return the hashes stated for each level, by position in its committee."""
        pairs = zip(self.statements, self.committees, strict=True)
        by_place = [
            {electees.index(seat): one for seat, one in hashes.items()}
            for hashes, electees in pairs
        ]
        return by_place + [{} for _ in range(MAX_LEVELS - len(by_place))]

    def end(self) -> int:
        """Attest what is undisputed when the time is up. Return the mask of the unknown levels."""
        unknown = 0
        for level, (hashes, electees) in enumerate(
            zip(self.statements, self.committees, strict=True)
        ):
            gone = [seat for seat in electees if not bitmap.contains(self.members.healthy, seat)]
            is_established = bitmap.contains(self.run.levels_established, level)
            new = is_established and not all(
                bitmap.contains(self.members.established, seat) for seat in hashes
            )
            missed = any(seat not in hashes for seat in gone)
            enough = (
                2 * len(hashes) > len(electees)
                if new and missed
                else 2 * len(hashes) >= len(electees)
            )
            if level in self.attested:
                continue
            if enough and len(set(hashes.values())) == 1:
                self.attested[level] = next(iter(hashes.values()))
            elif self.worked and 2 * len(gone) >= len(electees):
                unknown |= 1 << level
        return unknown

    def known(self, unknown: int) -> tuple[ModelSource, tuple[bytes, ...], int]:
        """Return the source of the next epoch's model, and the run's knowledge of each level."""
        every = (1 << self.run.levels) - 1
        if unknown == every:
            return ModelSource.CHECKPOINT, DURABLE[: self.run.levels], every
        back = {level: DURABLE[level] for level in bitmap.seats(unknown)}
        known_hashes = dict(enumerate(self.run.level_hashes)) | self.attested | back
        hashes = tuple(known_hashes[level] for level in range(self.run.levels))
        return ModelSource.PEERS, hashes, bitmap.from_seats(self.attested) | unknown


class Cooldowns:
    """One run, whose accounts are overwritten for each state."""

    def __init__(self, seed: object) -> None:
        self.rng = random.Random(repr(seed))
        self.world = World()
        self.scenario = Scenario(self.world, tiers=MAX_LEVELS).start()
        names = ("Run", "Model", "Members", "Witnesses")
        self.blank = {name: self.world.record(name, self.scenario.run_id) for name in names}

    def draw(self) -> Drawn:
        rng = self.rng
        levels = rng.choice([1, 2, 3, 3, 8, 8, rng.randint(1, MAX_LEVELS)])
        used = rng.choice(
            [1, 2, 3, 4, 5, 7, 9, 12, 33, 64, 70, 128, 255, 256, rng.randint(1, SEATS)]
        )
        last = rng.choice([0, 1, 2, 5, 11])
        judged = rng.randint(1, last + 1) if rng.random() < 0.9 else 0
        seats = np.zeros(SEATS, self.blank["Members"].dtype["seats"].base)
        sets = Sets()
        scores = [BALANCED] * SEATS
        chance = {name: rng.choice(values) for name, values in CHANCES.items()}
        tiers = rng.choice(
            [range(levels), [rng.randrange(levels)], [0, levels - 1], [0, *[levels - 1] * 9]]
        )
        for seat in range(used):
            seats[seat] = self._seat(seat, rng.choice(tiers))
            if seat and rng.random() < chance["idle"]:  # in another epoch or in none
                sets.established |= (rng.random() < 0.5) << seat
                seats[seat]["exited_height"] = rng.choice([0, 0, 1, last, last + 1])
                seats[seat]["last_epoch"] = EPOCH - rng.choice([1, 2, 2, 2])
            elif rng.random() < chance["gone"]:
                self._gone(sets, seats[seat], (seat, last, judged), chance)
            else:
                judge = rng.random() < chance["judge"]
                proven = judged > 0 and rng.random() < chance["proven"]
                seats[seat]["state"] = MemberState.HEALTHY
                self._put(
                    sets,
                    seat,
                    began=True,
                    healthy=True,
                    judges=judge,
                    established=judge,
                    proven=proven,
                )
                scores[seat] -= rng.randint(0, not proven and not judge)
        return self._written(levels, (last, judged), (sets, scores), seats)

    def _seat(self, seat: int, tier: int) -> Any:
        record = np.zeros(1, self.blank["Members"].dtype["seats"].base)[0]
        record["signer"] = wallet(seat)
        record["p2p"] = b"\1" * 32
        record["used"] = 1
        record["tier"] = tier
        record["declared"] = 60
        record["weight"] = self.rng.randint(1, 60)
        return record

    def _gone(
        self, sets: Sets, record: Any, what: tuple[int, int, int], chance: Mapping[str, float]
    ) -> None:
        """Draw a member that left in the warm-up, in a round or in cooldown.

        An ejected one keeps the vote that it had then.
        """
        rng = self.rng
        (seat, last, judged) = what
        late = rng.random() < chance["late"]
        state = rng.choice(GONE)
        early = state is MemberState.LEFT_EARLY
        record["state"] = state
        record["exited_height"] = 0 if early else last + 1 if late else rng.randint(0, last)
        ejected = state is MemberState.EJECTED
        keeps = not ejected or late or rng.random() < 0.3
        judge = rng.random() < chance["judge"]
        stays = judge and keeps and (state is not MemberState.DROPPED or rng.random() < 0.7)
        proven = keeps and judged > 0 and not early and rng.random() < chance["proven"]
        self._put(
            sets,
            seat,
            began=True,
            judges=judge,
            established=stays,
            proven=proven,
            forfeited=ejected,
        )

    def _put(self, sets: Sets, seat: int, **where: bool) -> None:
        for name, is_in in where.items():
            setattr(sets, name, getattr(sets, name) | is_in << seat)

    def _written(
        self, levels: int, counts: tuple[int, int], who: tuple[Sets, list[int]], seats: Any
    ) -> Drawn:
        (last, judged) = counts
        (sets, scores) = who
        there = [
            seat
            for seat in bitmap.seats(sets.judges)
            if seats[seat]["state"] != MemberState.LEFT_EARLY
        ]
        smallest = min((int(seats[seat]["tier"]) for seat in there), default=levels)
        run, model, members = (self.blank[name].copy() for name in ("Run", "Model", "Members"))
        run["state"] = RunState.COOLDOWN
        run["epoch"] = EPOCH
        run["step"] = STEP
        run["start_step"] = STEP - judged
        run["state_started_at"] = run["epoch_started_at"] = self.world.now
        run["levels"] = levels
        run["levels_established"] = (1 << levels) - (1 << smallest)
        run["began"][0] = run["next_roster"][0] = bitmap.to_bytes(sets.began)
        run["model_source"] = ModelSource.PEERS
        for level in range(levels):
            model["checkpoint_hashes"][0][level] = DURABLE[level]
            run["level_hashes"][0][level] = UNATTESTED if judged else DURABLE[level]
        run["head"] = head = self.rng.randrange(STORED_ROUNDS)
        entry = run["rounds"][0][head]
        entry["seed"] = self.rng.getrandbits(64)
        entry["height"] = last
        entry["step"] = STEP
        entry["roster"] = bitmap.to_bytes(sets.began)
        entry["clients"] = sets.began.bit_count()
        members["epoch"] = EPOCH
        members["judged"] = judged
        members["seats"][0] = seats
        for name in ("proven", "judges", "healthy", "established", "forfeited"):
            members[name][0] = bitmap.to_bytes(getattr(sets, name))
        for bit in range(members["shown"].shape[1]):
            plane = bitmap.from_seats(seat for seat, count in enumerate(scores) if count >> bit & 1)
            members["shown"][0][bit] = bitmap.to_bytes(plane)
        records = {
            "Run": run,
            "Model": model,
            "Members": members,
            "Witnesses": self.blank["Witnesses"],
        }
        for name, record in records.items():
            self.world.store(name, self.scenario.run_id, record)
        read = self.scenario.run
        client = self.scenario.members
        return Drawn(read, client, self._oracle(read, client), judged > 0)

    def _oracle(self, run: Run, members: Members) -> Transitions:
        oracle = Transitions(run.config, run.levels, self.world.now)
        for seat, one in enumerate(members.seats):
            if one.used:
                established = bitmap.contains(members.established, seat)
                ours = Seat(
                    seat,
                    one.tier,
                    state=one.state,
                    exited=one.exited_height,
                    established=established,
                )
                ours.last_epoch = one.last_epoch
                oracle.members.append(ours)
        oracle.epoch = run.epoch
        oracle.judges = members.judges
        oracle.proven = members.proven
        oracle.began = run.current.began
        oracle.rounds = [
            OracleRound(
                run.current.height, STEP, oracle.began, oracle.began, 1, seed=run.current.seed
            )
        ]
        return oracle

    # --- what is sent, and what the program has kept of it

    def attest(self, drawn: Drawn, seat: int, hashes: Mapping[int, bytes]) -> Outcome:
        data = (
            bytes([seat])
            + struct.pack("<IIQ", *drawn.run.round_id)
            + bytes([bitmap.from_seats(hashes)])
        )
        return self._send(
            "attest", seat, data + struct.pack("<I", len(hashes)) + b"".join(hashes.values())
        )

    def tick(self) -> Outcome:
        return self._send("tick", 0, b"")

    def _send(self, name: str, seat: int, data: bytes) -> Outcome:
        spec = instruction_of(PROGRAM, name)
        keys = self.scenario.accounts | {"user": Pubkey(wallet(seat))}
        metas = [
            AccountMeta(
                keys.get(entry["name"]) or Pubkey.from_string(entry["address"]),
                entry.get("signer", False),
                entry.get("writable", False),
            )
            for entry in spec["accounts"]
        ]
        return self.world.send(Instruction(PROGRAM, bytes(spec["discriminator"]) + data, metas))

    def stated_hashes(self) -> list[dict[int, bytes]]:
        """Return the hashes stated for each level, by position in its committee."""
        account = layout.coordinator_account("Witnesses")
        hashes = account.read(self.world.data(self.scenario.accounts["witnesses"]))[0][
            "cooldown"
        ].tobytes()
        rows = [
            hashes[at : at + 32 * MAX_WITNESSES] for at in range(0, len(hashes), 32 * MAX_WITNESSES)
        ]
        places = [
            {place: row[32 * place : 32 * place + 32] for place in range(MAX_WITNESSES)}
            for row in rows
        ]
        return [{place: one for place, one in row.items() if one != UNKNOWN} for row in places]
