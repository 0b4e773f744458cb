"""Record the account fixtures from the compiled program.

Run it with `cd tests && ../.venv/bin/python -m rules.record_accounts`. The recorded run is in the
cooldown of its second epoch, so that every part has values: a backlog, four rounds, attestations,
level hashes, points.
"""

from __future__ import annotations

import dataclasses
import json
from enum import IntEnum
from pathlib import Path
from typing import Any

from aftermath.chain import views
from aftermath.config.data_sources import DataSource
from aftermath.rules import bitmap
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.state import CheckpointKind, MemberState, RunState
from config.config_cases import DISTRO, SPARSELOCO, changed
from rules.cooldown import stated_in
from rules.onchain import RUN_ID, Onchain

FIXTURES = Path(__file__).with_name("accounts")
OPTIMIZER = """
inner_steps = 5
inner_optimizer = "muon"
outer_lr = 0.75
orthogonal_lr = 15.0
divisor = "root"
value_bits = 1
compression_topk_embeddings = 48
weight_decay = 0.125
"""
"""The kind of schedule with the most numbers. None of them is zero."""


def plain(value: Any) -> Any:
    """Return a view as JSON values: bytes in hex, enums and masks as numbers."""
    if isinstance(value, DataSource):
        return value.model_dump(exclude_none=True)
    if isinstance(value, Optimizer):
        return value.values()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def healthy(chain: Onchain) -> list[int]:
    """Return the seats that are healthy now."""
    return list(bitmap.seats(chain.members.mask(MemberState.HEALTHY)))


def witness_round(chain: Onchain, missing: int) -> None:
    """Play a round in which every member attests all results except those of one slot."""
    run = chain.run
    before = run.round(run.current.height - 1)
    delivered = [seat for seat in bitmap.seats(before.roster) if seat != missing] if before else []
    results = {seat: bytes([run.current.height + 1, seat]) * 16 for seat in delivered}
    for seat in healthy(chain):
        chain.witness(seat, results)
    while (
        chain.run.current.height == run.current.height and chain.run.state is not RunState.COOLDOWN
    ):
        chain.tick_at_deadline()


def epoch(chain: Onchain) -> None:
    """Play six rounds with failures, then attest the level hashes."""
    while chain.run.state is not RunState.COOLDOWN:
        witness_round(chain, missing=(chain.run.current.height + 1) % 5)
    for seat in healthy(chain):
        wallet = chain.wallet(seat + 1)
        tier = chain.members.seats[seat].tier
        hashes = {level: bytes([level + 1, chain.run.epoch]) * 16 for level in range(tier, 3)}
        chain.send(wallet, chain.ix(wallet).attest(RUN_ID, seat, chain.run.round_id, hashes))


def record() -> dict[str, bytes]:
    """Return the accounts of the recorded run, and that of the member that left."""
    chain = Onchain()
    chain.create()
    text = changed((DISTRO, SPARSELOCO + OPTIMIZER))
    metadata = {
        "name": "fixture é",
        "description": "two epochs",
        "num_parameters": 1234567,
        "vocab_size": 512,
    }
    chain.update(metadata=metadata)
    chain.send(
        chain.owner, chain.ix(chain.owner).set_future_epoch_rates(RUN_ID, earning=1000, slashing=10)
    )
    chain.send(chain.owner, chain.ix(chain.owner).update_client_version(RUN_ID, "0.1.0"))
    chain.configure(
        text,
        min_clients=2,
        init_min_clients=5,
        witness_nodes=0,
        rounds_per_epoch=6,
        total_steps=1000,
    )
    chain.begin({number: (number % 3, number) for number in range(1, 6)})
    epoch(chain)
    hashes = chain.run.level_hashes
    checkpoint = chain.ix(chain.owner).checkpoint(
        RUN_ID, kind=CheckpointKind.HUB, repo="me/checkpoint", revision="abc", hashes=hashes
    )
    chain.send(chain.owner, checkpoint)
    for number in range(1, 6):
        chain.join(number, tier=number % 3, weight=number)
    if chain.run.state is RunState.COOLDOWN:
        chain.tick_at_deadline()
    while chain.run.state is not RunState.ROUND_TRAIN:
        chain.tick_at_deadline()
    leaver = chain.wallet(2)
    chain.send(leaver, chain.ix(leaver).leave_run(RUN_ID, chain.run.round_id))
    epoch(chain)
    membership = chain.ix(leaver).membership(RUN_ID, chain.run.created, leaver.pubkey())
    chain.send(
        chain.owner, chain.ix(chain.owner).settle(RUN_ID, chain.run.created, leaver.pubkey())
    )
    four = {
        name: chain.data(getattr(chain.addresses, name))
        for name in ("run", "model", "members", "witnesses")
    }
    return {**four, "membership": chain.data(membership)}


def expected(data: dict[str, bytes]) -> dict[str, Any]:
    """Return the views of the recorded accounts as JSON."""
    run = views.parse_run(data["run"])
    members = views.parse_members(data["members"])
    counts = [round_.attestations for round_ in run.rounds]
    return {
        "run": plain(run),
        "model": plain(views.parse_model(data["model"])),
        "members": plain(
            dataclasses.replace(members, seats=tuple(seat for seat in members.seats if seat.used))
        ),
        "membership": plain(views.parse_membership(data["membership"])),
        "attestations": [
            plain(
                views.parse_witness_round(
                    cut(data["witnesses"], views.witness_round_range(ring, count)), count
                )
            )
            for ring, count in enumerate(counts)
        ],
        "cooldown": plain(stated_in(data["witnesses"])),
    }


def cut(data: bytes, span: tuple[int, int]) -> bytes:
    """Return what an RPC node returns for a data slice (offset, length)."""
    offset, length = span
    return data[offset : offset + length]


def main() -> None:
    """Write the fixtures."""
    data = record()
    FIXTURES.mkdir(exist_ok=True)
    for name, content in data.items():
        (FIXTURES / f"{name}.bin").write_bytes(content)
    document = json.dumps(expected(data), indent=1, sort_keys=True)
    (FIXTURES / "expected.json").write_text(document + "\n")


if __name__ == "__main__":
    main()
