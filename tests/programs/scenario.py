"""Drive a run as its owner and members do, with one method per instruction.

Members are numbered keypairs.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain import layout, views
from aftermath.rules import assignment, bitmap, committee
from aftermath.rules.consensus import pack_fingerprints
from aftermath.rules.eviction import evicted
from aftermath.rules.members import Members, Membership
from aftermath.rules.model import Model
from aftermath.rules.run import Interval, RoundId, Run
from aftermath.rules.state import RunState
from programs.harness import (
    AUTHORIZER,
    PROGRAM,
    Outcome,
    World,
    address,
    authorization_address,
    build,
    instruction_of,
    membership_address,
)

SCHEMA = bytes(range(1, 33))
EVERYONE = Pubkey.default()
UNATTESTED = b"\xff" * 32
CONFIG: Mapping[str, int] = {
    "warmup_time": 30,
    "cooldown_time": 30,
    "min_round_time": 1,
    "max_round_train_time": 20,
    "round_witness_time": 5,
    "epoch_time": 0,
    "global_batch_size_warmup_tokens": 0,
    "join_bond": 0,
    "rounds_per_epoch": 5,
    "total_steps": 1000,
    "max_seq_len": 0,
    "init_min_clients": 3,
    "min_clients": 2,
    "witness_nodes": 0,
    "overlap": 1,
    "global_batch_size_start": 48,
    "global_batch_size_end": 48,
    "verification_percent": 0,
    "waiting_for_members_extra_time": 5,
}


SPEC = json.dumps(
    {
        "architecture": "HfLlama",
        "data_hash": "",
        "data_location": {
            "Local": {
                "path": "data",
                "shuffle": {"DontShuffle": {}},
                "token_size_in_bytes": "TwoBytes",
            }
        },
        "data_type": "Pretraining",
        "lr_schedule": {"Constant": {"base_lr": 0.0004, "warmup_init_lr": 0.0, "warmup_steps": 10}},
        "optimizer": {
            "Distro": {
                "clip_grad_norm": 1.0,
                "compression_chunk": 64,
                "compression_decay": 0.999,
                "compression_topk": 8,
                "quantize_1bit": True,
            }
        },
    },
    separators=(",", ":"),
    sort_keys=True,
).encode()
"""A valid training spec, without the client's own encoder."""


def model_params(text: bytes = SPEC, **changes: Any) -> dict[str, Any]:
    """Return a small valid model with the spec `text`. `changes` replace top-level fields."""
    model: dict[str, Any] = {"max_seq_len": 128, "cold_start_warmup_steps": 0}
    model |= {"checkpoint": {"kind": 2, "repo": "checkpoints/start", "revision": ""}}
    return model | {"spec": {"len": len(text), "hash": hashlib.sha256(text).digest()}} | changes


@cache
def member(index: int) -> Keypair:
    return Keypair.from_seed(index.to_bytes(4, "little") * 8)


@cache
def wallet(index: int) -> Pubkey:
    return member(index).pubkey()


@cache
def _indices() -> dict[bytes, int]:
    return {bytes(wallet(index)): index for index in range(2000)}


