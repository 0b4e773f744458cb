"""`estimate`: estimate a run's SOL, bytes, memory, tokens and time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.errors import UsageError
from aftermath.base.text import counted
from aftermath.cli.command import command
from aftermath.cli.present import Result, facts, note
from aftermath.rules.bitmap import MAX_MEMBERS

if TYPE_CHECKING:
    from aftermath.config.document import RunConfig
    from aftermath.optim.schema import Schema
    from aftermath.owner.schema import Shape
    from aftermath.rules.run import Config


PER_EPOCH = 3
"""Transactions of a member besides its witnessing: a join, a warm-up witness, an attestation."""
RESUME = 1
_UNITS = 200_000  # compute units of our large transactions


@command("estimate", example="aftermath-solana estimate --config-path config/demo/config.toml")
async def estimate(
    config_path: Annotated[
        Path, typer.Option("--config-path", "--config", help="The run's config.toml.")
    ],
    members: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_MEMBERS,
            help="Number of members. By default init_min_clients of the file.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Also measure the speed of each tier on this device, 10 s each: auto, cpu, mps, cuda or cuda:X.",
            show_default=False,
        ),
    ] = None,
) -> Result:
    """Estimate what a run takes: SOL, bytes, memory, tokens and time.

    Reads only the file and its checkpoint, or the file that describes how to make it; asks no
    cluster and spends nothing. SOL is what the owner pays to create, configure and start the run,
    and what each member pays until the end. Rent comes back, fees do not. Time is the maximum that
    the file's limits allow. With --device it is also the minimum that members like this machine
    need, each with an equal share of every round. With verification_percent, audits add training
    and sent bytes.
    """
    from dataclasses import asdict

    from aftermath.audit.cost import audit_cost
    from aftermath.cli.config_check import planned_document
    from aftermath.config.document import load_config
    from aftermath.config.recipe_file import recipe_of
    from aftermath.owner.schema import shape_of
    from aftermath.rules.run import Config

    config = load_config(config_path)
    unchecked: list[str] = []
    shape = shape_of(config, planned_document(config, recipe_of(config_path), unchecked))
    for part in unchecked:
        note(f"not checked: {part}")
    rules = Config(**config.to_chain()["config"])
    member_count = members or rules.init_min_clients
    data = await _estimate(config, shape, rules, member_count)
    if (cost := audit_cost(shape.schema, rules, member_count)) is not None:
        data["audits"] = asdict(cost) | {"in_words": cost.in_words}
    if device is not None:
        data["here"] = [
            asdict(pace)
            for pace in measured_paces(shape.schema, rules, member_count, data["sequences"], device)
        ]
    if not rules.total_steps:
        note("warning: total_steps is 0, so the run never ends and the estimate covers no steps")
    return Result(data, facts(_rows(data)))


async def _estimate(config: RunConfig, shape: Shape, rules: Config, members: int) -> dict[str, Any]:
    """Return the estimate as JSON types, without measured speeds."""
    from aftermath.replica.tier_memory import needs

    owner_rent, owner_fees = await owner_costs(config, shape)
    rent, join_fee, later_fees = member_costs(rules, members)
    member_total = rules.join_bond + rent + join_fee + later_fees
    tokens, sequences = tokens_of(rules)
    state = shape.schema.state
    return {
        "members": members,
        "owner": {
            "rent": owner_rent,
            "fees": owner_fees,
            "lamports": owner_rent + owner_fees,
        },
        "member": {
            "rent": rent,
            "bond": rules.join_bond,
            "join_fee": join_fee,
            "fees_until_the_end": later_fees,
            "lamports": member_total,
        },
        "lamports": owner_rent + owner_fees + members * member_total,
        "lamports_that_come_back": owner_rent + members * (rent + rules.join_bond),
        "bytes_per_round": shape.bytes_per_round,
        "memory_bytes": needs(shape.schema, config.llm.max_seq_len, members),
        "parameters": [state.parameters(tier) for tier in range(state.tiers)],
        "steps": rules.total_steps,
        "sequences": sequences,
        "tokens": tokens,
        "seconds_per_round_at_most": longest_round(rules),
        "seconds_at_most": seconds_at_most(rules),
    }


async def owner_costs(config: RunConfig, shape: Shape) -> tuple[int, int]:
    """Return (rent, maximum fees) in lamports to create, configure and start an open run."""
    from solders.keypair import Keypair

    from aftermath.chain import defaults
    from aftermath.chain.addresses import EVERYONE
    from aftermath.chain.authorizer import Authorizer
    from aftermath.chain.client import CoordinatorClient
    from aftermath.chain.endpoints import endpoint
    from aftermath.chain.rpc import RpcPool
    from aftermath.chain.sender import pack
    from aftermath.chain.wallet import Wallet

    wallet = Wallet(Keypair())
    name = "estimate"
    async with RpcPool([endpoint(defaults.RPC)]) as pool:  # never contacted
        client = CoordinatorClient(pool, wallet)
        authorizer = Authorizer(pool)
        creation = [
            *client.creation(name, join_authority=wallet.pubkey),
            authorizer.ix(wallet.pubkey).create(EVERYONE),
        ]
        creation.append(authorizer.ix(wallet.pubkey).grantor_update(EVERYONE, True))
        on_chain = config.to_chain()
        metadata = {
            "name": "",
            "description": "",
            "num_parameters": shape.num_parameters,
            "vocab_size": shape.vocab_size,
        }
        updates: list[dict[str, Any]] = [
            {"config": on_chain["config"]},
            {"model": on_chain["model"]},
        ]
        updates += [{"schema": shape.to_chain()}, {"metadata": metadata}]
        change = client.ix.write_spec(name, config.llm.spec.encode())
        change += [client.ix.update(name, **update) for update in updates]
        sizes = client.sizes(name) | authorizer.size(wallet.pubkey, EVERYONE)
        transactions = len(pack(wallet, creation)) + len(pack(wallet, change)) + RESUME
    return sum(map(rent_of, sizes.values())), transactions * highest_fee()


def member_costs(rules: Config, members: int) -> tuple[int, int, int]:
    """Return one member's maximum (rent, join fee, fees until the end) in lamports."""
    from aftermath.chain.views import membership_account
    from aftermath.rules.run import MAX_WITNESSES

    seats = rules.witness_nodes or MAX_WITNESSES
    witnessed = math.ceil(rules.total_steps * min(1.0, seats / members))
    return (
        rent_of(membership_account().size),
        highest_fee(),
        highest_fee() * (witnessed + PER_EPOCH * epochs_of(rules) - 1),
    )


