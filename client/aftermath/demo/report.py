"""The demo's report: costs read from the chain, a plot, a table, and demo-report.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from solders.pubkey import Pubkey

from aftermath.chain.addresses import run_addresses
from aftermath.demo.commands import KILLED, RUN_ID, TIERS, Commands, DemoFailed, DemoPaths
from aftermath.events.plot import run_plot
from aftermath.programs import COORDINATOR_ID
from aftermath.testnet.chain import ask
from aftermath.testnet.member_progress import MemberProgress, RunProgress

if TYPE_CHECKING:
    from aftermath.demo.outcome import TierOutcome


_LAMPORTS_PER_SOL = 1_000_000_000


def closing(report: Mapping[str, Any], paths: DemoPaths, killed: MemberProgress) -> list[str]:
    """Return the last lines that the demo prints. `shortcomings` lists what failed."""
    held_out = ", ".join(
        f"tier {tier} {loss:.2f}" for tier, loss in report["held_out_by_tier"].items()
    )
    lines = [
        f"{len(report['tiers'])} members trained {report['rounds']} steps in {report['wall_seconds']:.0f} s. "
        f"The loss fell from {report['loss_first']:.2f} to {report['loss_last']:.2f} nats per byte.",
        f"Held-out loss at step {report['held_out_step']}: {held_out}.",
        f"The whole model picks the right one of four continuations in {report['answered']:.0%} of the cases "
        "(25% by chance).",
    ]
    if report["replicas_identical"]:
        checks = report["checks_of_replicas"]
        lines.append(f"Replicas are identical: {checks} of {checks} hash checks agree.")
    if killed.returned is not None:
        lines.append(
            f"{killed.name} was killed with kill -9. It fetched the model from {killed.came_back_with} and has "
            f"trained again since step {killed.returned}."
        )
    lines += [
        f"On chain: {report['transactions']:,} transactions, {report['lamports']:,} lamports in fees "
        f"({report['lamports'] / _LAMPORTS_PER_SOL:g} SOL).",
        f"Files in {paths.root}: demo-report.json, loss.png, checkpoints/, events/, logs/.",
    ]
    return lines


_PAGE = 1000


@dataclass(frozen=True)
class RunCosts:
    """All transactions that touched the run's account."""

    transactions: int
    lamports: int


def costs_of(rpc: str, account: str) -> RunCosts:
    """Count the account's transactions and add up their fees."""
    signatures: list[str] = []
    before: dict[str, Any] = {}
    while True:
        page: Any = ask(
            rpc,
            "getSignaturesForAddress",
            account,
            {"limit": _PAGE, "commitment": "confirmed", **before},
        )
        signatures += [entry["signature"] for entry in page]
        if len(page) < _PAGE:
            break
        before = {"before": signatures[-1]}
    fees = 0
    for signature in signatures:
        config = {
            "encoding": "json",
            "commitment": "confirmed",
            "maxSupportedTransactionVersion": 0,
        }
        transaction: Any = ask(rpc, "getTransaction", signature, config)
        fees += transaction["meta"]["fee"] if transaction else 0
    return RunCosts(len(signatures), fees)


LOSS_MUST_FALL = 1.0  # nats
ROUNDS_AT_LEAST = 40
LAST_ROUNDS = 10  # one round has a few dozen sequences, too few to judge the model


def write_report(
    run_progress: RunProgress, commands: Commands, engine: str, seconds: float, console: Console
) -> int:
    """Write the report and print its summary. Return 0 if the run did all that the demo promises,
    else 1.
    """
    # imported here, because torch takes seconds to load and would slow the start of members
    from aftermath.demo.outcome import PROMPT, outcomes

    paths = commands.paths
    costs = costs_of(
        commands.chain.rpc, str(run_addresses(Pubkey.from_string(COORDINATOR_ID), RUN_ID).run)
    )
    reached = list(outcomes(paths))
    report = findings(run_progress, costs, reached, seconds)
    (paths.root / "demo-report.json").write_text(json.dumps(report, indent=1) + "\n")
    title = f"tiers {', '.join(map(str, TIERS))} on {engine}"
    history = run_progress.history
    run_plot(
        paths.root / "loss.png",
        history.loss_by_tier(),
        history.sent_by_tier(),
        history.epochs,
        history.marks,
        title,
    )
    for outcome in reached:
        console.print(f"[bold]tier {outcome.tier}[/bold] continues {PROMPT!r}:", highlight=False)
        console.print(outcome.text, highlight=False, markup=False)
    console.print(table_of(run_progress, costs))
    for sentence in closing(report, paths, run_progress.members[KILLED]):
        console.print(sentence, highlight=False, soft_wrap=not console.is_terminal, markup=False)
    wrong = shortcomings(run_progress, report)
    for sentence in wrong:
        console.print(f"[red]{sentence}[/red]", highlight=False)
    return 1 if wrong else 0


