"""Write docs/measurements.md, the page with measured figures; `make docs` calls it.

    python benchmarks/quote.py docs/measurements.md docs/experiments.md

It also writes the first table of docs/experiments.md, the settings to choose. All figures come from
benchmarks/measured/*.json. The pictures are drawn by benchmarks/plots.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import audit_tables
import learning_tables
from learning_tables import UNKNOWN, table

MEASURED = Path(__file__).resolve().parent / "measured"
QUOTED_CASES = ("half of the shares", "by its holders", "opens a case")
"""Cases of instructions whose compute units are quoted besides the usual one."""

INTRODUCTION = """# Measurements

All measured numbers of this documentation are on this page. `make docs` writes it from
[benchmarks/measured](../benchmarks/measured), which has one JSON file per benchmark with its
command, machine, load and all numbers. `make measure` runs the benchmarks again, and
`python benchmarks/measure.py NAME` runs one. Unless a section says otherwise, speeds were measured
on two shared CPU cores, so treat them as lower bounds. A dash means that the value was not
measured."""


def kept(name: str) -> Any:
    """Return the file of a benchmark: its command, the machine and the figures."""
    return json.loads((MEASURED / f"{name}.json").read_text())


def figures(name: str) -> Any:
    """Return the figures of a benchmark."""
    return kept(name)["figures"]


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f}"


def demo() -> str:
    found = figures("demo")
    first = f"{found['loss_first']:.2f}"
    last = f"{found['loss_last']:.2f}"
    rows = [
        ("rounds, seconds", f"{found['rounds']}, {found['wall_seconds']:.0f}"),
        ("loss, first and last (nats per byte)", f"{first}, {last}"),
        ("equal level hashes", f"{found['checks_of_replicas']} comparisons, all equal"),
        ("bytes of a result", f"{found['bytes_per_round_per_member']:,}"),
        ("transactions, lamports of fees", f"{found['transactions']}, {found['lamports']:,}"),
    ]
    return table(("what", "figure"), rows)


MODELS = {"light": "`light`", "preset": "`llama-20m`", "test": "`test`"}


def memory() -> str:
    """Return what a member holds at most by model and tier, in GB."""
    rows = []
    found = figures("memory")
    for model, label in MODELS.items():
        columns = (found[model][key] for key in ("parameters", "state", "peak", "recomputed"))
        for tier, (parameters, *sizes) in enumerate(zip(*columns, strict=True)):
            count = f"{parameters / 1e6:.1f} M"
            rows.append((label, tier, count, *map(gigabytes, sizes)))
    laptop = gigabytes(found["laptop"]["peak"])
    note = f"In bf16 with activation checkpointing, tier 2 of `test` needs {laptop} GB."
    heads = ("model", "tier", "parameters", "state", "peak", "peak with checkpointing")
    intro = "Memory of tensors in GB, in fp32 with `--micro-batch-size 1`, counted on a CPU."
    return f"{intro}\n\n{table(heads, rows)}\n\n{note}"


def speed() -> str:
    """Return the speed of a member's work against references of the same run."""
    step = figures("step")
    codec = figures("codec")
    distro = figures("distro")
    rows = []
    for name, label in (("distro", "DisTrO"), ("sparseloco", "SparseLoCo")):
        for threads, one in step[name].items():
            words = f"{label}, {threads} thread(s): training; with encoding, over plain PyTorch"
            ratios = f"{one['train_over_plain']:.2f}; {one['with_encode_over_plain']:.2f}"
            rows.append((words, ratios))
        one = codec[name]
        ratios = f"{one['encode_over_demo']:.1f}; {one['apply16_over_demo']:.1f}"
        rows.append((f"{label}: encoding; applying 16 results, over DeMo", ratios))
    signs = distro["signs"]["peers_16"]
    apply = next(one for one in distro["mparam_per_second"] if one["threads"] == 1)
    rows += [
        ("exact apply of 32 results, 124 M parameters", f"{codec['aggregate32_seconds']:.1f} s"),
        ("exact apply over a float apply, 3 peers, 1 thread", f"{apply['ratio_3']:.2f}"),
        (
            "signs that differ from a float64 transform, 16 peers",
            f"{signs['exact_differs']} of {signs['signs']:,}",
        ),
    ]
    return table(("what", "figure"), rows)


def rounds() -> str:
    """Return where a round's time goes."""
    found = figures("round")
    parts = ("wall", "slowest_training", "overhead", "chain", "apply", "encode", "fetch")
    heads = ("members on two cores", *(part.replace("_", " ") for part in parts))
    rows = [
        (count, *(f"{one[f'{part}_ms']:.0f} ms" for part in parts)) for count, one in found.items()
    ]
    return table(heads, rows)


