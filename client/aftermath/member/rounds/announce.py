"""Announcing a result: publish its masked payloads, and sign the commitment to them.

Other members may request the private state after a share only once its result is revealed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict

from aftermath.base.concurrency import Worker
from aftermath.events import event_types
from aftermath.member.ports import Desync, Ports, Role
from aftermath.member.round_plan import RoundPlan
from aftermath.member.rounds.epoch import CarriedOver, Epoch
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Trained
from aftermath.rules.announcements import (
    Commitment,
    LevelPayload,
    PrivateRoots,
    SequenceInterval,
    encode_announcement,
)
from aftermath.rules.seal import key_of, masked, seal_of


class Announcing:
    """Announces one member's results of one epoch."""

    def __init__(
        self, ports: Ports, role: Role, decode: Worker, carried: CarriedOver, epoch: Epoch
    ) -> None:
        self._ports = ports
        self._role = role
        self._decode = decode
        self._carried = carried
        self.epoch = epoch

    async def announce(self, plan: RoundPlan, trained: Trained) -> None:
        """Publish the payloads and announce the signed commitment.

        Raises Desync if this member may not sign the result, or cannot keep what audits need.
        """
        started = self._ports.clock.monotonic()
        schema = self._role.schema.results
        own_state = self._carried.own_state
        replica = self.epoch.start.replica
        device = self._role.device
        key = key_of(self._role.p2p_secret, plan.place(self.epoch.start.seat))
        level_payloads = trained.payloads.items()
        (votes, payloads), private = await asyncio.gather(
            self._decode(
                lambda: (
                    {
                        level: decode_level(data, schema, level, device)
                        for level, data in level_payloads
                    },
                    {level: masked(data, key, level) for level, data in level_payloads},
                )
            ),
            own_state.trained(replica, plan.epoch, plan.header.height),
        )
        if self.epoch.can_be_audited():
            # a member that announces a result must be able to prove it
            await own_state.offer(replica)
        commitment = self._commitment(plan, trained, payloads, private, key)
        try:
            may_sign = await self._decode(
                lambda: self._carried.results.may_sign(commitment.place, commitment.digest)
            )
        except OSError as error:
            raise Desync(f"cannot record the signature of a result: {error.strerror}") from None
        if not may_sign:
            raise Desync(f"this member already signed another result of round {plan.header.height}")
        raw = encode_announcement(commitment, self._role.p2p_secret)
        self._carried.results.add_own(commitment, raw, votes, payloads, key)
        await self._ports.transport.announce(raw)
        self._report(plan, trained, self._ports.clock.monotonic() - started)
        if trained.measured is not None:
            self._ports.events.emit(
                event_types.OptimizerReport(
                    epoch=plan.epoch,
                    height=plan.header.height,
                    step=plan.header.step,
                    levels={level: asdict(metrics) for level, metrics in trained.measured.items()},
                    seconds=trained.measure_seconds,
                )
            )

    def _report(self, plan: RoundPlan, trained: Trained, announce_seconds: float) -> None:
        self._ports.events.emit(
            event_types.ShareTrained(
                epoch=plan.epoch,
                height=plan.header.height,
                step=plan.header.step,
                loss=trained.loss,
                tokens=trained.tokens,
                tokens_per_sec=trained.tokens_per_sec,
                seconds=trained.seconds,
                encode_seconds=trained.encode_seconds,
                announce_seconds=announce_seconds,
                bytes=sum(map(len, trained.payloads.values())),
            )
        )

    def _commitment(
        self,
        plan: RoundPlan,
        trained: Trained,
        payloads: Mapping[int, bytes],
        private: PrivateRoots,
        key: bytes,
    ) -> Commitment:
        """Publish the masked payloads. Return the commitment to them, to be signed."""
        seat = self.epoch.start.seat
        wallet = self._ports.coordinator.wallet
        return Commitment(
            sender=self._ports.transport.node_id,
            signer=wallet,
            run_id=self._role.run_id,
            epoch=plan.epoch,
            height=plan.header.height,
            seed=plan.header.seed,
            step=plan.header.step,
            seat=seat,
            tier=self._role.tier,
            intervals=tuple(SequenceInterval(r.start, r.stop) for r in plan.ranges(seat)),
            schema_hash=self._role.schema.hash(),
            levels={
                level: LevelPayload(self._ports.transport.publish(data), len(data))
                for level, data in sorted(payloads.items())
            },
            private=private,
            passes=self.epoch.start.replica.pass_settings,
            seal=seal_of(key, wallet, plan.place(seat)),
            loss=trained.loss,
            tokens_per_sec=trained.tokens_per_sec,
        )
