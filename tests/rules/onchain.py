"""The compiled coordinator on an in-process chain, driven by single instructions and a settable
clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain import views
from aftermath.chain.addresses import EVERYONE, authorization_address, run_addresses
from aftermath.chain.authorizer import AuthorizerInstructions
from aftermath.chain.instructions import GROWTH, CoordinatorInstructions
from aftermath.chain.programs import authorizer_program, coordinator_program
from aftermath.config.document import RunConfig, parse_as
from aftermath.rules import bitmap
from aftermath.rules.consensus import pack_fingerprints
from aftermath.rules.deadlines import next_deadline
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import FINGERPRINT_BYTES, Attestation, Interval, Run
from aftermath.rules.state import RunState
from programs.harness import Outcome, World
from rules.cooldown import stated_in

RUN_ID = "fixture"
SCHEMA_HASH = b"\x05" * 32


class Refused(Exception):
    """The program refused an instruction. `name` is the error's variant."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Onchain:
    """One run on its own chain. Wallets are derived from their numbers, so everything is
    reproducible.
    """

    def __init__(self) -> None:
        self.world = World()
        self.svm = self.world.svm
        self.coordinator = coordinator_program()
        self.authorizer = authorizer_program()
        self.addresses = run_addresses(self.coordinator.id, RUN_ID)
        self.owner = self.wallet(0)

    @property
    def now(self) -> int:
        return self.world.now

    def wallet(self, number: int) -> Keypair:
        """Return the wallet of this number, with funds."""
        keypair = _keypair(number)
        self.world.fund(keypair.pubkey())
        return keypair

    def at(self, unix_timestamp: int) -> None:
        """Set the chain's clock. Enough slots pass to draw a seed."""
        self.world.advance(unix_timestamp - self.now)

    def ix(self, signer: Keypair) -> CoordinatorInstructions:
        """Return the instruction builders of a wallet."""
        return CoordinatorInstructions(self.coordinator, signer.pubkey())

    def send(self, signer: Keypair, *instructions: Instruction) -> Outcome:
        """Execute one transaction. Raises Refused with the program's error."""
        outcome = self.world.send(*instructions, signers=[signer])
        if outcome.error is not None:
            raise Refused(outcome.error)
        return outcome

    def create(self) -> None:
        """Create the run with all accounts at full size, open to everyone."""
        ix = self.ix(self.owner)
        sizes = {0: views.members_account().size, 1: views.witnesses_account().size}
        grows = [
            ix.grow(RUN_ID, which)
            for which, size in sizes.items()
            for _ in range(GROWTH, size, GROWTH)
        ]
        self.send(self.owner, ix.init_run(RUN_ID), *grows)
        open_door = AuthorizerInstructions(self.authorizer, self.owner.pubkey())
        self.send(self.owner, open_door.create(EVERYONE), open_door.grantor_update(EVERYONE, True))

    def update(self, **parts: Any) -> None:
        """Change the halted run."""
        self.send(self.owner, self.ix(self.owner).update(RUN_ID, **parts))

    def write_spec(self, config: RunConfig) -> None:
        """Write the training spec of a config file."""
        for part in self.ix(self.owner).write_spec(RUN_ID, config.llm.spec.encode()):
            self.send(self.owner, part)

    def configure(self, text: str, **config: int) -> None:
        """Set config, model and a schema of three tiers from a config file, with some values
        replaced.
        """
        config_file = parse_as(text, "config.toml", RunConfig)
        parts = config_file.to_chain()
        self.write_spec(config_file)
        schema = {"hash": SCHEMA_HASH, "tier_widths": [256, 128, 64]}
        self.update(config=parts["config"] | config, model=parts["model"])
        self.update(schema=schema)
        self.send(self.owner, self.ix(self.owner).set_paused(RUN_ID, False))

    def tick(self) -> None:
        """Perform the transition that is due."""
        self.send(self.owner, self.ix(self.owner).tick(RUN_ID))

    def tick_at_deadline(self) -> None:
        """Move the clock to the next deadline and tick."""
        deadline = next_deadline(self.run, self.members, self.model)
        assert deadline is not None
        self.at(deadline)
        self.tick()

    def begin(self, members: Mapping[int, tuple[int, int]]) -> None:
        """Let wallets join as {number: (tier, weight)} and start the first round. Seat i is the
        i-th of them.
        """
        for number, (tier, weight) in members.items():
            self.join(number, tier=tier, weight=weight)
        while self.run.state is not RunState.ROUND_TRAIN:
            self.tick_at_deadline()

    def witness(self, seat: int, results: Mapping[int, bytes]) -> None:
        """Let a seat attest {seat: commitment} of the judged round. Its wallet has the number seat
        + 1.
        """
        run = self.run
        wallet = self.wallet(seat + 1)
        judged = run.round(run.config.judged(run.current.height))
        fingerprints = (
            pack_fingerprints(results, judged.roster, run.current.salt)
            if judged
            else bytes(FINGERPRINT_BYTES)
        )
        participation = bitmap.from_seats(results)
        metadata = {
            "step": run.step,
            "loss_milli": 2500,
            "tokens_per_sec": 100,
            "bytes_per_sec": 1000,
        }
        self.send(
            wallet,
            self.ix(wallet).witness(
                RUN_ID, seat, run.round_id, participation, fingerprints, metadata
            ),
        )

    def join(self, number: int, *, tier: int = 0, weight: int = 1) -> None:
        """Let a wallet ask for the next epoch."""
        wallet = self.wallet(number)
        authorization = authorization_address(self.authorizer.id, self.owner.pubkey(), EVERYONE)
        created = self.run.created
        first = []
        if not self.world.lamports(self.ix(wallet).membership(RUN_ID, created, wallet.pubkey())):
            first = [self.ix(wallet).enroll(RUN_ID, created, 0)]
        instruction = self.ix(wallet).join_run(
            RUN_ID,
            created,
            authorization=authorization,
            p2p=bytes(Keypair.from_seed((1000 + number).to_bytes(32, "big")).pubkey()),
            tier=tier,
            weight=weight,
            schema_hash=SCHEMA_HASH,
            client_version=self.model.client_version,
            stateless=False,
        )
        self.send(wallet, *first, instruction)

    def data(self, address: Pubkey) -> bytes:
        """Return the bytes of an account."""
        account = self.svm.get_account(address)
        assert account is not None
        return bytes(account.data)

    @property
    def run(self) -> Run:
        return views.parse_run(self.data(self.addresses.run))

    @property
    def model(self) -> Model:
        return views.parse_model(self.data(self.addresses.model))

    @property
    def members(self) -> Members:
        return views.parse_members(self.data(self.addresses.members))

    def attestations(self, ring: int, count: int) -> tuple[Attestation, ...]:
        offset, length = views.witness_round_range(ring, count)
        return views.parse_witness_round(
            self.data(self.addresses.witnesses)[offset : offset + length], count
        )

    def backlog(self) -> tuple[Interval, ...]:
        offset, length = views.witnesses_backlog_range()
        return views.parse_backlog(self.data(self.addresses.witnesses)[offset : offset + length])

    def cooldown(self) -> tuple[dict[int, bytes], ...]:
        return stated_in(self.data(self.addresses.witnesses))

    def inspect(self, which: int, ring: int) -> bytes:
        """Return what the program's `inspect` returns."""
        return self.send(self.owner, self.ix(self.owner).inspect(RUN_ID, which, ring)).returned


@cache
def _keypair(number: int) -> Keypair:
    return Keypair.from_seed(number.to_bytes(32, "big"))
