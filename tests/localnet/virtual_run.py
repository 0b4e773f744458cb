"""A run on the embedded network in virtual time: one member that witnesses every round."""

from __future__ import annotations

from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain.addresses import EVERYONE, authorization_address
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import endpoint
from aftermath.chain.instructions import witness_metadata
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from aftermath.localnet import RunningLocalnet, VirtualTime
from aftermath.programs import AUTHORIZER_ID
from aftermath.rules.consensus import pack_fingerprints
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from chain.funded_network import SCHEMA_HASH, FundedNetwork

RUN = "traffic"


class LoneMember:
    """The owner and only member of a run. Every step is a transaction over HTTP."""

    def __init__(self, network: RunningLocalnet, time: VirtualTime, wallet: Wallet) -> None:
        self._time = time
        self._pool = RpcPool([endpoint(network.rpc_url, network.ws_url)])
        self._place = FundedNetwork(network, self._pool, wallet)
        self.coordinator = CoordinatorClient(self._pool, wallet)

    async def open(self, rounds: int) -> None:
        """Create a run with epochs of `rounds` rounds, and join it with this wallet."""
        await self._place.open_run(RUN, rounds_per_epoch=rounds, total_steps=10_000)
        own = self._place.wallet.pubkey
        run = await self.coordinator.run(RUN)
        await self.coordinator.transact(
            self.coordinator.ix.enroll(RUN, run.created, 0),
            self.coordinator.ix.join_run(
                RUN,
                run.created,
                authorization=authorization_address(
                    Pubkey.from_string(AUTHORIZER_ID), own, EVERYONE
                ),
                p2p=bytes(Keypair().pubkey()),
                tier=0,
                weight=1,
                schema_hash=SCHEMA_HASH,
                client_version="",
                stateless=True,
            ),
        )

    async def reach_rounds(self) -> Run:
        """Continue until the first round of the epoch."""
        while not (run := await self.coordinator.run(RUN)).state.training:
            self._time.advance(2)
            if run.state is RunState.WARMUP and run.seed_is_drawn:
                await self.coordinator.transact(
                    self.coordinator.ix.warmup_witness(RUN, 0, run.round_id)
                )
            else:
                await self.coordinator.tick(RUN)
        return run

    async def witness(self) -> Run:
        """Complete one round: attest, and tick to end it."""
        run = await self.coordinator.run(RUN)
        now = run.current
        judged = run.round(run.config.judged(run.current.height))
        participation = judged.roster if judged is not None and judged.batch else 0
        fingerprints = (
            pack_fingerprints({0: bytes(31) + b"\1"}, judged.roster, now.salt)
            if judged and participation
            else bytes(320)
        )
        metadata = witness_metadata(now.step, 1.0, 1.0, 1.0)
        await self.coordinator.transact(
            self.coordinator.ix.witness(RUN, 0, run.round_id, participation, fingerprints, metadata)
        )
        self._time.advance(3)
        after = await self.coordinator.run(RUN)
        if after.state.training and after.current.height == now.height:
            await self.coordinator.tick(RUN)
        return await self.coordinator.run(RUN)

    async def close(self) -> None:
        await self._pool.close()