def findings(
    run_progress: RunProgress, costs: RunCosts, reached: Sequence[TierOutcome], seconds: float
) -> dict[str, Any]:
    """Return the contents of demo-report.json."""
    curve = run_progress.history.loss_curve()
    if not curve or run_progress.first_loss_at is None:
        raise DemoFailed("no member reported a loss")
    checks, differing = run_progress.replica_checks()
    rounds = sum(len(member.rounds) for member in run_progress.members)
    newest = [loss for _, loss in curve[-LAST_ROUNDS:]]
    return {
        "rounds": len(curve),
        "loss_first": round(curve[0][1], 4),
        "loss_last": round(sum(newest) / len(newest), 4),
        "tiers": [member.tier for member in run_progress.members],
        "loss_last_by_tier": {
            str(tier): round(loss, 4)
            for tier, loss in sorted(run_progress.tier_losses(LAST_ROUNDS).items())
        },
        "held_out_by_tier": {str(outcome.tier): round(outcome.held_out, 4) for outcome in reached},
        "held_out_step": reached[0].step,
        "answered": reached[0].answered,
        "words_of_samples": {str(outcome.tier): list(outcome.words) for outcome in reached},
        "replicas_identical": checks > 0 and not differing,
        "checks_of_replicas": checks,
        "bytes_per_round_per_member": round(
            sum(m.total(lambda t: t.sent) for m in run_progress.members) / max(rounds, 1)
        ),
        "transactions": costs.transactions,
        "lamports": costs.lamports,
        "push_bytes_max": max(
            (r.costs["push_bytes_max"] for m in run_progress.members for r in m.traffic if r),
            default=0,
        ),
        "wall_seconds": round(seconds, 1),
        "seconds_to_first_loss": round(run_progress.first_loss_at, 1),
    }


def shortcomings(run_progress: RunProgress, report: dict[str, Any]) -> list[str]:
    """Return the promises of the demo that this run did not keep."""
    wrong = list(run_progress.replica_checks()[1])
    if not report["replicas_identical"] and not wrong:
        wrong.append(
            "No two members reported a hash of the same level and step, so nothing was compared."
        )
    if report["rounds"] < ROUNDS_AT_LEAST:
        wrong.append(
            f"Only {report['rounds']} rounds were trained; the demo requires {ROUNDS_AT_LEAST}."
        )
    if report["loss_first"] - report["loss_last"] < LOSS_MUST_FALL:
        wrong.append(
            f"The loss fell from {report['loss_first']} to {report['loss_last']}, by less than {LOSS_MUST_FALL} nat."
        )
    if "peers" not in run_progress.members[KILLED].sources:
        wrong.append(
            f"{run_progress.members[KILLED].name} did not fetch the model from its peers after its restart."
        )
    return wrong


def table_of(run_progress: RunProgress, costs: RunCosts) -> Table:
    """Return a table of rounds, transactions, fees and bytes per member."""
    table = Table(title="costs", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("member", "tier", "rounds", "txs", "lamports", "sent", "received", "per round"):
        table.add_column(column, justify="right", no_wrap=True)
    for member in run_progress.members:
        rounds = len(member.rounds)
        table.add_row(
            member.name,
            str(member.tier),
            str(rounds),
            f"{member.total(lambda t: t.costs['transactions']):,.0f}",
            f"{member.total(lambda t: t.costs['lamports']):,.0f}",
            f"{member.total(lambda t: t.sent) / 1e3:,.0f} kB",
            f"{member.total(lambda t: t.received) / 1e3:,.0f} kB",
            f"{member.total(lambda t: t.sent) / max(rounds, 1):,.0f} B",
        )
    table.add_row(
        "on chain",
        "",
        str(run_progress.steps),
        f"{costs.transactions:,}",
        f"{costs.lamports:,}",
        "",
        "",
        "",
    )
    return table