def rent_of(size: int) -> int:
    """Return the rent in lamports of an account of this size."""
    from solders.rent import Rent

    return Rent.default().minimum_balance(size)


def highest_fee() -> int:
    """Return the most that a transaction with one signature costs, in lamports."""
    from aftermath.chain import defaults
    from aftermath.chain.funding import transaction_fee

    return transaction_fee(1, _UNITS, defaults.PRIORITY_FEE)


def epochs_of(rules: Config) -> int:
    """Return the most epochs of a run without a pause, by rounds or by seconds per epoch."""
    rounds = rules.rounds_per_epoch or rules.epoch_time // longest_round(rules)
    return max(1, math.ceil(rules.total_steps / max(1, rounds)))


def longest_round(rules: Config) -> int:
    """Return the maximum length of a round in seconds."""
    return max(rules.max_round_train_time + rules.round_witness_time, rules.min_round_time, 1)


def tokens_of(rules: Config) -> tuple[int, int]:
    """Return (tokens, sequences) of all steps together."""
    from aftermath.rules.assignment import batch_size

    sequences = 0
    steps_left = rules.total_steps
    while steps_left and sequences * rules.max_seq_len < rules.global_batch_size_warmup_tokens:
        sequences += batch_size(rules, sequences)
        steps_left -= 1
    sequences += steps_left * rules.global_batch_size_end
    return sequences * rules.max_seq_len, sequences


