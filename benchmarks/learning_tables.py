"""Markdown tables of what was learnt: worth of joining, bars, arms, unequal members, ideas.

benchmarks/quote.py puts them into docs/measurements.md. They do not read files: each function gets
the figures of its benchmark.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

# the arm of eight members that learns most, as benchmarks/arms.toml names it
WINNER = "outer-4-muon"
UNKNOWN = "–"  # a figure that was not measured
# the key of the figures with steps of realistic length, next to those of the sizes
REALISTIC = "realistic"


def table(heads: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    names = [str(head) for head in heads]
    lines = [names, ["---"] * len(names), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sizes_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of worth.py by size."""
    return {size: found for size, found in figures.items() if size != REALISTIC}


def table_of_choices(measured: Mapping[str, Any]) -> str:
    """Return the recommended settings by model size and members, and their worth."""
    heads = (
        "model",
        "members",
        "line",
        "settings",
        "tokens worth",
        "worth, 2 s a step",
        "0.5 s a step",
    )
    rows = []
    for parameters, found in measured.items():
        for members, name in found["recommended"].items():
            arm = found["arms"][name]
            settings = settings_text(arm["settings"])
            rows.append((parameters, members, found["line"], settings, *_worths(arm)))
    return table(heads, rows)


def table_of_realistic(measured: Mapping[str, Any]) -> str:
    """Return what members reached with steps of realistic length."""
    parts = [
        "A machine's step has at least 4,096 tokens. *tokens worth*: the steps that one machine needs to\n"
        "the same loss, divided by the steps of a member. *worth*: that, times the share of a round spent\n"
        "training, with lines of 110 Mb/s up and 500 Mb/s down. *bytes* are per parameter and step. An\n"
        "arm has one seed, or the mean of several with their range. A dash: the loss is outside of what\n"
        "one machine reached."
    ]
    for parameters, found in measured.items():
        rows = []
        for name, arm in found["arms"].items():
            sent = f"{arm['bytes_per_parameter_step']:.4f}"
            muon = _or_unknown(arm["tokens_worth_muon"], "{:.1f}")
            seeds = f", {arm['seeds']} seeds" if arm["seeds"] > 1 else ""
            lasts = f"{arm['members']}×{arm['steps']}"
            held_out = f"{arm['held_out']:.3f}{_in_brackets(arm['held_out_range'], digits=3)}"
            rows.append((f"`{name}`{seeds}", lasts, sent, held_out, *_worths(arm), muon))
        heads = (
            "arm",
            "members×steps",
            "bytes",
            "held out",
            "tokens worth",
            "worth, 2 s a step",
            "0.5 s a step",
            "against `muon`",
        )
        parts.append(f"### {parameters} parameters, steps of realistic length")
        parts.append("\n".join(_alone(found["alone"])))
        parts.append(table(heads, rows))
    return "\n\n".join(parts)


def table_of_independent(measured: Mapping[str, Any]) -> str:
    """Return the independent study's results with larger models."""
    least = min(measured["alone"].values())
    rows = []
    for arm in measured["arms"]:
        sent = _or_unknown(arm["bytes"], "{:.4f}")
        beyond = arm["tokens_worth"] is None and arm["held_out"] < least
        worth = "more than 8" if beyond else _or_unknown(arm["tokens_worth"], "{:.1f}")
        rows.append((arm["arm"], sent, f"{arm['held_out']:.3f}", worth))
    note = (
        f"This table is from {measured['what']}. {measured['model']}; {measured['members']} members with "
        f"{measured['tokens_of_member_step']:,} tokens per step and {measured['steps']:,} steps; Muon "
        "inside, all numbers in 2 bits unless it says otherwise."
    )
    return f"### Another laboratory\n\n{note}\n\n{table(('arm', 'bytes', 'held out', 'tokens worth'), rows)}"


def _alone(measured: Mapping[str, Mapping[str, float]]) -> Iterable[str]:
    """Yield for each arm of one machine its losses by steps."""
    for name, losses in measured.items():
        ends = [f"{loss:.3f} after {int(steps):,}" for steps, loss in losses.items()]
        yield f"- One machine, `{name}`: held out {', '.join(ends)} steps."


def _worths(arm: Mapping[str, Any]) -> tuple[str, ...]:
    tokens = _or_unknown(arm["tokens_worth_adamw"], "{:.1f}")
    tokens += _in_brackets(arm["tokens_worth_adamw_range"], digits=1)
    return (tokens, *(_or_unknown(value, "{:.1f}") for value in arm["worth_adamw"].values()))


def _in_brackets(ends: Sequence[float] | None, digits: int) -> str:
    """Return the range of several seeds after a value; nothing for a single seed."""
    return f" ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})" if ends else ""