def networks() -> str:
    peers = figures("p2p")
    local = figures("localnet")
    server = figures("central")
    data = figures("data")
    blobs = peers["blob_mb_per_s"]
    trips = peers["announcement_round_trip_ms"]
    at_most = f"{data['http']['link_megabits']:.0f} Mb/s link"
    rows = [
        (
            "blobs from one holder; from three; plain TCP (MB/s)",
            "; ".join(f"{blobs[k]:.0f}" for k in ("holders_1", "holders_3", "tcp")),
        ),
        (
            "announcement and answer, 3 peers; 8 peers (ms)",
            f"{trips['3']['median']:.1f}; {trips['8']['median']:.1f}",
        ),
        (
            "localnet over HTTP; with a ledger; LiteSVM alone (transactions/s)",
            f"{local['http_per_second']:,}; {local['http_ledger_per_second']:,}; {local['litesvm_per_second']:,}",
        ),
        (
            f"server with {server['members']} light members: rounds/s; share of a core",
            f"{server['rounds_per_second']:.2f}; {server['server_cores']:.1%}",
        ),
        (
            "tokens from local files, one thread (MB/s)",
            f"{data['local']['megabytes_per_second']:.0f}",
        ),
        (
            f"waiting for data behind a {at_most}, of a round",
            f"{data['http']['waited_percent']:.1f}%",
        ),
    ]
    return table(("what", "figure"), rows)


def home_lines() -> str:
    """Return how results spread over home lines, against the bars."""
    found = figures("wan")
    lines = found["lines"]
    rows = [
        (bar["what"], f"{bar['value']:g}", f"{bar['bar']:g}", "yes" if bar["met"] else "no")
        for bar in found["bars"].values()
    ]
    text = (
        f"Eight members, {lines['up_mbit']:.0f} Mb/s up, {lines['down_mbit']:.0f} Mb/s down, "
        f"{1000 * lines['round_trip_s']:.0f} ms round trip, {lines['loss']:.1%} of packets lost. "
        "`--slower 16` divides the rates of the large results, because two cores cannot carry eight "
        "such lines. Training is a delay, and the chain is left out. At full rates, congestion "
        "control (CUBIC) limits each connection to about 4 Mb/s at this loss. Members therefore "
        "open two or three to each other, which small results need."
    )
    return f"{text}\n\n{table(('what', 'value', 'at most', 'met'), rows)}"


def programs() -> str:
    """Return compute units by instruction and number of members, bytes pushed and fees."""
    found = figures("chain")
    sizes = found["members"]
    rows = [
        (f"`{name}`", *(f"{count:,}" if count is not None else "" for count in counts))
        for name, counts in found["compute_units"].items()
        if "(" not in name or any(case in name for case in QUOTED_CASES)
    ]
    rows.append(("the most of any case", "", "", f"{found['compute_units_max']:,}"))
    pushed = found["push_bytes_max"]
    fees = found["lamports_per_1000_rounds"]
    few = fees["3"] / 1e9
    many = fees["32"] / 1e9
    note = (
        f"A subscriber of `Run` receives at most {pushed['base64']:,} bytes per change. A thousand rounds\n"
        f"cost {few:.3f} SOL in all with 3 witnesses and at most {many:.2f} SOL with 32, without a\n"
        f"priority fee. Finding one committee position took {found['upstream_one_position_units']:,} units in Psyche;\n"
        f"all positions of 256 members take {found['all_positions_units']:,} here."
    )
    return f"{table(('compute units', f'{sizes[0]} members', *sizes[1:]), rows)}\n\n{note}"


def gpu() -> str:
    """Return what was measured on a GPU."""
    found = figures("gpu")
    heads = ("what", "DisTrO", "SparseLoCo", "all numbers, Muon")
    rows: list[tuple[str, ...]] = []
    for kind in ("plain", "compiled"):
        step = found["step"][kind]
        cells = (f"{step[name]['2']['train_over_plain']:.2f}" for name in ("distro", "sparseloco"))
        rows.append((f"training over plain PyTorch, `light`, {kind}", *cells, UNKNOWN))
    for part in ("encode", "decode", "apply"):
        names = ("distro", "sparseloco", "outer_muon")
        cells = (f"{found['large'][name][f'{part}_ms']:.0f} ms" for name in names)
        rows.append((f"{part}, 124 M parameters, 8 members", *cells))
    held = ", ".join(gigabytes(count) for count in found["memory"]["test"]["bf16"])
    checks = found["demo"]["checks_of_replicas"]
    note = (
        f"All {found['tests']['passed']} GPU tests passed. The demo with one GPU member ran to its end:\n"
        f"{checks} of {checks} hash comparisons were equal. Tiers 0, 1 and 2 of `test` held {held} GB in bf16.\n"
        f"A plain PyTorch loop trains {found['large']['plain']['tokens_per_s']:,} tokens/s of 124 M parameters."
    )
    return f"{table(heads, rows)}\n\n{note}"


