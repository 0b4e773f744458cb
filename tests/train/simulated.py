"""A run of tiny members on virtual time: the real program, the real pipeline, the simulated network."""

from __future__ import annotations

import asyncio
import contextlib
import tomllib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from solders.keypair import Keypair

from aftermath.chain.addresses import EVERYONE
from aftermath.chain.authorizer import AuthorizerInstructions
from aftermath.chain.instructions import GROWTH, CoordinatorInstructions
from aftermath.data.local import open_tokens
from aftermath.model.agreed import agreed_schema
from aftermath.model.config import LlamaConfig
from aftermath.model.initial import init_weights
from aftermath.model.store import write_checkpoint
from aftermath.run.accounts import Run
from aftermath.run.config import RunConfig
from aftermath.run.views import members_account, parse_model, parse_run, witnesses_account
from aftermath.sim.chain import SimChain, SimMember
from aftermath.sim.clock import InlineWorker, VirtualClock
from aftermath.sim.network import SimNetwork
from aftermath.train.context import Context
from aftermath.train.cooldown import Archive
from aftermath.train.feed import RunFeed
from aftermath.train.member import Member
from aftermath.train.origin import Origin
from aftermath.watch.events import Event, Events

RUN_ID = "sim"
CONFIG = LlamaConfig.from_hf(
    {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 16,
    }
)
RULES = """
[config]
warmup_time = 30
cooldown_time = 20
rounds_per_epoch = 6
max_round_train_time = 15
round_witness_time = 1
min_clients = 2
init_min_clients = 3
global_batch_size_start = 9
global_batch_size_end = 9
total_steps = 12
waiting_for_members_extra_time = 1

[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 16
checkpoint = { Local = "MODEL" }
data_location = { Local = "DATA" }
matformer = { tiers = 3 }

[model.LLM.lr_schedule.Constant]
base_lr = 0.004
warmup_steps = 0

[model.LLM.optimizer.Distro]
clip_grad_norm = 1.0
weight_decay = 0.01
compression_decay = 0.999
compression_chunk = 8
compression_topk = 4
quantize_1bit = true
"""


@dataclass
class Player:
    """One member with everything it left behind."""

    name: str
    tier: int
    key: Keypair
    identity: Keypair
    member: Member | None = None
    task: asyncio.Task[None] | None = None
    events: list[Event] = field(default_factory=list)

    def saw(self, kind: str, **fields: Any) -> list[Event]:
        return [e for e in self.events if e["kind"] == kind and all(e.get(k) == v for k, v in fields.items())]