class Scenario:
    """One run in one world. Methods that send return the outcome. Only `start` asserts anything."""

    def __init__(self, world: World, run_id: str = "test", tiers: int = 3) -> None:
        self.world = world
        self.run_id = run_id
        self.tiers = tiers
        self.authority = Keypair.from_seed(b"a" * 32)
        self.grantor = Keypair.from_seed(b"g" * 32)
        self.accounts = {
            name: address(name, run_id) for name in ("run", "model", "members", "witnesses")
        }
        self.accounts |= {"payer": world.payer.pubkey(), "authority": self.authority.pubkey()}
        self.accounts |= {"spill": world.payer.pubkey()}
        self.accounts |= {"authorization": authorization_address(self.grantor.pubkey(), EVERYONE)}

    # ---- reading
    @property
    def run(self) -> Run:
        return views.parse_run(self.world.data(self.accounts["run"]))

    @property
    def model(self) -> Model:
        return views.parse_model(self.world.data(self.accounts["model"]))

    @property
    def members(self) -> Members:
        return views.parse_members(self.world.data(self.accounts["members"]))

    @property
    def backlog(self) -> tuple[Interval, ...]:
        offset, length = views.witnesses_backlog_range()
        return views.parse_backlog(
            self.world.data(self.accounts["witnesses"])[offset : offset + length]
        )

    def seat_of(self, index: int) -> int:
        seats = self._seats()
        seat: int = seats["signer"].tolist().index(bytes(wallet(index)))
        assert seats["used"][seat]
        return seat

    def _seats(self) -> Any:
        """Return the seats of the account.

        Reading all of their fields would take longer than most transactions.
        """
        data = self.world.data(self.accounts["members"])
        return layout.coordinator_account("Members").read(data)[0]["seats"]

    # ---- sending
    def instruction(
        self,
        name: str,
        *args: Any,
        accounts: Mapping[str, Pubkey] | None = None,
        flags: Mapping[str, tuple[bool, bool]] | None = None,
    ) -> Instruction:
        return build(
            PROGRAM, name, self._keys(name, args, accounts or {}), self._placed(name, args), flags
        )

    def _keys(
        self, name: str, args: Sequence[Any], overrides: Mapping[str, Pubkey]
    ) -> dict[str, Pubkey]:
        """Return all accounts that an instruction may name.

        The membership is the sender's, or that of the kicked wallet.
        """
        keys = self.accounts | dict(overrides)
        wallet = args[0] if name == "kick" else keys.get("user")
        takes = any(
            entry["name"] == "membership" for entry in instruction_of(PROGRAM, name)["accounts"]
        )
        if "membership" in overrides:
            return {"evicted": overrides["membership"], "sponsor": keys["authority"]} | keys
        if not takes or wallet is None:
            return keys
        own = self.membership_key(wallet)
        data = self.world.data(own)
        sponsor = Pubkey(views.parse_membership(data).sponsor) if data else keys["authority"]
        return {"membership": own, "evicted": own, "sponsor": sponsor} | keys

    def membership_key(self, wallet: Pubkey) -> Pubkey:
        return membership_address(self.accounts["run"], self.run.created, wallet)

    def membership(self, index: int) -> Membership | None:
        """Return the membership of a member."""
        data = self.world.data(self.membership_key(wallet(index)))
        return views.parse_membership(data) if data else None

    def _placed(self, name: str, args: Sequence[Any]) -> list[Any]:
        """Return the arguments with the round that a vote names: the current one, or the one at a
        given height.
        """
        names = [argument["name"] for argument in instruction_of(PROGRAM, name)["args"]]
        placed = list(args)
        if "at" not in names:
            return placed
        where = names.index("at")
        run = self.run
        if len(placed) < len(names):
            placed.insert(where, run.round_id)
        if isinstance(placed[where], int):
            placed_round = run.round(placed[where])
            placed[where] = RoundId(
                run.epoch, placed[where], placed_round.seed if placed_round else 0
            )
        placed[where] = placed[where]._asdict()
        return placed

    def owner(self, name: str, *args: Any, **forged: Any) -> Outcome:
        return self.world.send(self.instruction(name, *args, **forged), signers=[self.authority])

    def by(
        self,
        index: int,
        name: str,
        *args: Any,
        accounts: Mapping[str, Pubkey] | None = None,
        **forged: Any,
    ) -> Outcome:
        """Send `name` as member `index`."""
        user = member(index)
        keys = {"user": wallet(index)} | dict(accounts or {})
        return self.world.send(
            self.instruction(name, *args, accounts=keys, **forged), signers=[user]
        )

    # ---- the owner's way
    def creation(self, client_version: str = "") -> list[Instruction]:
        keys = (self.authority.pubkey(), self.grantor.pubkey())
        init = self.instruction("init_run", self.run_id, *keys, client_version)
        return [init, *[self.instruction("grow", which) for which in (0, 0, 1, 1, 1, 1, 1)]]

    def create(self, client_version: str = "") -> Outcome:
        self.world.fund(self.authority.pubkey())
        self.world.fund(self.grantor.pubkey())
        return self.world.send(*self.creation(client_version))

    def update(self, **parts: Any) -> Outcome:
        empty = dict.fromkeys(("metadata", "config", "model", "schema", "progress")) | {
            "use_durable": False
        }
        return self.owner("update", empty | parts)

    def write_spec(self, spec: bytes = SPEC) -> Outcome:
        """Write a training spec that fits one transaction."""
        return self.owner("write_spec", 0, spec)

    def configure(self, **config: int) -> Outcome:
        widths = [256 >> tier for tier in range(self.tiers)]
        schema = {"hash": SCHEMA, "tier_widths": widths}
        parts = {"config": {**CONFIG, **config}, "model": model_params(), "schema": schema}
        empty = {"metadata": None, "progress": None, "use_durable": False}
        steps = [self.instruction("write_spec", 0, SPEC), self.instruction("update", empty | parts)]
        return self.world.send(*steps, signers=[self.authority])

    def authorize(self, grantee: Pubkey = EVERYONE, active: bool = True) -> Outcome:
        key = authorization_address(self.grantor.pubkey(), grantee)
        keys = {
            "payer": self.world.payer.pubkey(),
            "grantor": self.grantor.pubkey(),
            "authorization": key,
        }
        create = build(AUTHORIZER, "create", keys, (grantee, b"CoordinatorJoinRun"))
        return self.world.send(
            create, build(AUTHORIZER, "grantor_update", keys, (active,)), signers=[self.grantor]
        )

    def start(self, **config: int) -> "Scenario":
        """Create, configure, open to everyone, and start the run."""
        self.create().ok()
        self.configure(**config).ok()
        self.authorize().ok()
        self.owner("set_paused", False).ok()
        return self

    # ---- the members' way
    def join(self, index: int, tier: int = 0, weight: int = 60, **changes: Any) -> Outcome:
        params = {"p2p": bytes(wallet(index))[::-1], "tier": tier, "weight": weight}
        params |= {"schema_hash": SCHEMA, "client_version": "", "stateless": False} | changes
        if self.membership(index) is None:
            self.enroll(index).ok()
        is_full = self._seats()["used"].all()
        loser = (
            evicted(self.run, self.members, self.model, bytes(wallet(index)), self.world.now)
            if is_full
            else None
        )
        return self.by(index, "join_run", params, accounts=self.losing(loser))

    def losing(self, wallet: bytes | None) -> dict[str, Pubkey]:
        """Return the further account of a join that takes the seat of this wallet."""
        return {} if wallet is None else {"evicted": self.membership_key(Pubkey(wallet))}

    def enroll(self, index: int, max_bond: int | None = None) -> Outcome:
        """Pay rent and bond of a membership, unless the bond is above `max_bond`."""
        self.world.fund(wallet(index))
        return self.by(index, "enroll", self.run.config.join_bond if max_bond is None else max_bond)

    def put_membership(self, index: int) -> None:
        """Store a membership as if this member had enrolled, without a bond."""
        account = views.membership_account()
        record = np.zeros(1, account.dtype)
        key, bump = Pubkey.find_program_address(
            [
                b"membership",
                bytes(self.accounts["run"]),
                self.run.created.to_bytes(8, "little"),
                bytes(wallet(index)),
            ],
            PROGRAM,
        )
        record["run"] = bytes(self.accounts["run"])
        record["wallet"] = bytes(wallet(index))
        record["sponsor"] = record["wallet"]
        record["created"] = self.run.created
        record["bump"] = bump
        record["enrolled"] = 1
        record["version"] = views.VERSION
        self.world.put(key, account.discriminator + record.tobytes())

    def settle(self, index: int) -> Outcome:
        key = self.membership_key(wallet(index))
        return self.world.send(self.instruction("settle", accounts={"membership": key}))

    def tick(self, index: int = 0) -> Outcome:
        return self.by(index, "tick")

    def witness(
        self,
        index: int,
        participation: int | None = None,
        results: Mapping[int, bytes] | None = None,
        **forged: Any,
    ) -> Outcome:
        """Attest all results of the judged round, or `participation`, or {seat: commitment}."""
        run = self.run
        current = run.current
        if run.state is RunState.ROUND_TRAIN and self.world.now <= run.state_started_at:
            self.world.advance(run.config.min_round_time)
        judged = run.round(run.config.judged(current.height))
        roster = judged.roster if judged else 0
        mask = roster if participation is None else participation
        fingerprints = bytes(320)
        if results is not None:
            mask = bitmap.from_seats(results)
            fingerprints = pack_fingerprints(results, roster, current.salt)
        seat = forged.get("seat", self.seat_of(index))
        at = forged.get("at", run.round_id)
        metadata = {"step": current.step, "loss_milli": 1, "tokens_per_sec": 1, "bytes_per_sec": 1}
        return self.by(
            index, "witness", seat, at, mask.to_bytes(32, "little"), fingerprints, metadata
        )

    def elected(self) -> list[int]:
        """Return the indices of the members that witness the current round."""
        members = self.members
        chosen = committee.witnesses(self.run.current, members)
        return [self.index_of(members.seats[seat].signer) for seat in chosen]

    def index_of(self, signer: bytes) -> int:
        return _indices()[signer]

    def owing(self) -> int:
        """Return the members that owe a result of the judged round, as a bitmap."""
        judged = self.run.round(self.run.config.judged(self.run.current.height))
        shares = assignment.assign(judged, self.members) if judged else {}
        return bitmap.from_seats(seat for seat, share in shares.items() if share.len)

    def witness_round(
        self, indices: Iterable[int] | None = None, participation: int | None = None
    ) -> None:
        """Let all elected members (or `indices`) attest the current round.

        If all attest, it closes.
        """
        for index in list(self.elected() if indices is None else indices):
            self.witness(index, participation).ok()

    def warm_up(self, indices: Sequence[int], **join: Any) -> "Scenario":
        """Let members join, start the epoch's warm-up, and draw its seed."""
        for index in indices:
            self.join(index, **join).ok()
        self.world.advance(6)
        self.tick().ok()
        return self.draw()

    def draw(self) -> "Scenario":
        """Advance some slots and draw the pending seed."""
        self.world.advance(0)
        self.tick().ok()
        assert self.run.seed_is_drawn
        return self

    def train(self, indices: Sequence[int], **join: Any) -> "Scenario":
        """Let members join and warm up, and start round 0."""
        self.warm_up(indices, **join)
        self.world.advance(31)
        self.tick().ok()
        return self

    def train_of(self, tiers: Mapping[int, int]) -> "Scenario":
        """Let members of these tiers join and warm up once the run waits for nobody, and start
        round 0.
        """
        for index, tier in tiers.items():
            self.join(index, tier=tier).ok()
        self.world.advance(40)
        self.tick().ok()
        self.draw()
        self.world.advance(31)
        self.tick().ok()
        assert self.run.state is RunState.ROUND_TRAIN
        return self

    def finish_rounds(self) -> "Scenario":
        """Let all elected members attest every round until the cooldown begins."""
        while self.run.state.training:
            self.witness_round()
        return self

    def attest(self, index: int, hashes: Mapping[int, bytes]) -> Outcome:
        mask = sum(1 << level for level in hashes)
        return self.by(
            index, "attest", self.seat_of(index), mask, [hashes[level] for level in sorted(hashes)]
        )

    def names(self, seats: Iterable[int]) -> bytes:
        return bitmap.to_bytes(bitmap.from_seats(seats))
