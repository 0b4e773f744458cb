"""A run of tiny members on virtual time: the real program, real members, the simulated network."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain.addresses import EVERYONE, run_addresses
from aftermath.chain.authorizer import AuthorizerInstructions
from aftermath.chain.instructions import GROWTH, CoordinatorInstructions
from aftermath.chain.views import (
    members_account,
    parse_backlog,
    parse_cases,
    parse_members,
    parse_membership,
    parse_model,
    parse_run,
    witnesses_account,
    witnesses_backlog_range,
    witnesses_cases_range,
)
from aftermath.config.document import RunConfig
from aftermath.config.spec import spec_hash
from aftermath.coordinator.errors import CoordinatorError, Refused
from aftermath.coordinator.ports import View
from aftermath.data.local import open_tokens
from aftermath.events.stream import Events
from aftermath.member.checkpoint_writer import Archive, Hub
from aftermath.member.feed import RunFeed
from aftermath.member.joining import WalletEjected
from aftermath.member.local_options import LocalOptions
from aftermath.member.member import Member
from aftermath.member.ports import Ports, Role, Workers
from aftermath.member.stake import ModelLost, Stake
from aftermath.member.stall_detector import StallDetector
from aftermath.model.config import ModelConfig
from aftermath.model.text import Prompt
from aftermath.optim.run_schema import agreed_schema
from aftermath.replica.origin import Origin
from aftermath.replica.pass_size import PassSize
from aftermath.rules.audits import Case
from aftermath.rules.members import Members
from aftermath.rules.model import Checkpoint, Model
from aftermath.rules.run import Interval, Run
from aftermath.rules.state import RunState
from aftermath.sim.chain_invariants import ChainRecord, InvariantBroken, state_of
from aftermath.sim.setup import CONFIG, RUN_ID, set_up
from aftermath.sim.sim_chain import SimChain, SimMemberChain
from aftermath.sim.sim_member import SimMember, Undisturbed
from aftermath.sim.sim_transport import SimNetwork
from aftermath.sim.virtual_time import InlineWorker, VirtualClock, run_virtual

_WATCHES = 3.0
"""Seconds for which a member that has left watches the run. Reading it takes one second here."""


class SimulatedRun:
    """A cluster, a run, and members that come and go."""

    def __init__(
        self,
        directory: Path,
        *,
        quantize: bool = True,
        optimizer: Mapping[str, Any] | None = None,
        config: ModelConfig = CONFIG,
        stored: bool = True,
        **rules: int,
    ) -> None:
        """Create the run on chain. `optimizer` and `config` replace the tiny run's optimizer table
        and model; the model must have as many tokens. `stored`: whether the initial weights are on
        disk.
        """
        torch.set_num_threads(1)
        directory.mkdir(exist_ok=True)
        self.config = config
        self.place = directory
        self.chain = SimChain()
        self.network = SimNetwork()
        self.record = ChainRecord()
        self.owner = _key("owner")
        self.sim_members: list[SimMember] = []
        self.hub: Hub | None = None
        self.upload_seconds = 30.0
        """Virtual time of an upload: longer than a cooldown."""
        self.read_hub: Callable[[Checkpoint], None] = lambda _: None
        """Called with each Hub location that a member reads. Raises the error that the Hub would
        cause.
        """
        self.saves_checkpoints = True
        """Whether tier-0 members save checkpoints to a directory."""
        self.keep_steps = 3
        self.detects_stalls = False
        """Whether members detect stalls, such as those of `virtual_time.hold_up`."""
        self.writes_gradients = False
        """Whether members write the results they apply, each into a directory `gradients/NAME`."""
        self.optim_stats_steps = 0
        self.stores_optimizer_state = False
        """Whether members store their optimizer states, in one directory `private`."""
        self.confirms_loss = False
        """Whether members ask their users for a second Ctrl-C."""
        self.share_delay = 0.0
        """Seconds that members wait before each share."""
        self.prompt: Prompt | None = None
        """The prompt that members continue while the run does not need them."""
        self.now_at_end = 0.0
        self._at = run_addresses(self.chain.coordinator.id, RUN_ID)
        owners = set_up(
            directory, config, rules, quantize=quantize, optimizer=optimizer, stored=stored
        )
        self.spec = owners.llm.spec.encode()
        """The training spec that the run begins with."""
        self._open(owners)
        self.chain.observers.append(
            lambda: self.record.note(self.run, self.members, self.cases, self.backlog)
        )

    def _open(self, rules: RunConfig) -> None:
        """Create the run on chain and start it."""
        self.chain.fund(self.owner.pubkey())
        self.ix = CoordinatorInstructions(self.chain.coordinator, self.owner.pubkey())
        admit = AuthorizerInstructions(self.chain.authorizer, self.owner.pubkey())
        self._send(self.ix.init_run(RUN_ID))
        for which, account in enumerate((members_account(), witnesses_account())):
            for _ in range(GROWTH, account.size, GROWTH):
                self._send(self.ix.grow(RUN_ID, which))
        self._send(admit.create(EVERYONE))
        self._send(admit.grantor_update(EVERYONE, True))
        for part in self.ix.write_spec(RUN_ID, self.spec):
            self._send(part)
        self._send(self.ix.update(RUN_ID, **rules.to_chain()))
        self.schema = agreed_schema(self.config.to_hf(), 3, self.model.optimizer)
        schema = {"hash": self.schema.hash(), "tier_widths": list(self.schema.state.widths)}
        self._send(self.ix.update(RUN_ID, schema=schema))
        self.pause(False)

    def _send(self, instruction: Instruction) -> None:
        self.chain.send([instruction], self.owner)

    @property
    def run(self) -> Run:
        return self.chain.view(self._at.run, parse_run)

    @property
    def backlog(self) -> tuple[Interval, ...]:
        """Return the sequences in the backlog."""
        return self.chain.view(self._at.witnesses, _backlog_of)

    @property
    def cases(self) -> tuple[Case, ...]:
        """Return the cases of the epoch. Some may have expired."""
        if not self.run.config.verification_percent:
            return ()
        return self.chain.view(self._at.witnesses, _cases_of)

    @property
    def members(self) -> Members:
        return self.chain.view(self._at.members, parse_members)

    @property
    def model(self) -> Model:
        return self.chain.view(self._at.model, parse_model)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def pause(self, paused: bool) -> None:
        self._send(self.ix.set_paused(RUN_ID, paused))

    async def tick_to_end_of_epoch(self) -> None:
        """Tick as `aftermath-solana tick` does, even if members wait for the epoch's last one."""
        epoch = self.run.epoch
        await self._tick_while(lambda: self.run.epoch == epoch)

    async def tick_until(self, state: RunState) -> None:
        """Tick as `aftermath-solana tick` does until the run is in this state."""
        await self._tick_while(lambda: self.run.state is not state)

    async def _tick_while(self, wanted: Callable[[], bool]) -> None:
        while wanted():
            with contextlib.suppress(Refused):
                self._send(self.ix.tick(RUN_ID))
            await asyncio.sleep(1)

    def write_spec(self, spec: bytes, **changes: Any) -> None:
        """Replace the halted run's training spec. `changes` are further values of the model."""
        model_on_chain = parse_model(self.chain.data(self._at.model), any_spec=True)
        model = {
            "max_seq_len": model_on_chain.max_seq_len,
            "cold_start_warmup_steps": model_on_chain.cold_start_warmup_steps,
            "checkpoint": {
                "kind": int(model_on_chain.checkpoint.kind),
                "repo": model_on_chain.checkpoint.repo,
                "revision": model_on_chain.checkpoint.revision,
            },
            "spec": {"len": len(spec), "hash": spec_hash(spec)},
        }
        for part in self.ix.write_spec(RUN_ID, spec):
            self._send(part)
        self._send(self.ix.update(RUN_ID, model=model | changes))

    def kick(self, sim_member: SimMember, *, barred: bool) -> None:
        wallet = sim_member.key.pubkey()
        created = self.run.created
        membership = parse_membership(self.chain.data(self.ix.membership(RUN_ID, created, wallet)))
        self._send(
            self.ix.kick(RUN_ID, created, wallet, barred=barred, sponsor=Pubkey(membership.sponsor))
        )

    def rewind(self, index: int) -> None:
        self._send(self.ix.rewind(RUN_ID, index, self.model.recorded[index].step))

    # --- members ---

    def add(self, tier: int, seconds: float = 1.0, nodes: int = 1) -> SimMember:
        """Add and start a member. `seconds`: virtual time of one piece of work on its replica; a
        share takes two. `nodes`: its number of RPC nodes.
        """
        name = f"m{len(self.sim_members)}"
        sim_member = SimMember(name, tier, _key(name), _key(name + " p2p"), seconds, nodes)
        self.sim_members.append(sim_member)
        self.start(sim_member)
        return sim_member

    def start(self, sim_member: SimMember) -> None:
        """Start a member that has no state in memory."""
        clock = VirtualClock()
        sim_member.transport = self.network.open(sim_member.id)
        sim_member.chain = SimMemberChain(self.chain, sim_member.key, RUN_ID, sim_member.nodes)
        sim_member.compute = InlineWorker(sim_member.seconds)
        ports = Ports(
            coordinator=sim_member.chain,
            feed=RunFeed(View(self.run, self.members, self.model)),
            transport=sim_member.transport,
            clock=clock,
            stall_detector=StallDetector(clock) if self.detects_stalls else Undisturbed(clock),
            events=Events(clock.monotonic, [sim_member.note]),
        )
        role = Role(RUN_ID, self.schema, sim_member.tier, sim_member.identity.secret())
        upload = InlineWorker(self.upload_seconds)
        quick = InlineWorker(0.01)
        workers = Workers(
            sim_member.compute,
            InlineWorker(0.01),
            upload,
            quick,
            InlineWorker(0.01),
            InlineWorker(0.01),
            InlineWorker(sim_member.seconds),
        )
        data = open_tokens(
            self.place / "data", 2, self.model.max_seq_len, vocab_size=self.config.vocab_size
        )
        local_options = LocalOptions(
            hash_replicas=True,
            gradients_dir=self.place / "gradients" / sim_member.name
            if self.writes_gradients
            else None,
            optim_stats_steps=self.optim_stats_steps,
            optimizer_state_dir=self.place / "private" if self.stores_optimizer_state else None,
            share_delay=self.share_delay,
            confirms_loss=self.confirms_loss,
            prompt=self.prompt,
        )
        origin = Origin(
            self.schema,
            sim_member.tier,
            "auto",
            torch.device("cpu"),
            PassSize(4, "off"),
            clock.monotonic,
        )
        directory = (
            self.place / "kept" / sim_member.name
            if sim_member.tier == 0 and self.saves_checkpoints
            else None
        )
        archive = Archive(
            directory,
            self.hub if sim_member.tier == 0 else None,
            self.keep_steps,
            {},
            self.read_hub,
        )
        weight = round(60 / sim_member.seconds)
        sim_member.member = Member(
            ports, role, workers, data, origin, archive, local_options, weight=weight, parallel=4
        )
        sim_member.task = asyncio.ensure_future(
            _live(sim_member, sim_member.chain, sim_member.member)
        )

    async def kill(self, sim_member: SimMember) -> None:
        """Kill a member, as kill -9 does."""
        self.network.crash(sim_member.id)
        await self._end(sim_member)

    async def stop(
        self, sim_member: SimMember, again: Callable[[bool], bool] = lambda saved: False
    ) -> Stake | None:
        """Stop a member like Ctrl-C, so that it leaves the run on chain. `again`: see
        `Member.stops`.

        Return what the run lost, or None.
        """
        assert sim_member.member is not None
        lost: Stake | None = None

        def retry(saved: bool) -> bool:
            nonlocal lost
            stays = again(saved)
            stake = sim_member.member.stake() if sim_member.member is not None else None
            lost = stake if stake is not None and stake.goes_back else None
            return stays

        sim_member.member.stops(retry)
        await self._end(sim_member)
        with contextlib.suppress(CoordinatorError):
            await sim_member.member.leave()
            if sim_member.member.has_unsaved_steps:
                lost = await sim_member.member.loss_after_leaving(lost, seconds=_WATCHES)
        self.network.crash(sim_member.id)
        return lost

    async def _end(self, sim_member: SimMember) -> None:
        assert sim_member.task is not None
        sim_member.task.cancel()
        await asyncio.wait([sim_member.task])
        if not sim_member.task.cancelled():
            sim_member.task.result()

    async def until(self, condition: Callable[[Run], bool], limit: float = 2000.0) -> Run:
        """Wait in virtual time until the run meets a condition. Raise the error of a member that
        fails meanwhile.
        """
        end = self.now + limit
        while not condition(self.run):
            self.look_after()
            if self.now > end:
                raise InvariantBroken(
                    f"timed out waiting for a state of the run, which is now {self.run}"
                )
            await asyncio.sleep(0.1)
        return self.run

    async def until_round(self, height: int, epoch: int = 0) -> Run:
        return await self.until(
            lambda run: (
                run.epoch == epoch
                and run.state is RunState.ROUND_TRAIN
                and run.current.height == height
            )
        )

    async def until_finished(self) -> None:
        """Wait until the run is finished and every member has seen it and ended."""
        await self.until(lambda run: run.state is RunState.FINISHED)
        await asyncio.wait_for(
            asyncio.gather(*(p.task for p in self.sim_members if p.task is not None and p.alive)),
            60,
        )

    def look_after(self) -> None:
        """Raise the error that ended a member, if any."""
        for sim_member in self.sim_members:
            if (
                sim_member.task is not None
                and sim_member.task.done()
                and not sim_member.task.cancelled()
            ):
                sim_member.task.result()

    # --- what must hold ---

    def check(
        self, *, hostile: Collection[SimMember] = (), dropped: Collection[SimMember] = ()
    ) -> int:
        """Check every invariant, except for `hostile` members, and return the number of replica
        comparisons. Only members in `dropped` may have been dropped.
        """
        self.record.check_coverage(self.backlog)
        honest = [sim_member for sim_member in self.sim_members if sim_member not in hostile]
        for sim_member in honest:
            applied = [
                (e["epoch"], e["height"], e["step"], e["sequences"])
                for e in sim_member.saw("applied")
            ]
            self.record.check_member(
                sim_member.name, applied, [e["epoch"] for e in sim_member.saw("cooldown")]
            )
        wallets = {sim_member.wallet for sim_member in (*hostile, *dropped)}
        unjust = [
            (e, s) for e, s in self.record.dropped if self.members.seats[s].signer not in wallets
        ]
        if unjust:
            raise InvariantBroken(f"dropped without a reason: {unjust}")
        return self.compare(honest)

    def compare(self, sim_members: Collection[SimMember]) -> int:
        """Check that all members of a level have the same hash after every step. Return the number
        of comparisons.
        """
        hashes_by_key: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
        for sim_member in sim_members:
            for event in sim_member.saw("applied") + sim_member.saw("cooldown"):
                for level, digest in event["hashes"].items():
                    hashes_by_key[*state_of(event), level][sim_member.name] = digest
        for key, hashes in hashes_by_key.items():
            if len(set(hashes.values())) > 1:
                raise InvariantBroken(f"replicas differ at {key}: {hashes}")
        return sum(len(hashes) - 1 for hashes in hashes_by_key.values())

    async def close(self) -> None:
        for sim_member in self.sim_members:
            if sim_member.alive:
                await self._end(sim_member)


