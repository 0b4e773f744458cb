"""Run the program and the oracle side by side: each transaction must have the same effect or
refusal in both.

One LiteSVM serves all examples. Each example first restores the accounts of a newly started run and
the clock, so that it is repeatable. Instructions are assembled here, because any slower way would
take most of the time.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache, lru_cache
from itertools import count
from typing import Any

from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from aftermath.chain import layout, views
from aftermath.rules import bitmap
from aftermath.rules.run import FINGERPRINT_BYTES, Config, RoundId
from programs import evidence
from programs.harness import PROGRAM, START, World, encode, instruction_of
from programs.oracle import Oracle
from programs.oracle_records import NOBODY, UNKNOWN, NamedCheckpoint, OracleMembership, Refusal
from programs.scenario import SCHEMA, Scenario, wallet

LEVELS = 3
RATES = (1_000, 40)
WALLETS = 9
CHECKPOINT = {"kind": 1, "repo": "team/model", "revision": ""}
METADATA = {"step": 1, "loss_milli": 1, "tokens_per_sec": 1, "bytes_per_sec": 1}
_PLACE = struct.Struct("<IIQ")


_opening = count()


@cache
def _world() -> World:
    world = World()
    Scenario(world).authorize().ok()
    return world


@cache
def _opened(config: tuple[tuple[str, int], ...]) -> tuple[Scenario, dict[Pubkey, Account]]:
    """Return a newly started run with this config, and its accounts."""
    world = _world()
    world.now = START
    world.slot = 1
    world.advance(0)
    for index in range(WALLETS):
        world.fund(wallet(index))
    run = Scenario(world, f"run {next(_opening)}", tiers=LEVELS)
    run.create().ok()
    run.configure(**dict(config)).ok()
    run.owner("set_future_epoch_rates", *RATES).ok()
    run.owner("set_paused", False).ok()
    for index in range(WALLETS):
        run.enroll(index).ok()
    keys = [run.accounts[name] for name in ("run", "model", "members", "witnesses")]
    keys += [_membership(run, index) for index in range(WALLETS)]
    accounts = {key: world.svm.get_account(key) for key in keys}
    return run, {key: account for key, account in accounts.items() if account is not None}


@cache
def _membership(run: Scenario, index: int) -> Pubkey:
    return run.membership_key(wallet(index))


@cache
def _fixed(run: Scenario, name: str, index: int | None) -> tuple[bytes, list[AccountMeta]]:
    """Return an instruction's discriminator and accounts.

    The sender is a member or (None) the owner.
    """
    spec = instruction_of(PROGRAM, name)
    keys = run.accounts | ({} if index is None else {"user": wallet(index)})
    if name == "kick":
        keys |= {
            "membership": keys["run"],
            "sponsor": keys["authority"],
        }  # these accounts differ in each call
    if index is not None:
        keys |= {
            "membership": _membership(run, index),
            "evicted": _membership(run, index),
            "sponsor": wallet(index),
        }
    metas = []
    for entry in spec["accounts"]:
        key = keys.get(entry["name"]) or Pubkey.from_string(entry["address"])
        metas.append(AccountMeta(key, entry.get("signer", False), entry.get("writable", False)))
    return bytes(spec["discriminator"]), metas


def _fingerprints(results: Mapping[int, int]) -> bytes:
    """Return a fingerprint field in which small numbers stand for results.

    All seats are below 64.
    """
    field = 0
    for seat, result in results.items():
        for bit in bitmap.seats(result):
            field |= 1 << (seat + 64 * bit)
    return field.to_bytes(FINGERPRINT_BYTES, "little")


class Comparison:
    """One run that starts with `gaps` gaps in its data, and its oracle."""

    sent = 0
    """Transactions of all examples together."""

    def __init__(self, gaps: int = 0, **config: int) -> None:
        self.world = _world()
        self.scenario, accounts = _opened(tuple(sorted(config.items())))
        for key, account in accounts.items():
            self.world.set_account(key, account)
        for index in range(WALLETS):
            self.world.fund(wallet(index))
        self.world.now = START
        self.world.slot = 1
        self.world.advance(0)
        self.oracle = Oracle(self._config(), LEVELS, START, RATES)
        self.oracle.slot = self.world.slot
        bond = self.oracle.config.join_bond
        self.oracle.memberships = {
            index: OracleMembership(bond, enrolled=True) for index in range(WALLETS)
        }
        if gaps:
            self._leave_out(gaps)
        self.seeds: set[int] = set()
        self.compare("the beginning")

    def _leave_out(self, gaps: int) -> None:
        """Put the first two of every four sequences so far into the backlog."""
        run = self.oracle
        run_id = self.scenario.run_id
        run.data_index = 4 * gaps
        run.backlog = {index for index in range(run.data_index) if index % 4 < 2}
        run.trained = set(range(run.data_index)) - run.backlog
        head = self.world.record("Run", run_id)
        witnesses = self.world.record("Witnesses", run_id)
        head["data_index"] = run.data_index
        head["backlog"] = len(run.backlog)
        intervals = witnesses["backlog"][0]["intervals"]
        intervals["start"][:gaps] = range(0, run.data_index, 4)
        intervals["len"][:gaps] = 2
        witnesses["backlog"]["count"] = gaps
        self.world.store("Run", run_id, head)
        self.world.store("Witnesses", run_id, witnesses)

    def _config(self) -> Config:
        return self.scenario.run.config

    def wait(self, seconds: int) -> None:
        self.world.advance(seconds)
        self.oracle.now = self.world.now
        self.oracle.slot = self.world.slot

    @property
    def place(self) -> RoundId:
        """Return the place of the current round."""
        if not self.oracle.rounds:
            return RoundId(self.oracle.epoch, 0, 0)
        round = self.oracle.round
        return RoundId(self.oracle.epoch, round.height, round.seed or 0)

    # --- what is sent; each returns whether it was accepted

    def join(self, index: int, tier: int = 0, weight: int = 60, *, stateless: bool = False) -> bool:
        params = {"p2p": evidence.p2p(index), "tier": tier, "weight": weight, "schema_hash": SCHEMA}
        params |= {"client_version": "", "stateless": stateless}
        return self._send(
            "join_run", index, self._encoded("join_run", params), (tier, weight, stateless)
        )

    def leave(self, index: int, at: RoundId) -> bool:
        return self._send("leave_run", index, _PLACE.pack(*at), (at,))

    def tick(self, index: int) -> bool:
        return self._send("tick", index, b"", ())

    def ready(self, index: int, seat: int, at: RoundId) -> bool:
        return self._send("warmup_witness", index, bytes([seat]) + _PLACE.pack(*at), (seat, at))

    def witness(self, index: int, seat: int, at: RoundId, results: Mapping[int, int]) -> bool:
        mask = bitmap.to_bytes(bitmap.from_seats(results))
        data = (
            bytes([seat])
            + _PLACE.pack(*at)
            + mask
            + _fingerprints(results)
            + struct.pack("<IIII", 1, 1, 1, 1)
        )
        return self._send("witness", index, data, (seat, at, results))

    def verify(self, index: int, seat: int, at: RoundId, target: int, mismatch: bool) -> bool:
        data = bytes([seat]) + _PLACE.pack(*at) + bytes([target, mismatch])
        return self._send("verify", index, data, (seat, at, target, mismatch))

    def attest(self, index: int, seat: int, at: RoundId, hashes: Mapping[int, bytes]) -> bool:
        by_level = dict(sorted(hashes.items()))
        data = bytes([seat]) + _PLACE.pack(*at) + bytes([sum(1 << level for level in by_level)])
        data += struct.pack("<I", len(by_level)) + b"".join(by_level.values())
        return self._send("attest", index, data, (seat, at, by_level))

    def health_check(self, index: int, dropped: int) -> bool:
        return self._send("health_check", index, bitmap.to_bytes(dropped), (dropped,))

    def prove(self, index: int, seat: int, *, same: bool = False) -> bool:
        """Submit two results of a seat in the current round that its own key signed, or one of them
        twice.
        """
        place = self.place
        results = (1, 1 if same else 2)
        commitments = [
            evidence.commitment(self.scenario.run_id, place, seat, index, result)
            for result in results
        ]
        signed = [evidence.sign(commitment, index) for commitment in commitments]
        before = [evidence.IX.check_signatures(signed)]
        return self._send("prove_equivocation", index, b"", (seat, same), before)

    def checkpoint(self, index: int, hashes: tuple[bytes, ...]) -> bool:
        params = CHECKPOINT | {"hashes": list(hashes)}
        return self._send("checkpoint", index, self._encoded("checkpoint", params), (hashes,))

    def set_paused(self, paused: bool) -> bool:
        return self._send("set_paused", None, bytes([paused]), (paused,))

    def update(
        self,
        config: Config | None = None,
        progress: tuple[int, int, int] | None = None,
        *,
        use_durable: bool = False,
    ) -> bool:
        params: dict[str, Any] = dict.fromkeys(
            ("metadata", "config", "model", "schema", "progress")
        )
        if config is not None:
            params["config"] = asdict(config)
        if progress is not None:
            params["progress"] = dict(zip(("epoch", "step", "data_index"), progress, strict=True))
        data = self._encoded("update", params | {"use_durable": use_durable})
        return self._send("update", None, data, (config, progress, use_durable))

    def rewind(self, index: int, step: int) -> bool:
        return self._send("rewind", None, struct.pack("<BI", index, step), (index, step))

    def enroll(self, index: int, max_bond: int) -> bool:
        return self._send("enroll", index, max_bond.to_bytes(8, "little"), (max_bond,))

    def settle(self, index: int) -> bool:
        """Settle the membership of this wallet. Anyone may send it."""
        return self._send("settle", index, b"", ())

    def withdraw(self, index: int) -> bool:
        order = [entry["name"] for entry in instruction_of(PROGRAM, "withdraw")["accounts"]]
        return self._send(
            "withdraw", index, b"", (), replaced={order.index("sponsor"): self._sponsor(index)}
        )

    def kick(self, index: int, barred: bool) -> bool:
        keys = {"membership": _membership(self.scenario, index), "sponsor": self._sponsor(index)}
        order = [entry["name"] for entry in instruction_of(PROGRAM, "kick")["accounts"]]
        data = bytes(wallet(index)) + bytes([barred])
        replaced = {order.index(name): key for name, key in keys.items()}
        return self._send("kick", None, data, (index, barred), replaced=replaced)

    def _sponsor(self, index: int) -> Pubkey:
        """Return who paid for a wallet's membership, or would pay for a bar without one."""
        membership = self.oracle.memberships.get(index)
        return (
            wallet(index) if membership and membership.own else self.scenario.accounts["authority"]
        )

    def _encoded(self, name: str, params: Mapping[str, Any]) -> bytes:
        return encode(instruction_of(PROGRAM, name)["args"][0]["type"], params, PROGRAM)

    def _send(
        self,
        name: str,
        index: int | None,
        data: bytes,
        arguments: tuple[Any, ...],
        before: Sequence[Instruction] = (),
        replaced: Mapping[int, Pubkey] | None = None,
    ) -> bool:
        discriminator, metas = _fixed(self.scenario, name, index)
        if replaced:
            metas = [
                AccountMeta(replaced[i], False, True) if i in replaced else meta
                for i, meta in enumerate(metas)
            ]
        outcome = self.world.send(*before, Instruction(PROGRAM, discriminator + data, metas))
        Comparison.sent += 1
        refusal = None
        try:
            getattr(self.oracle, name)(*(() if index is None else (index,)), *arguments)
        except Refusal as no:
            refusal = str(no)
        assert outcome.error == refusal, (
            f"{name}: the program says {outcome.error}, the oracle {refusal}"
        )
        if refusal is None:
            self.compare(name)
        return refusal is None

    # --- what is compared

    def compare(self, after: str) -> None:
        """Check that the chain's accounts equal the oracle's state."""
        run = layout.coordinator_account("Run").read(
            self.world.data(self.scenario.accounts["run"])
        )[0]
        self._dice(run)
        for what, ours, theirs in (
            ("run", self._run(), self._run_of(run)),
            ("members", self._members(), self._members_of()),
            ("model", self._model(), self._model_of()),
            ("backlog", self.oracle.intervals(), list(self.scenario.backlog)),
            ("memberships", self.oracle.memberships, self._memberships_of()),
            ("cases", self._cases(), self._cases_of()),
        ):
            assert ours == theirs, (
                f"after {after} the oracle's {what} is not the chain's:\n{ours}\n{theirs}"
            )

    def _dice(self, run: Any) -> None:
        """Give the oracle the next seed, and the seed of a round that has begun."""
        self.oracle.next_seed = int(run["next_seed"])
        if self.oracle.rounds and self.oracle.round.seed is None:
            seed = int(run["rounds"][int(run["head"])]["seed"])
            assert seed not in self.seeds, "no two rounds have one seed"
            self.seeds.add(seed)
            self.oracle.round.seed = seed

    def _run(self) -> tuple[Any, ...]:
        us = self.oracle
        known = self.oracle.known
        round = us.rounds[-1] if us.rounds else None
        now: tuple[Any, ...] = (
            us.state,
            us.since,
            us.epoch,
            us.step,
            us.data_index,
            us.epoch_since,
            us.start_step,
        )
        now += (us.pausing, us.cold, us.reason, us.draining, us.finishers, len(us.backlog), 0)
        now += (us.seed_slot, us.began, us.next_roster, us.known_levels if us.state.active else 0)
        model = (
            known.source,
            known.hashes,
            known.attested,
            known.step,
            known.data_index,
            known.lost,
        )
        if round is None:
            return now, model
        attested = round.voters if round.attested is None else round.attested
        votes = max(len(round.votes), round.ready.bit_count())
        redo = tuple((one.start, one.len) for one in round.batch if one.start < round.data_index)
        header: tuple[Any, ...] = (round.height, round.step, round.size, redo, round.data_index)
        header += (
            round.roster,
            len(round.members),
            round.elected,
            votes,
            round.established + round.trained_alone,
            attested,
        )
        before = us.rounds[-2].attested if len(us.rounds) > 1 else None
        return now, model, header, before

    def _run_of(self, run: Any) -> tuple[Any, ...]:
        times = (
            "state",
            "state_started_at",
            "epoch",
            "step",
            "data_index",
            "epoch_started_at",
            "start_step",
        )
        now = tuple(int(run[name]) for name in times)
        now += tuple(
            int(run[name]) for name in ("pending_pause", "cold_start", "exit_reason", "draining")
        )
        now += (_mask(run["finishers"]), int(run["backlog"]), int(run["lost_sequences"]))
        now += (int(run["seed_slot"]), _mask(run["began"]), _mask(run["next_roster"]))
        now += (int(run["levels_established"]) if self.oracle.state.active else 0,)
        hashes = tuple(one.tobytes() for one in run["level_hashes"][:LEVELS])
        names = ("levels_attested", "attested_step", "attested_data_index", "levels_lost")
        model = (int(run["model_source"]), hashes, *(int(run[name]) for name in names))
        if not self.oracle.rounds:
            return now, model
        head = int(run["head"])
        round = run["rounds"][head]
        pairs = zip(round["redo_index"].tolist(), round["redo"].tolist(), strict=True)
        redo = tuple((start, length) for start, length in pairs if length)
        header: tuple[Any, ...] = (
            int(round["height"]),
            int(round["step"]),
            int(round["batch"]),
            redo,
            int(round["data_index"]),
        )
        header += (
            _mask(round["roster"]),
            int(round["clients"]),
            int(round["elected"]),
            int(round["attestations"]),
        )
        header += (int(round["established"]),)
        before = _mask(run["rounds"][head - 1]["attested"]) if len(self.oracle.rounds) > 1 else None
        return now, model, (*header, _mask(round["attested"])), before

    def _members(self) -> list[tuple[int, ...]]:
        names = [
            "tier",
            "declared",
            "weight",
            "state",
            "wish",
            "exited",
            "last_epoch",
            "points",
            "slashed",
            "forfeited",
            "wallet",
        ]
        us = self.oracle
        return [
            (*(getattr(seat, name) for name in names), *us.level_status(number))
            for number, seat in enumerate(us.members)
        ]

    def _members_of(self) -> list[tuple[int, ...]]:
        names = (
            "tier",
            "declared",
            "weight",
            "state",
            "pending",
            "exited_height",
            "last_epoch",
            "points",
            "slashed",
        )
        members = layout.coordinator_account("Members").read(
            self.world.data(self.scenario.accounts["members"])
        )[0]
        seats = members["seats"][: len(self.oracle.members) + 1]
        assert not seats[-1]["used"]
        sets = [_mask(members[name]) for name in ("established", "judges", "proven")]
        planes = [_mask(plane) for plane in members["shown"]]
        forfeited = bitmap.from_bytes(members["forfeited"].tobytes())
        marked = [bitmap.contains(forfeited, seat) for seat in range(len(seats) - 1)]
        owners = [_WALLETS.get(signer, NOBODY) for signer in seats["signer"][:-1].tolist()]
        statuses = [self._level_status(sets, planes, number) for number in range(len(seats) - 1)]
        plain = zip(*(seats[name][:-1].tolist() for name in names), marked, owners, strict=True)
        return [(*one, *more) for one, more in zip(plain, statuses, strict=True)]

    def _level_status(
        self, sets: Sequence[int], planes: Sequence[int], number: int
    ) -> tuple[int, ...]:
        """Return whether a seat is established, judges and is proven, and in an epoch its level
        score.
        """
        score = 0
        if self.oracle.counts(number):
            score = (
                sum(bitmap.contains(plane, number) << bit for bit, plane in enumerate(planes)) - 64
            )
        return *(bitmap.contains(one, number) for one in sets), score

    def _memberships_of(self) -> dict[int, OracleMembership]:
        """Return each wallet's record. Check that its account holds the recorded lamports."""
        memberships = {}
        rent = _rent()
        for index in range(WALLETS):
            account = self.world.svm.get_account(_membership(self.scenario, index))
            if account is None or not account.data:
                continue
            membership = memberships[index] = _held(index, bytes(account.data))
            assert account.lamports == rent + membership.bond + membership.forfeited, (
                f"wallet {index}: {account.lamports}"
            )
        return memberships

    def _cases(self) -> list[tuple[Any, ...]]:
        us = self.oracle
        cases = [
            (
                one.round.height, one.round.seed, one.opened, one.target, one.auditor, bitmap.from_seats(one.jury),
                one.against(True), one.against(False), tuple(one.sequences),
            )
            for one in (us.open_cases() if us.state.active else ())
        ]  # fmt: skip
        return sorted(cases)

    def _cases_of(self) -> list[tuple[Any, ...]]:
        if not (self.oracle.state.active and self.oracle.config.verification_percent):
            return []
        offset, length = views.witnesses_cases_range()
        data = self.world.data(self.scenario.accounts["witnesses"])[offset : offset + length]
        run = self.scenario.run
        names = (
            "height",
            "seed",
            "opened",
            "target",
            "auditor",
            "jury",
            "mismatches",
            "matches",
            "intervals",
        )
        cases = [one for one in views.parse_cases(data) if one.is_open(run)]
        return sorted(tuple(getattr(one, name) for name in names) for one in cases)

    def _model(self) -> tuple[Any, ...]:
        checkpoint = self.oracle.durable
        none = NamedCheckpoint((UNKNOWN,) * LEVELS, 0, 0)
        before = [one or none for one in self.oracle.earlier]
        earlier = [(one.hashes, one.step, one.data_index) for one in before]
        return checkpoint.hashes, checkpoint.step, checkpoint.data_index, checkpoint.turn, earlier

    def _model_of(self) -> tuple[Any, ...]:
        model = layout.coordinator_account("Model").read(
            self.world.data(self.scenario.accounts["model"])
        )[0]
        hashes = tuple(one.tobytes() for one in model["checkpoint_hashes"][:LEVELS])
        rest = ("checkpoint_step", "checkpoint_data_index", "checkpoint_turn")
        earlier = [
            (
                tuple(one.tobytes() for one in past["hashes"][:LEVELS]),
                int(past["step"]),
                int(past["data_index"]),
            )
            for past in model["earlier"]
        ]
        return hashes, *(int(model[name]) for name in rest), earlier


@lru_cache(4 * WALLETS)  # an account stays as it is through most transactions
def _held(index: int, data: bytes) -> OracleMembership:
    """Return the contents of the wallet's membership."""
    one = layout.coordinator_account("Membership").read(data)[0]
    bond = int(one["bond"])
    forfeited = int(one["forfeited"])
    counted = int(one["epoch"]), int(one["epoch_delivered"]), int(one["epoch_due"])
    points, slashed, delivered, due = (
        int(one[name]) for name in ("points", "slashed", "delivered", "due")
    )
    own = one["sponsor"].tobytes() == bytes(wallet(index))
    return OracleMembership(
        bond, forfeited, points, slashed, delivered, due, counted, int(one["ejections"]), own,
        bool(one["enrolled"]), bool(one["barred"]),
    )  # fmt: skip


@cache
def _rent() -> int:
    return _world().svm.minimum_balance_for_rent_exemption(
        layout.coordinator_account("Membership").size
    )


_WALLETS = {bytes(wallet(index)): index for index in range(WALLETS)}


def _mask(field: Any) -> int:
    return int.from_bytes(field.tobytes(), "little")