class Simulation:
    """A cluster, a run, and members that come and go."""

    def __init__(self, place: Path, **rules: int) -> None:
        torch.set_num_threads(1)
        self.place, self.chain, self.network = place, SimChain(), SimNetwork()
        self.owner = Keypair()
        self.players: list[Player] = []
        self._prepare(rules)

    def _prepare(self, rules: dict[str, int]) -> None:
        write_checkpoint(self.place / "model", init_weights(CONFIG, 0), CONFIG, tier=0, companions={})
        (self.place / "data").mkdir()
        tokens = torch.arange(4096).mul(7).remainder(64).to(torch.int16).numpy()
        (self.place / "data" / "tokens.bin").write_bytes(tokens.tobytes())
        text = RULES.replace("MODEL", str(self.place / "model")).replace("DATA", str(self.place / "data"))
        tables = tomllib.loads(text)
        tables["config"].update(rules)
        config = RunConfig.model_validate(tables)
        self.chain.fund(self.owner.pubkey())
        ix = CoordinatorInstructions(self.chain.coordinator, self.owner.pubkey())
        admit = AuthorizerInstructions(self.chain.authorizer, self.owner.pubkey())
        send = lambda *instructions: self.chain.send(instructions, self.owner)  # noqa: E731
        send(ix.init_run(RUN_ID))
        for which, account in enumerate((members_account(), witnesses_account())):
            for _ in range(GROWTH, account.size, GROWTH):
                send(ix.grow(RUN_ID, which))
        send(admit.create(EVERYONE))
        send(admit.grantor_update(EVERYONE, True))
        send(ix.update(RUN_ID, **config.to_chain()))
        model = parse_model(self.chain.data(self._at().model))
        self.schema = agreed_schema(CONFIG.to_hf(), 3, model.optimizer)
        send(ix.update(RUN_ID, schema={"hash": self.schema.hash(), "tier_widths": list(self.schema.widths)}))
        self.ix, self._send = ix, send
        self.pause(False)

    def _at(self) -> Any:
        from aftermath.chain.addresses import run_addresses

        return run_addresses(self.chain.coordinator.id, RUN_ID)

    @property
    def run(self) -> Run:
        return parse_run(self.chain.data(self._at().run))

    def pause(self, paused: bool) -> None:
        self._send(self.ix.set_paused(RUN_ID, paused))

    # --- members ------------------------------------------------------------------------------------------------

    def add(self, tier: int, seconds: float = 1.0) -> Player:
        player = Player(f"m{len(self.players)}", tier, Keypair(), Keypair())
        self.players.append(player)
        self.start(player, seconds)
        return player

    def start(self, player: Player, seconds: float = 1.0, archive: Path | None = None) -> None:
        """Start (again) with nothing in memory; `seconds`: virtual time of one piece of work on the replica."""
        transport = self.network.open(bytes(player.identity.pubkey()))
        chain = SimMember(self.chain, player.key, RUN_ID)
        model = parse_model(self.chain.data(self._at().model))
        clock = VirtualClock()
        context = Context(
            run_id=RUN_ID,
            chain=chain,
            transport=transport,
            feed=RunFeed(self.run),
            clock=clock,
            events=Events(clock.monotonic, [player.events.append]),
            compute=InlineWorker(seconds),
            decode=InlineWorker(0.01),
            p2p_secret=player.identity.secret(),
            schema=self.schema,
            tier=player.tier,
            data=open_tokens(self.place / "data", 2, model.max_seq_len, vocab_size=CONFIG.vocab_size),
            hash_replicas=True,
        )
        origin = Origin(self.schema, player.tier, "auto", torch.device("cpu"), 4, clock.monotonic)
        weight = round(60 / seconds)
        kept = Archive(archive or self.place / "kept", None, None, 3, {}) if player.tier == 0 else Archive(None, None, None, 3, {})
        player.member = Member(context, origin, kept, weight=weight, parallel=4)
        player.task = asyncio.ensure_future(player.member.live())

    async def kill(self, player: Player) -> None:
        """kill -9."""
        self.network.crash(bytes(player.identity.pubkey()))
        assert player.task is not None
        player.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await player.task

    async def until(self, wanted: Callable[[Run], bool], limit: float = 2000.0) -> Run:
        """Wait (virtually) for a state of the run; a member that fails meanwhile fails the test."""
        end = asyncio.get_running_loop().time() + limit
        while not wanted(self.run):
            for player in self.players:
                if player.task is not None and player.task.done() and not player.task.cancelled():
                    player.task.result()
            assert asyncio.get_running_loop().time() < end, f"never came; the run is {self.run}"
            await asyncio.sleep(0.1)
        return self.run

    # --- what must hold -----------------------------------------------------------------------------------------

    def check_replicas(self) -> int:
        """All members of a level have the same hash after every step; how many comparisons that were."""
        found: dict[tuple[str, int, str], dict[str, str]] = defaultdict(dict)
        for player in self.players:
            for event in player.saw("applied") + player.saw("cooldown"):
                for level, digest in event["hashes"].items():
                    found[event["kind"], event["step"], level][player.name] = digest
        for place, hashes in found.items():
            assert len(set(hashes.values())) == 1, f"replicas differ at {place}: {hashes}"
        return sum(len(hashes) - 1 for hashes in found.values())

    async def close(self) -> None:
        for player in self.players:
            if player.task is not None and not player.task.done():
                player.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await player.task