def _or_unknown(value: float | None, shown: str) -> str:
    return UNKNOWN if value is None else shown.format(value)


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return an arm's settings as keys of a config."""
    named = {
        "inner_steps": "inner_steps",
        "inner_optimizer": "inner_optimizer",
        "topk": "compression_topk",
        "mean": "divisor",
        "outer_lr": "outer_lr",
        "outer_momentum": "outer_momentum",
        "orthogonal_lr": "orthogonal_lr",
    }
    return ", ".join(
        f"`{key}={json.dumps(settings[name])}`" for name, key in named.items() if name in settings
    )


def table_of_worth(measured: Mapping[str, Any]) -> str:
    """Return for every size what eight members are worth, and from which step length on."""
    goals = (2, 4, 6)
    heads = (
        "size",
        "by tokens alone",
        "CPU",
        "worth without protocol time",
        "worth",
        *(f"step for {goal}" for goal in goals),
    )
    rows = []
    for size, found in measured.items():
        ends = found["arms"].get(WINNER, {"ends": []})["ends"]
        if not ends or (against := ends[-1].get("against_adamw")) is None:
            continue
        for machine, told in sorted(against["by_processor"].items())[:1]:
            needed = found["step_seconds_for"][machine].values()
            rows.append(
                (
                    size,
                    f"{8 * against['token_efficiency']:.2f}",
                    machine,
                    f"{told['worth_without_protocol']:.2f}",
                    f"{told['worth']:.2f}",
                    *map(from_step, needed),
                )
            )
    note = (
        "Eight members of the arm `outer-4-muon` compared with one machine with AdamW. *worth* is the\n"
        "time that one machine needs to reach a loss, divided by the time that eight members need.\n"
        "*step for 4* is the shortest step for which eight members are worth four. The brackets show\n"
        "the range if worth is 10% higher or lower."
    )
    return f"{note}\n\n{table(heads, rows)}"


def from_step(seconds: Sequence[float | None]) -> str:
    """Return the step length for a worth: if members are worth 10% more, as measured, 10
    % less.
    """
    more, same, less = seconds
    if more is None:
        return "never"
    if same is None or less is None:
        return f"at best {more:.1f} s, at worst never"
    return f"{same:.2f} s ({more:.2f} to {less:.2f})"


BARS = (
    ("loss over AdamW with all sequences", "loss_over_adamw", 0.01),
    ("loss over Muon with all sequences", "loss_over_muon", 0.03),
    ("bytes per parameter and step", "bytes_per_parameter_step", 0.0009),
)


def table_of_bars(measured: Mapping[str, Any]) -> str:
    """Return what eight members reached against the bars; bold misses the bar."""
    heads = ("size", *(f"{label}, bar {bar:g}" for label, _, bar in BARS), "best rate at an edge")
    rows = []
    for size, found in measured.items():
        if found["loss_over_adamw"] is None:
            continue
        cells = [_against_bar(found, key=key, bar=bar) for _, key, bar in BARS]
        rows.append((size, *cells, ", ".join(dict.fromkeys(_at_edge(found)))))
    note = (
        "Eight members in the longest run of each size, compared with the targets (bars). Bold values\n"
        "miss their target."
    )
    return f"{note}\n\n{table(heads, rows)}"


def _against_bar(found: Mapping[str, Any], key: str, bar: float) -> str:
    value = found[key]
    if value is None:
        return UNKNOWN
    shown = f"{value:+.1%}" if key.startswith("loss") else f"{value:.4f}"
    if (reach := found.get(f"{key}_interval")) is not None:
        shown += f" ± {reach:.1%}"
    return shown if value <= bar else f"**{shown}**"


def _at_edge(found: Mapping[str, Any]) -> Iterable[str]:
    """Yield the arms of the bars whose best rate is the lowest or highest that was tried."""
    end = found["arms"][WINNER]["ends"][-1]
    for name in (WINNER, "adamw-8x", "muon-8x"):
        ends = found["arms"].get(name, {"ends": []})["ends"]
        if any(is_at_edge(one) for one in ends if one["steps"] == end["steps"]):
            yield f"`{name}`"


def is_at_edge(end: Mapping[str, Any]) -> bool:
    """Return whether the best rate of an end is the lowest or highest that was tried."""
    return f"{end['lr']:g}" in (min(end["by_rate"], key=float), max(end["by_rate"], key=float))