def _backlog_of(data: bytes) -> tuple[Interval, ...]:
    """Return the backlog in the account `Witnesses`."""
    offset, length = witnesses_backlog_range()
    return parse_backlog(data[offset : offset + length])


def _cases_of(data: bytes) -> tuple[Case, ...]:
    """Return the cases in the account `Witnesses`."""
    offset, length = witnesses_cases_range()
    return parse_cases(data[offset : offset + length])


async def _live(sim_member: SimMember, chain: SimMemberChain, member: Member) -> None:
    """Run a member as `train` does after it opened its connections."""
    async with chain:
        try:
            await member.live()
        except ModelLost as lost:  # a run without checkpoints may end like this
            sim_member.lost = lost.message
        except WalletEjected as ejected:  # a hostile one
            sim_member.ejected = ejected.message


def _key(name: str) -> Keypair:
    return Keypair.from_seed(hashlib.sha256(name.encode()).digest())


def play(
    directory: Path, scenario: Callable[[SimulatedRun], Awaitable[None]], **rules: Any
) -> SimulatedRun:
    """Run a scenario in a new simulation on virtual time, until all members have ended."""

    async def simulate() -> SimulatedRun:
        sim = SimulatedRun(directory, **rules)
        await scenario(sim)
        sim.look_after()
        sim.now_at_end = sim.now
        await sim.close()
        return sim

    return run_virtual(simulate())