def several_devices() -> str:
    found = figures("ranks")
    rows = [
        (
            label,
            f"{found[name]['first_ratio']:.2f}",
            f"{found[name]['most_of_moments']:.0%}",
            f"{found[name]['first_cpu_ratio']:.2f}",
        )
        for name, label in (("adamw", "AdamW"), ("muon", "Muon"))
    ]
    return table(
        (
            "inner optimizer",
            "bytes of rank 0 (ratio sharded / unsharded)",
            "largest part of moments",
            "CPU time of rank 0 (ratio sharded / unsharded)",
        ),
        rows,
    )


def threads() -> str:
    found = figures("spinning")
    rows = [
        (label, *(f"{ratio:.1f}" for ratio in found[key]["sleeping_over_spinning"]))
        for key, label in (("alone", "alone"), ("next_to_one", "next to one busy process"))
    ]
    return table(
        ("speed of sleeping threads over spinning ones", "tier 0", "tier 1", "tier 2"), rows
    )


DIFFERENCES = {
    "again": "nothing: the same GPU again",
    "micro": "half the micro-batch",
    "cpu": "the CPU instead of the GPU",
    "other": "bf16 instead of fp32",
    "skip_1": "one of 30 inner steps left out",
    "skip_3": "three left out",
    "direction": "5% added along a fixed direction",
    "other_data": "other data",
    "stale": "the weights of the round before",
}


def repeating_bf16() -> str:
    """Return what differs between bf16 passes of one CPU, and how fast members with audits are."""
    spread = figures("spread-bf16")
    cases = [next(iter(spread[name].values()))["kept"] for name in ("adamw", "muon")]
    assert all(case[key]["equal"] for case in cases for key in ("again", "threads"))
    adamw, muon = (case["micro"]["whole"] for case in cases)
    over = figures("audit-cost")["over_before"]
    speeds = " and ".join(f"{ratio:.2f} with {percent}% audits" for percent, ratio in over.items())
    return (
        f"In bf16 on a CPU, one and two threads compute equal bits. Half the micro-batch differs by "
        f"{adamw:.2g} (AdamW) and {muon:.2g} (Muon). Tokens per CPU second of members, over those of "
        f"code that keeps nothing for audits: {speeds}."
    )


def recomputing() -> str:
    """Return how far two computations of one pseudo-gradient are apart, and the cost of roots."""
    spread = figures("spread")
    rows = [
        (label, *(f"{spread[name]['30']['kept'][key]['whole']:.2g}" for name in ("adamw", "muon")))
        for key, label in DIFFERENCES.items()
    ]
    roots = figures("roots")
    note = (
        "Each cell is the norm of the difference divided by the norm of the pseudo-gradient (H200,\n"
        "30 inner steps, fp32). Hashing the private state takes at most "
        f"{roots['cpu_of_round']:.2%} of the CPU time of a round. Copying it takes\n"
        f"{roots['copy_cpu_of_round']:.2%} (8.5 M parameters, CPU).\n\n"
        f"{repeating_bf16()}"
    )
    return f"{table(('what differs', 'AdamW inside', 'Muon inside'), rows)}\n\n{note}"


def drafts() -> str:
    found = figures("draft")
    rows = [
        (
            label,
            *(
                f"{found[key][way]['by_draft']['2']['over_alone']:.2f}"
                for way in ("greedy", "drawn")
            ),
            f"{found[key]['greedy']['by_draft']['2']['taken']:.0%}",
        )
        for key, label in (("width", "cut by width"), ("depth", "half of the layers"))
    ]
    return table(
        (
            "tier 2 as draft (0.2 M parameters, CPU)",
            "speed, greedy",
            "speed, sampled",
            "guesses taken",
        ),
        rows,
    )


ATTACKS = """One member of tier 0 attacks three honest members in an epoch of four rounds. *round time* is the
median round time divided by that of an epoch without an attack. Unless a row says otherwise, all
due sequences were trained, and all honest members stayed, applied all rounds and had equal
replicas."""


def attacks() -> str:
    """Return what became of each attacker and its epoch."""
    found = figures("hostile")["rows"]
    by_end: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(found, key=lambda one: one["attack"] != "none"):
        by_end.setdefault(_end_of_attack(row), []).append(row)
    rows = []
    for end, alike in by_end.items():
        ratios = [row["against_control"] for row in alike]
        names = dict.fromkeys(row["attack"] for row in alike)
        range_of = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
        rows.append((end, " to ".join(range_of), "; ".join(names)))
    known = [f"- *{row['attack']}*: {row['known']}." for row in found if row["known"]]
    heads = ("attacker", "round time", "attacks")
    return "\n".join([ATTACKS, "", table(heads, rows), "", "Known effects:", "", *known])