def tables_of_arms(measured: Mapping[str, Any], elsewhere: Container[str] = ()) -> str:
    """Return the longest training of every arm, size by size.

    Sizes in `elsewhere` have only pictures, because another section has their table.
    """
    apart = {kind: f"{one['apart']:.3f}" for kind, one in measured["1M"]["noise"].items()}
    parts = [
        "*held out* is the held-out loss in nats per byte after the longest training of each arm; steps\n"
        "are of one member. *bytes* is per parameter and step. Two trainings with different seeds differ\n"
        f"in 95% of cases by at most {apart['polar']} with Muon at the apply, {apart['machine']} for one\n"
        f"machine, and {apart['mean']} with the mean or DisTrO.\n"
        "benchmarks/arms.toml describes each arm."
    ]
    for size, found in measured.items():
        if len(found["arms"]) == 1:
            continue
        rows = []
        for name, arm in found["arms"].items():
            end = arm["ends"][-1]
            reach = "" if end["interval"] is None else f" ± {end['interval']:.3f}"
            sent = arm["bytes_per_parameter_step"]
            rows.append(
                (
                    f"`{name}`",
                    f"{arm['members']}×{end['steps']}",
                    f"{end['held_out']:.3f}{reach}",
                    f"{sent:.4f}" if sent else UNKNOWN,
                )
            )
        heads = ("arm", "members×steps", "held out", "bytes")
        parts.append(f"### {named(size)}")
        if is_plotted(found):
            parts.append(f"![loss by steps](assets/experiments-{size}.svg)")
        if size not in elsewhere:
            parts.append(table(heads, rows))
        if has_curve(found):
            parts.append(_bytes_at_loss(size, found["bytes_at_loss"]))
    return "\n\n".join(parts)


def named(size: str) -> str:
    """Return a size in words: its parameters, and the step if the size names it: its sequences, or
    `k` for thousands of tokens.
    """
    parameters, _, step = size.partition("-")
    if step.endswith("k"):
        return f"{parameters} parameters, {step} tokens a step"
    sequences = f", {step} sequences a step" if step else ""
    return f"{parameters} parameters{sequences}"


def is_plotted(found: Mapping[str, Any]) -> bool:
    """Return whether a size has more than one point to draw."""
    return sum(len(arm["ends"]) for arm in found["arms"].values()) > 1


def has_curve(found: Mapping[str, Any]) -> bool:
    """Return whether eight members were trained with different numbers of bytes at one length."""
    return any(len(one["points"]) > 1 for one in found["bytes_at_loss"].values())


def _bytes_at_loss(size: str, lengths: Mapping[str, Any]) -> str:
    lines = [f"![loss by bytes](assets/experiments-{size}-bytes.svg)", ""]
    lines += [
        f"- {int(steps):,} steps: bytes per parameter and step to reach AdamW's loss plus 1%: {bytes_needed(one)}."
        for steps, one in lengths.items()
    ]
    return "\n".join(lines)


def bytes_needed(own: Mapping[str, Any]) -> str:
    """Return the bytes at which the curve crosses the bar, and between which arms."""
    for fewer, more in pairwise(point for point in own["points"] if point["on_curve"]):
        if more["held_out"] <= own["bar"] < fewer["held_out"]:
            return f"{own['bytes_for_bar']:.5f}, on a line from `{fewer['arm']}` to `{more['arm']}`"
    return "all of these" if own["points"][0]["held_out"] <= own["bar"] else "none of these"


def _with_interval(gain: float, reach: float | None) -> str:
    return f"{gain:+.3f}" if reach is None else f"{gain:+.3f} ± {reach:.3f}"


def tables_of_unequal(measured: Mapping[str, Any], strips: Mapping[str, Any]) -> str:
    """Return how much unequal members gain from each other."""
    parts = [
        "Gain in nats per byte of held-out loss, with a 95% interval. `static` sends few numbers and\n"
        "applies the mean; the other kinds send all numbers, with Muon inside and at the apply."
    ]
    parts.append("![held-out loss by tier](assets/experiments-unequal.svg)")
    parts.append("![held-out loss by the way of cutting](assets/experiments-unequal-kinds.svg)")
    rows = [
        (kind, size, one["question"], _with_interval(one["gain"], one["interval"]), one["seeds"])
        for kind, sizes in measured.items()
        for size, found in sizes.items()
        for one in found["gains"]
    ]
    parts.append(table(("trained with", "size", "question", "gain", "seeds"), rows))
    for kind, sizes in measured.items():
        share = next(iter(sizes.values()))["recovered_per_compute"]
        if share is not None:
            parts.append(
                f"`{kind}`: for the same compute, two small members contribute {share:.2f} times as much\n"
                "as two large ones."
            )
    labels = {
        "stays": "always the prefix",
        "every_40": "drawn every 40 rounds",
        "every_10": "every 10",
    }
    drawn = [
        (label, *(f"{strips[key][tier]:.3f}" for tier in "012")) for key, label in labels.items()
    ]
    parts.append(table(("strips of small tiers", "tier 0", "tier 1", "tier 2"), drawn))
    return "\n\n".join(parts)


def table_of_ideas(measured: Mapping[str, Any]) -> str:
    """Return each idea's gain over its baseline arm."""
    rows = []
    for name, arm in measured["arms"].items():
        against = ", ".join(f"`{other}`" for other in arm["gains"])
        shown = [
            ", ".join(_with_interval(one["gain"], one["interval"]) for one in found.values())
            for found in arm["gains"].values()
        ]
        gains = "; ".join(shown)
        rows.append((f"`{name}`", arm["seeds"], gains, against))
    return table(("arm", "seeds", "gain by tier (nats per byte)", "against"), rows)
