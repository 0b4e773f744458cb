"""Puts the measured figures into the pages that quote them; `make docs` calls it.

    python benchmarks/quote.py docs/*.md

A quoted figure stands between two comments, which a reader of the page does not see:

    in <!-- demo.rounds -->120<!-- / --> rounds          demo.rounds of benchmarks/measured/demo.json
    <!-- memory.test.state.0 /1e9 .1f -->15.5<!-- / -->   divided, and formatted as Python does

The first comment says where the figure is: the file, the way through its JSON, then, if wanted, a factor (`/N` or
`*N`) and a format. A block is a whole report, or a table that `BLOCKS` renders, between `<!-- block: NAME -->` and
`<!-- /block -->`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).resolve().parent / "measured"
QUOTE = re.compile(r"<!-- ([a-z0-9]+(?:\.[\w+]+)+)((?: [*/][\d.e]+)?)((?: [,.\w]+)?) -->(.*?)<!-- / -->")
BLOCK = re.compile(r"<!-- block: (\w+) -->\n(.*?)<!-- /block -->", re.DOTALL)


GOALS = 3
WINNER = "outer-4-muon"
"""Of eight members, as benchmarks/arms.toml has it."""
UNKNOWN = "–"
"""Stands for a figure of a benchmark that has not been run."""


class BadQuote(Exception):
    """A page names a figure that no benchmark gives."""


class NotMeasured(BadQuote):
    """A page names a figure of a benchmark that has not been run."""


def kept(name: str) -> Any:
    """The file of the benchmark of this name: its command, the machine, and what it measured last."""
    try:
        return json.loads((MEASURED / f"{name}.json").read_text())
    except OSError:
        raise NotMeasured(f"there is no benchmarks/measured/{name}.json") from None


def figures(name: str) -> Any:
    """What the benchmark of this name measured last."""
    return kept(name)["figures"]


def value_at(path: str) -> Any:
    """The figure at FILE.KEY.KEY…; a number among the keys counts in a list."""
    name, *keys = path.split(".")
    found = figures(name)
    for key in keys:
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise BadQuote(f"benchmarks/measured/{name}.json has no {path}") from None
    return found


def figure(path: str, factor: str = "", form: str = "") -> str:
    """The figure as it is printed. Whole numbers get separators unless a format is given. Raises BadQuote."""
    try:
        value = value_at(path)
    except NotMeasured:
        return UNKNOWN
    if not isinstance(value, int | float):
        raise BadQuote(f"{path} is no number")
    if factor := factor.strip():
        number = float(factor[1:])
        value = value * number if factor[0] == "*" else value / number
    return format(value, form.strip() or ("," if isinstance(value, int) else ""))


def table_of_units() -> str:
    """Compute units by instruction and number of members."""
    measured = figures("chain")
    units: Mapping[str, list[int | None]] = measured["compute_units"]
    sizes = measured["members"]
    heads = ["instruction", f"{sizes[0]} members", *map(str, sizes[1:])]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name, counts in units.items():
        shown = [f"{count:,}" if count is not None else "" for count in counts]
        word, _, more = name.partition(" ")
        lines.append(f"| `{word}`{f' {more}' if more else ''} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


MODELS = {"light": "`light`", "preset": "`llama-20m`", "test": "`test`"}
"""Of benchmarks/memory.py, and what pages call them."""


def table_of_memory() -> str:
    """What a member holds by model and tier: numbers of the model and its optimizer, and what comes and goes."""
    lines = [
        "| model | tier | parameters | state | activations and results | with layers computed twice | at most |",
        "|---|---|---|---|---|---|---|",
    ]
    found = figures("memory")
    for model, called in MODELS.items():
        columns = (found[model][name] for name in ("parameters", "state", "peak", "recomputed"))
        for tier, (parameters, state, peak, recomputed) in enumerate(zip(*columns, strict=True)):
            held = (state, peak - state, recomputed - state)
            cells = (f"{count / 1e9:.2f} GB" for count in held)
            most = f"{peak / 1e9:.2f}, {recomputed / 1e9:.2f} GB"
            lines.append(f"| {called} | {tier} | {parameters / 1e6:.1f} M | {' | '.join(cells)} | {most} |")
    return "\n".join(lines) + "\n"


def memory_of_recipes() -> str:
    """What a member of the recipes `light` and `test` holds by tier, and what that means for a GPU."""

    def held(path: str, form: str) -> str:
        return figure(path, "/1e9", form)

    lines = ["| model and its sequences | tier 0 | tier 1 | tier 2 | tier 3 |", "|---|---|---|---|---|"]
    for name, length, form in (("light", 512, ".2f"), ("test", 2048, ".1f")):
        count = figures("memory")[name]["parameters"][0]
        shown = f"{count / 1e9:.2f} B" if count > 5e8 else f"{count / 1e6:.1f} M"
        cells = [f"`{name}` ({shown} parameters, sequences of {length})"]
        for tier in range(4):
            peak = held(f"memory.{name}.peak.{tier}", form)
            recomputed = held(f"memory.{name}.recomputed.{tier}", form)
            cells.append(f"{peak} ({recomputed}) GB")
        lines.append(f"| {' | '.join(cells)} |")
    large = [held(f"gpu.memory.test.bf16.{tier}", ".1f") for tier in range(3)]
    said = (
        "An 8 GB laptop GPU has room for tier 2 of a model of a billion parameters, with both options: its numbers "
        f"take {held('memory.test.state.2', '.1f')} GB, a quarter of which lies on the host, and activations the rest "
        "([both apart](operations.md#memory), for three models). That is counted in fp32; in bf16, which a GPU "
        f"takes by itself, the sum is {held('memory.laptop.peak', '.2f')} GB. On a large GPU (NVIDIA H200) the tiers "
        f"0, 1 and 2 of `test` held at most {large[0]}, then {large[1]} and {large[2]} GB in bf16 with the first "
        "option alone; a small GPU, and the second option, were not tried."
    )
    return "\n".join([*lines, "", *textwrap.wrap(said, 120, break_on_hyphens=False)]) + "\n"


def pages_of_experiments() -> str:
    """For every size a picture, and for every question a table of its arms."""
    parts = []
    for size, found in figures("worth").items():
        asked: dict[str, list[tuple[str, Any]]] = {}
        for name, arm in found["arms"].items():
            asked.setdefault(arm["question"], []).append((name, arm))
        parts.append(f"## {size} parameters\n\n![loss by steps](experiments-{size}.svg)\n\n")
        if found["missing"]:
            parts.append(f"{_not_trained(found)}\n\n")
        if has_curve(found):
            parts.append(_bytes_at_loss(size, found["bytes_at_loss"]))
        for question, those in asked.items():
            parts.append(f"### {size}: {question}\n\n{_table_of_arms(those, processors_of(found))}\n")
    return "".join(parts)


def processors_of(found: Mapping[str, Any]) -> list[str]:
    """The processors of which a size has any worth."""
    ends = [end for arm in found["arms"].values() for end in arm["ends"]]
    return sorted({machine for end in ends for machine in end.get("against_adamw", {}).get("by_processor", {})})


def table_of_worth() -> str:
    """For every size and processor what eight members are worth, what they could be at most, and from which step on."""
    heads = (
        "size",
        "by their tokens at most",
        "seconds of processor",
        "worth without the protocol's time",
        "with it",
        *(f"from this step on {worth}" for worth in (2, 4, 6)),
    )
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for size, found in figures("worth").items():
        ends = found["arms"].get(WINNER, {"ends": []})["ends"]
        if not ends or (against := ends[-1].get("against_adamw")) is None:
            continue
        ends_of = (UNKNOWN if at is None else f"{at / ends[-1]['steps']:.1f}" for at in against["steps_alone_range"])
        tokens = f"{8 * against['token_efficiency']:.2f} ({' to '.join(ends_of)})"
        for machine in (machine for machine in processors_of(found) if machine in against["by_processor"]):
            told, needed = against["by_processor"][machine], found["step_seconds_for"][machine]
            worth = (f"{told['worth_without_protocol']:.2f}", f"{told['worth']:.2f}")
            lines.append(f"| {' | '.join((size, tokens, machine, *worth, *map(_from_step, needed.values())))} |")
    return "\n".join(lines) + "\n"


def _from_step(seconds: Sequence[float | None]) -> str:
    """From which length of a step on: if members are worth a tenth more than measured, as much, and a tenth less."""
    more, same, less = seconds
    if more is None:
        return "never"
    if same is None or less is None:
        return f"hardly: {more:.1f} s or never"
    return f"{same:.2f} s ({more:.2f} to {less:.2f})"


def table_of_bars() -> str:
    """For every size what eight members reached, beside the bars they are held to."""
    lines = [
        f"| {' | '.join(('size', *(f'{what}: {bar}' for what, _, _, bar in BARS), AT_EDGE))} |",
        f"|{'---|' * (len(BARS) + 2)}",
    ]
    for size, found in figures("worth").items():
        if found["loss_over_adamw"] is not None:
            cells = (*(_against_bar(found, *one) for one in BARS), ", ".join(_at_edge(found)))
            lines.append(f"| {size} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


AT_EDGE = "best rate at the edge of those tried, or the only one"


def _at_edge(found: Mapping[str, Any]) -> Iterable[str]:
    """Arms of the bars whose best rate is the least or the largest tried: a better one may lie beyond.

    Of machines alone, at the lengths between which members' loss lies.
    """
    end = found["arms"][WINNER]["ends"][-1]
    for name in (WINNER, "adamw-8x", "muon-8x"):
        at = [one for one in found["arms"].get(name, {"ends": []})["ends"] if one["steps"] == end["steps"]]
        if any(map(is_at_edge, at)):
            yield f"`{name}`"
    for name in ("adamw", "muon"):
        needed = end.get(f"against_{name}", {}).get("steps_alone")
        ends = found["arms"].get(name, {"ends": []})["ends"]
        for few, many in pairwise(ends) if needed else ():
            if few["steps"] <= needed <= many["steps"]:
                yield from (f"`{name}` after {one['steps']:,} steps" for one in (few, many) if is_at_edge(one))


def is_at_edge(end: Mapping[str, Any]) -> bool:
    """Whether the best rate of an end is the least or the largest that was tried."""
    return f"{end['lr']:g}" in (min(end["by_rate"], key=float), max(end["by_rate"], key=float))


BARS: tuple[tuple[str, str, float, str], ...] = (
    ("loss over AdamW with all sequences", "loss_over_adamw", 0.01, "at most 1%"),
    ("loss over Muon with all sequences", "loss_over_muon", 0.03, "at most 3%"),
    ("bytes for each parameter and step", "bytes_per_parameter_step", 0.0009, "at most 0.0009"),
    ("worth against AdamW", "worth_adamw", -6, "at least 6"),
    ("worth against Muon", "worth_muon", -4, "at least 4"),
)
"""What it is, where it stands, and the bar: the most, or with a minus the least."""


def _against_bar(found: Mapping[str, Any], what: str, key: str, bar: float, _: str) -> str:
    if what.startswith("worth"):
        return _worth_against_bar(found, key, -bar)
    if (value := found[key]) is None:
        return UNKNOWN
    shown = f"{value:+.1%}" if what.startswith("loss") else f"{value:.4f}"
    if found.get(f"{key}_interval") is not None:
        shown += f" ± {found[f'{key}_interval']:.1%}"
    return shown if value <= bar else f"**{shown}**"


def _worth_against_bar(found: Mapping[str, Any], key: str, bar: float) -> str:
    """By processor; of tokens alone where none has both."""
    if not (told := found[key]["8"]):
        most = found[f"{key}_at_most"]["8"]
        return UNKNOWN if most is None or most >= bar else f"**at most {most:.2f}**"
    shown = (f"{told[machine]:.2f} ({machine})" for machine in processors_of(found) if machine in told)
    return ", ".join(shown if max(told.values()) >= bar else (f"**{one}**" for one in shown))


def has_curve(found: Mapping[str, Any]) -> bool:
    """Whether eight members were trained with different bytes, at a length that AdamW with all sequences has too."""
    return any(len(own["points"]) > 1 for own in found["bytes_at_loss"].values())


def _bytes_at_loss(size: str, lengths: Mapping[str, Any]) -> str:
    """What sending less costs, with a picture."""
    parts = [f"### {size}: what sending less costs eight members\n\n![loss by bytes](experiments-{size}-bytes.svg)\n\n"]
    for steps, own in lengths.items():
        needed = _needed(own)
        said = (
            f"After {int(steps):,} steps. The bar is {own['bar']:.3f}: one percent more than AdamW with all sequences. "
            f"Bytes for each parameter and step that reach it: {needed}."
        )
        lines = [
            *textwrap.wrap(said, 120),
            "",
            "| arm | bytes per parameter and step | held out | over AdamW with all sequences | on the curve |",
            f"|{'---|' * 5}",
        ]
        for point in own["points"]:
            on = "yes" if point["on_curve"] else ""
            lines.append(
                f"| `{point['arm']}` | {point['bytes']:.5f} | {point['held_out']:.3f} | {point['over']:+.1%} | {on} |"
            )
        parts.append("\n".join(lines) + "\n\n")
    return "".join(parts)


def _needed(own: Mapping[str, Any]) -> str:
    """The bytes at which the curve crosses the bar, and between which arms."""
    for fewer, more in pairwise(point for point in own["points"] if point["on_curve"]):
        if more["held_out"] <= own["bar"] < fewer["held_out"]:
            return f"{own['bytes_for_bar']:.5f}, on a line from `{fewer['arm']}` to `{more['arm']}`"
    return "all of these" if own["points"][0]["held_out"] <= own["bar"] else "none of these"


def tables_of_ideas() -> str:
    """For every question what its ideas reached, and gained against the arm that each is held against."""
    found = figures("ideas")
    asked: dict[str, list[tuple[str, Any]]] = {}
    for name, arm in found["arms"].items():
        asked.setdefault(arm["question"], []).append((name, arm))
    parts = [f"{_not_trained(found)}\n"] if found["missing"] else []
    for question, those in asked.items():
        lines = [f"### Ideas: {question}", "", f"| {' | '.join(_IDEAS_SAY)} |", f"|{'---|' * len(_IDEAS_SAY)}"]
        for name, arm in those:
            words = [
                f"`{name}`",
                f"{arm['members']}",
                f"{arm['steps']:,}",
                f"{arm['seeds']}",
                f"{arm['bytes_per_parameter_step']:.5f}",
                _by_tier(arm["held_out"], lambda loss: f"{loss:.3f}"),
                "; ".join(f"`{other}`: {_by_tier(gained, _gained)}" for other, gained in arm["gains"].items()),
                arm["expected"],
            ]
            lines.append(f"| {' | '.join(words)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


_IDEAS_SAY = (
    "arm",
    "members",
    "steps of a machine",
    "seeds",
    "bytes per parameter and step",
    "held out",
    "gain, against which arm",
    "expected",
)


def _by_tier(found: Mapping[str, Any], shown: Callable[[Any], str]) -> str:
    """Of one tier alone without its name."""
    if len(found) == 1:
        return shown(*found.values())
    return ", ".join(f"tier {tier}: {shown(one)}" for tier, one in found.items())


def _gained(one: Mapping[str, Any]) -> str:
    reach = "" if one["interval"] is None else f" ± {one['interval']:.3f}{' (clear)' if one['clear'] else ''}"
    return f"{one['gain']:+.3f}{reach}"


def tables_of_unequal() -> str:
    """For every kind and size what each arm of unequal members reached, and who gained by whom."""
    kinds = figures("heterogeneity").items()
    parts = [_goals_of_unequal(kinds)]
    parts += [_of_unequal(kind, size, found) for kind, sizes in kinds for size, found in sizes.items()]
    return "\n".join(parts)


def _goals_of_unequal(kinds: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Of what is trained on everything that a goal asks for."""
    lines = ["### The three goals", "", "| goal | trained by | measured | met |", f"|{'---|' * 4}"]
    for kind, sizes in kinds:
        for size, found in sizes.items():
            for one in found["goals"] if len(found["goals"]) == GOALS else ():
                met = "yes" if one["met"] else "**no**"
                lines.append(f"| {one['goal']} | {kind}, {size} | {_measured_goal(one['measured'])} | {met} |")
    return "\n".join(lines) + "\n"