def _end_of_attack(row: dict[str, Any]) -> str:
    """Return what became of an attacker, and of the others if they were harmed."""
    dropped_at = row["attacker_dropped_at"]
    if row["attack"] == "none":
        ends = ["(control)"]
    else:
        ends = ["stays" if dropped_at is None else f"dropped in round {dropped_at}"]
    harm = {
        "barred": row["attacker_kept_out"],
        f"**{row['trained']} of {row['due']} trained**": row["trained"] < row["due"],
        f"**{row['honest_dropped']} honest members dropped**": row["honest_dropped"],
        "**honest members missed rounds**": row["honest_applied"] < row["rounds"],
        "**replicas differ**": not row["replicas_equal"],
        f"**{row['levels_attested']} of {row['levels']} levels attested**": (
            row["levels_attested"] < row["levels"]
        ),
    }
    return ", ".join([*ends, *(text for text, is_true in harm.items() if is_true)])


def audited_attacks() -> str:
    return audit_tables.tables(figures("hostile"))


def unequal() -> str:
    return learning_tables.tables_of_unequal(figures("heterogeneity"), strips=figures("rolling"))


def realistic() -> str:
    own = learning_tables.table_of_realistic(figures("worth")[learning_tables.REALISTIC])
    other = json.loads((MEASURED / "independent" / "lab.json").read_text())
    return f"{own}\n\n{learning_tables.table_of_independent(other)}"


def arms() -> str:
    by_parameters = figures("worth")[learning_tables.REALISTIC].values()
    return learning_tables.tables_of_arms(sizes(), {found["size"] for found in by_parameters})


def sizes() -> dict[str, Any]:
    return learning_tables.sizes_of(figures("worth"))


SECTIONS: dict[str, tuple[Sequence[str], Callable[[], str]]] = {
    "The demonstration": (["demo"], demo),
    "Memory of a member": (["memory"], memory),
    "Speed of a member's work": (["step", "codec", "distro"], speed),
    "Where a round's time goes": (["round"], rounds),
    "Peers, networks and data": (["p2p", "localnet", "central", "data"], networks),
    "Large results on home lines": (["wan"], home_lines),
    "The programs": (["chain"], programs),
    "On a GPU": (["gpu"], gpu),
    "Several devices": (["ranks"], several_devices),
    "Threads on a shared CPU": (["spinning"], threads),
    "Recomputing a result": (["spread", "spread-bf16", "roots", "audit-cost"], recomputing),
    "A small tier as draft model": (["draft"], drafts),
    "Attacks": (["hostile"], attacks),
    "Attacks under audits": ([], audited_attacks),
    "Steps of realistic length": (["worth"], realistic),
    "What joining is worth": (["worth"], lambda: learning_tables.table_of_worth(sizes())),
    "The bars": (["worth"], lambda: learning_tables.table_of_bars(sizes())),
    "Arms": (["worth"], arms),
    "Unequal members": (["heterogeneity", "rolling"], unequal),
    "Ideas": (["ideas"], lambda: learning_tables.table_of_ideas(figures("ideas"))),
}
"""Heading of each section, the benchmarks behind it, and the function that renders it."""


def page() -> str:
    """Return the whole page. Raises OSError if a benchmark has no file."""
    parts = [INTRODUCTION]
    for title, (names, render) in SECTIONS.items():
        sources = ", ".join(f"`{kept(name)['command']}`" for name in names)
        origin = f"From {sources}.\n\n" if names else ""  # else the section says it itself
        parts.append(f"## {title}\n\n{origin}{render()}")
    lines = "\n\n".join(parts).splitlines()
    return "\n".join(line if line.startswith("|") else _wrapped(line) for line in lines) + "\n"


def with_choices(text: str) -> str:
    """Return the text of a page with the current table of settings in place of its first table."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    last = next(number for number, line in enumerate(lines) if number > first and not line)
    choices = learning_tables.table_of_choices(figures("worth")[learning_tables.REALISTIC])
    return "\n".join([*lines[:first], choices, *lines[last:]]) + "\n"


def _wrapped(line: str) -> str:
    indent = "  " * line.startswith("- ")
    return textwrap.fill(line, 100, subsequent_indent=indent, break_on_hyphens=False)


def main() -> int:
    """Write the pages that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, metavar="PAGE", help="the Markdown page to write")
    parser.add_argument(
        "choices", type=Path, nargs="?", metavar="CHOICES", help="the page with settings to choose"
    )
    options = parser.parse_args()
    try:
        options.page.write_text(page())
        if options.choices is not None:
            options.choices.write_text(with_choices(options.choices.read_text()))
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        print("fix: name a file in a directory that exists", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