def seconds_at_most(rules: Config) -> int:
    """Return the seconds of all rounds and epochs at their limits."""
    return rules.total_steps * longest_round(rules) + epochs_of(rules) * (
        rules.warmup_time + rules.cooldown_time
    )


def _rows(data: dict[str, Any]) -> dict[str, object]:
    from aftermath.chain.refusals import sol

    owner = data["owner"]
    member = data["member"]
    member_count = counted(data["members"], "member")
    tiers = zip(data["parameters"], data["bytes_per_round"], data["memory_bytes"], strict=True)
    rows: dict[str, object] = {
        "SOL in all": f"{sol(data['lamports'])} with {member_count}, of which {sol(data['lamports_that_come_back'])} "
        "come back when the run is closed, members withdraw and the authorization for everybody is deleted",
        "its owner": f"{sol(owner['lamports'])}: rent {sol(owner['rent'])}, fees up to {sol(owner['fees'])}",
        "each member": f"{sol(member['lamports'])}: rent {sol(member['rent'])}, bond {sol(member['bond'])}, fees up to "
        f"{sol(member['join_fee'] + member['fees_until_the_end'])}",
        "by tier": [
            f"{tier}: {size:,} parameters, {bytes_sent:,} bytes a round to each other member, "
            f"{memory / 1e9:.2f} GB of memory"
            for tier, (size, bytes_sent, memory) in enumerate(tiers)
        ],
        "tokens": f"{data['tokens']:,} in {data['steps']:,} steps ({data['sequences']:,} sequences)",
        "time": f"{_days(data['seconds_at_most'])} at most, in rounds of {data['seconds_per_round_at_most']} s "
        "at most, by the file's limits",
    }
    if "audits" in data:
        rows["audits"] = f"each member does {data['audits']['in_words']}"
    if "here" in data:
        rows["like this machine"] = [
            f"{pace['tier']}: {member_count} of {pace['sequences_per_minute']} sequences a minute need "
            f"{pace['seconds_per_round']:.1f} s for a round, {_days(pace['seconds'])} in all"
            for pace in data["here"]
        ]
    return rows


def _days(seconds: float) -> str:
    """Return a duration in minutes, hours or days."""
    if seconds < 3600:
        return counted(max(1, round(seconds / 60)), "minute")
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


@dataclass(frozen=True)
class Pace:
    """The speed of members like this machine that all hold one tier."""

    tier: int
    sequences_per_minute: int
    """Sequences per minute of one member."""
    seconds_per_round: float
    seconds: float
    """Seconds for all rounds."""


def measured_paces(
    schema: Schema, rules: Config, members: int, sequences: int, device: str
) -> list[Pace]:
    """Return the pace of each tier that fits into the device's memory.

    `sequences`: sequences of all rounds together. Raises UsageError for several devices, and the
    errors of a device that cannot be used.
    """
    from aftermath.parallel.mesh import mesh_of
    from aftermath.replica.passes import arithmetic_of
    from aftermath.train.settings import TrainSettings
    from aftermath.train.tier import speed_here

    mesh = mesh_of(device, 0, 1)
    if not mesh.alone:
        raise UsageError(
            "estimate --device measures one device, not several",
            "Name one of them, for example cuda:0",
        )
    settings = TrainSettings(run_id="estimate", device=device)
    arithmetic = arithmetic_of(mesh.devices[0], settings.precision, settings.compile)
    paces = []
    for tier in range(schema.state.tiers):
        if speed := speed_here(schema, tier, rules.max_seq_len, settings, arithmetic):
            paces.append(pace(rules, members, sequences, tier, speed))
    return paces


def pace(rules: Config, members: int, sequences: int, tier: int, speed: int) -> Pace:
    """Return the pace at `speed` sequences per minute. The largest share sets a round's time."""
    share = math.ceil(rules.global_batch_size_end / members)
    least = float(rules.min_round_time)
    in_all = max(rules.total_steps * least, sequences / members * 60 / speed)
    return Pace(tier, speed, max(least, share * 60 / speed), in_all)