def _measured_goal(measured: float | Mapping[str, Sequence[float]]) -> str:
    if isinstance(measured, Mapping):
        return ", ".join(f"tier {tier}: {gain:+.3f} ± {reach:.3f}" for tier, (gain, reach) in measured.items())
    return f"{measured:.0%}"


def _of_unequal(kind: str, size: str, found: Mapping[str, Any]) -> str:
    lines = [f"### {size}: {kind}", ""]
    if found["missing"]:
        lines += [_not_trained(found), ""]
    lines += ["| arm | at rate | by rate | tier 0 | tier 1 | tier 2 | expected |", f"|{'---|' * 7}"]
    for name, arm in found["arms"].items():
        ends = [_with_interval(arm["held_out"].get(tier)) for tier in "012"]
        words = [f"`{name}`", f"{arm['lr']:g}", _by_rate(arm), *ends, arm["expected"]]
        lines.append(f"| {' | '.join(words)} |")
    lines += ["", "| gain (nats per byte) | mean and 95 % interval | seeds | clear |", f"|{'---|' * 4}"]
    for one in found["gains"]:
        clear = "yes" if one["clear"] else "no"
        lines.append(f"| {one['question']} | {one['gain']:+.3f} ± {one['interval']:.3f} | {one['seeds']} | {clear} |")
    part = found["recovered_per_compute"]
    share = UNKNOWN if part is None else f"{part:.2f}"
    lines += [
        "",
        f"Of what two large members give, two small ones give {share} times as much for the same computing.",
    ]
    return "\n".join(lines) + "\n"


def _not_trained(found: Mapping[str, Any]) -> str:
    return f"Named and not trained yet: {found['missing']} trainings."


def _by_rate(end: Mapping[str, Any]) -> str:
    return ", ".join(f"{rate}: {loss:.3f}" for rate, loss in end["by_rate"].items())


def _with_interval(end: Mapping[str, float] | None) -> str:
    return f"{end['mean']:.3f} ± {end['interval']:.3f}" if end else ""


def _table_of_arms(those: list[tuple[str, Any]], processors: Sequence[str]) -> str:
    joined = any("against_adamw" in end for _, arm in those for end in arm["ends"])
    heads = ["arm", "steps of a machine", "held out", "at rate", "by rate"]
    if joined:
        heads += ["bytes per parameter and step", "as alone after", *(f"worth, {machine}" for machine in processors)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name, arm in those:
        for end in arm["ends"]:
            words = [
                f"`{name}`",
                f"{end['steps']:,}",
                f"{end['held_out']:.3f}" + (f" ± {end['interval']:.3f}" if end["interval"] is not None else ""),
                f"{end['lr']:g}",
                _by_rate(end),
            ]
            if joined:
                against = end["against_adamw"]
                told = (against["by_processor"].get(machine, {}) for machine in processors)
                words += [f"{arm['bytes_per_parameter_step']:.5f}", _alone_after(against), *map(_worth, told)]
            lines.append(f"| {' | '.join(words)} |")
    lines += ["", "| arm | members | expected |", "|---|---|---|"]
    lines += [f"| `{name}` | {arm['members']} | {arm['expected']} |" for name, arm in those]
    return "\n".join(lines) + "\n"


def _alone_after(against: Mapping[str, Any]) -> str:
    """With its range; what lies beyond the curve's ends is not known."""
    if against["steps_alone"] is None:
        return UNKNOWN
    few, many = (UNKNOWN if at is None else f"{at:,}" for at in against["steps_alone_range"])
    return f"{against['steps_alone']:,} ({few} to {many})"


def _worth(told: Mapping[str, float | None]) -> str:
    """With the protocol's time, and without it; a dash where there are no seconds, or the loss is beyond the curve."""
    if told.get("worth") is None:
        return UNKNOWN
    return f"{told['worth']:.2f} ({told['worth_without_protocol']:.2f})"


def table_of_attacks() -> str:
    """For every attack what it did to its epoch; bold is what misses a bar, and below is why."""
    measured = figures("hostile")
    heads = (
        "attack",
        "warm-up",
        "median round",
        "against the control",
        "rounds at their limit",
        "trained of due",
        "the attacker",
    )
    lines = [f"| {' | '.join((*heads, 'honest members'))} |", f"|{'---|' * (len(heads) + 1)}"]
    controls = [row for row in measured["rows"] if row["attack"] == "none"]
    attacks = [row for row in measured["rows"] if row["attack"] != "none"]
    lines += [_of_attack(row) for row in [*controls, *attacks]]
    place = (
        f"Measured on {kept('hostile')['machine']}, load {kept('hostile')['load_before']} before it began: seconds of"
    )
    said = f"{place} such short rounds say little on a busy machine, and nothing is judged by them."
    known = [
        line
        for row in attacks
        if row["known"] or row["not_met"]
        for line in textwrap.wrap(f"- *{row['attack']}*: {_missed(row)}", 120, subsequent_indent="  ")
    ]
    return "\n".join([*lines, "", *textwrap.wrap(said, 120), "", "What is not stopped yet:", "", *known]) + "\n"


def _of_attack(row: Mapping[str, Any]) -> str:
    name = "none (control)" if row["attack"] == "none" else row["attack"]
    at = row["attacker_dropped_at"]
    end = ["stayed" if at is None else f"dropped in round {at}"] if row["attack"] != "none" else []
    end += ["kept out"] if row["attacker_kept_out"] else []
    missed = {*row["not_met"], *row["slow"]}
    stayed = f"{row['honest'] - row['honest_dropped']} of {row['honest']} stayed, applied {row['honest_applied']} of "
    equal = "equal" if row["replicas_equal"] else "**different**"
    if row["levels_attested"] < row["levels"]:
        equal += f", **{row['levels_attested']} of {row['levels']} levels attested**"
    words = [
        name,
        _bold(f"{row['warmup_seconds']:.1f} s", missed, "a warm-up does not take all its time"),
        f"{row['median_seconds']:.2f} s",
        _bold(f"{row['against_control']:.2f}", missed, "a round takes as long as without an attack"),
        _bold(f"{row['rounds_at_limit']}", missed, "two rounds at most take all their time"),
        _bold(f"{row['trained']} of {row['due']}", missed, "90 % of the due sequences are trained"),
        _bold(", ".join(end), missed, "the attacker is dropped"),
        _bold(
            f"{stayed}{row['rounds']} rounds", missed, "no honest member is dropped", "honest members apply every round"
        )
        + f", {equal}",
    ]
    return f"| {' | '.join(words)} |"


def _bold(text: str, missed: Iterable[str], *bars: str) -> str:
    return f"**{text}**" if {*bars} & {*missed} else text


def _missed(row: Mapping[str, Any]) -> str:
    bars = [*row["not_met"], *row["slow"]]
    return f"{row['known'] or 'new'}" + (f" (not met: {'; '.join(bars)})." if bars else ".")


def table_of_benchmarks() -> str:
    """Every benchmark that keeps figures: what it measures, by its own first sentence, its command and its file."""
    lines = ["| what it measures | command | kept in |", "|---|---|---|"]
    for name in sorted(path.stem for path in MEASURED.glob("*.json")):
        what = _BESIDE[name] if name in _BESIDE else _first_sentence(MEASURED.parent / f"{name}.py")
        lines.append(f"| {what} | `{kept(name)['command']}` | [{name}.json](../benchmarks/measured/{name}.json) |")
    return "\n".join(lines) + "\n"


_BESIDE = {
    "demo": "The demonstration: three members train one model, and one is killed and comes back.",
    "hostile": "What members that lie in every way did to a run.",
}
"""What is measured by no file of this folder."""


def _first_sentence(source: Path) -> str:
    said = ast.get_docstring(ast.parse(source.read_text())) or ""
    return " ".join(said.partition("\n\n")[0].split()).replace("|", "\\|")


BLOCKS: dict[str, Callable[[], str]] = {
    "benchmarks": table_of_benchmarks,
    "attacks": table_of_attacks,
    "memory": table_of_memory,
    "recipes": memory_of_recipes,
    "units": table_of_units,
    "experiments": pages_of_experiments,
    "worth": table_of_worth,
    "bars": table_of_bars,
    "unequal": tables_of_unequal,
    "ideas": tables_of_ideas,
}


def quoted(text: str) -> str:
    """The page with every quoted figure as it was measured last. Raises BadQuote."""

    def block(match: re.Match[str]) -> str:
        if match[1] not in BLOCKS:
            raise BadQuote(f"there is no block {match[1]!r}; there are {', '.join(BLOCKS)}")
        return f"<!-- block: {match[1]} -->\n{BLOCKS[match[1]]()}<!-- /block -->"

    text = BLOCK.sub(block, text)
    return QUOTE.sub(lambda m: f"<!-- {m[1]}{m[2]}{m[3]} -->{figure(m[1], m[2], m[3])}<!-- / -->", text)


def main() -> int:
    """Rewrite the pages named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE", help="a Markdown page, which is rewritten")
    for page in parser.parse_args().pages:
        try:
            text = page.read_text()
            new = quoted(text)
        except OSError as error:
            print(f"error: cannot read {page}: {error.strerror}\nfix: name a page that is there", file=sys.stderr)
            return 1
        except BadQuote as error:
            print(f"error: {page}: {error}\nfix: python benchmarks/measure.py NAME, or mend the page", file=sys.stderr)
            return 1
        if new != text:
            page.write_text(new)
            print(f"{page}: figures brought up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
