"""The content of each tab: rows in a fixed order, and charts below them.

Every row is there from the start, with a dash for unknown values, so that its position never
changes. Strangers' text is shown as plain text with visible control characters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aftermath.base.text import counted
from aftermath.events import event_types
from aftermath.events.plot import evenly, loss_line
from aftermath.events.printable import printable
from aftermath.events.progress import span
from aftermath.events.status import RunStatus, facts_of, no_answer, state_of, steps_of, taking_part
from aftermath.ui.terminal.board import Board

Facts = dict[str, str | Text | Sequence[str]]
UNKNOWN = "-"
NAMES = 11
"""Columns of the rows' names and the gap after them."""
_CHART = 9  # lines
_TALL = 32  # terminal height from which the pages show more than on 24 lines


def progress_text(board: Board) -> str:
    """Return the run's progress, as far as it is known."""
    further = _further(board)
    return steps_of(further) if further is not None else board.progress.text()


def _further(board: Board) -> RunStatus | None:
    """Return the run's status if it is ahead of the member's events.

    While the member waits for the next epoch, it has no events about the rounds of the others.
    """
    progress = board.progress
    status = board.status
    return (
        status
        if status is not None and (not progress.total or status.step > progress.step + 1)
        else None
    )


def run_page(board: Board, now: float, width: int, height: int) -> RenderableType:
    """Draw the run's status, the member's activity, and current warnings."""
    rows: Facts = {"run": board.run_id, "name": UNKNOWN}
    if board.role == "member":
        rows["now"] = _waits_for_epoch(board) or board.now
    rows |= dict.fromkeys(("state", "steps", "deadline", "members", "waits for"), UNKNOWN)
    if (status := board.status) is not None:
        fact_rows = facts_of(status)
        rows |= {name: fact_rows[name] for name in ("name", "state", "deadline", "waits for")}
        rows["members"] = f"{taking_part(status)} take part, {fact_rows['members']}"
        if status.silent:
            label = (f" {no_answer(status)} ", "white on red")
            rows["state"] = Text.assemble(label, " last heard: ", printable(state_of(status)))
    rows["steps"] = _steps(board, width - NAMES)
    parts: list[RenderableType] = [_rows(board, "Run", rows)]
    drawn = chart(board.losses, width, _CHART) if height >= _TALL else []
    if board.role == "member" and not drawn:
        parts += [Text(), Text(loss_line(board.losses, width), no_wrap=True)]
    for alert in board.alerts.now(now):
        label = (" error ", "white on red") if alert.fatal else (" warning ", "black on yellow")
        parts += [Text(), Text.assemble(label, " ", alert.text(now))]
    if drawn:
        parts += [Text(), Text("\n".join(drawn))]
    return Group(*parts)


def _waits_for_epoch(board: Board) -> str:
    """Return when a waiting member joins. Empty if it takes part, or if the run is not known
    yet.
    """
    waiting = board.of(event_types.Waiting)
    status = board.status
    if (
        waiting is None
        or waiting.leaves
        or board.leaving
        or status is None
        or status.epoch >= waiting.epoch
    ):
        return ""
    when = (
        "" if status.rounds_left is None else f", in about {counted(status.rounds_left, 'round')}"
    )
    if waiting.ends_in is not None:
        when = (
            "" if status.deadline is None else f", in {span(max(0, status.deadline))} at the latest"
        )
    return f"waits: it joins at the next epoch{when}"


def training_page(board: Board, now: float, width: int, height: int) -> RenderableType:
    """Draw losses, speed and evaluations. For a watched run, draw its pace and its tiers."""
    if board.role != "member":
        return _training_from_outside(board)
    counts = board.counts
    trained = board.of(event_types.ShareTrained)
    applied = board.of(event_types.Applied)
    rows: Facts = dict.fromkeys(
        ("loss", "speed", "share", "applied", "model", "last eval", "sample text"), UNKNOWN
    )
    if board.losses:
        step, loss = board.losses[-1]
        rows["loss"] = f"{loss:.4f} at step {step:,}, of this member's share"
    if trained is not None:
        rows["speed"] = f"{trained.tokens_per_sec:,.0f} tokens/s, {counts.tokens:,} tokens so far"
        rows["share"] = (
            f"trained in {trained.seconds:.2f} s, encoded in {trained.encode_seconds:.2f} s"
        )
    elif (measured := board.of(event_types.SpeedMeasured)) is not None:
        rows["speed"] = f"about {counted(measured.weight, 'sequence')} a minute"
    if applied is not None:
        results = counted(applied.results, "result")
        rows["applied"] = (
            f"{results} of step {applied.step:,}, {counts.applied:,} so far, waited {applied.waited:.2f} s"
        )
    if (model := board.of(event_types.ModelReady)) is not None:
        rows["model"] = f"from {model.source}, of step {model.step:,}"
    if board.asked:
        rows["last eval"] = [
            f"{name} {one.value:.4f} at step {one.step:,}" for name, one in board.asked.items()
        ]
    if (sample := board.of(event_types.Sample)) is not None:
        rows["sample text"] = " ".join(f"{sample.prompt}{sample.text}".split())
    drawn = chart(board.losses, width, 2 * _CHART if height >= _TALL else _CHART)
    return Group(
        Text("\n".join(drawn) if drawn else loss_line(board.losses, width)),
        Text(),
        _rows(board, "Training", rows),
    )


def _training_from_outside(board: Board) -> RenderableType:
    rows: Facts = dict.fromkeys(("steps", "pace", "tiers", "losses"), UNKNOWN)
    rows["steps"] = progress_text(board)
    rows["losses"] = "only members report these: train --logs tui, or plot their --events-dir"
    if (status := board.status) is not None:
        if status.left is not None and status.total_steps > status.step:
            rows["pace"] = (
                f"{status.left / (status.total_steps - status.step):.1f} s a step, in this epoch"
            )
        rows["tiers"] = _tiers(status) or UNKNOWN
    return _rows(board, "Training", rows)


def _tiers(status: RunStatus) -> list[str]:
    tiers: dict[int, list[int]] = defaultdict(list)
    for member in status.members:
        if member.standing.startswith("takes part"):
            tiers[member.tier].append(member.weight)
    whole = sum(map(sum, tiers.values())) or 1
    return [
        f"tier {tier}: {counted(len(weights), 'member')}, {100 * sum(weights) / whole:.0f}% of the work"
        for tier, weights in sorted(tiers.items())
    ]


def network_page(board: Board, now: float, width: int, height: int) -> RenderableType:
    """Draw peers and bytes."""
    rows: Facts = {}
    if board.role == "member":
        rows = dict.fromkeys(
            (
                "peers",
                "sent",
                "received",
                "fetched",
                "failed fetches",
                "refused",
                "trouble",
                "sent by type",
            ),
            UNKNOWN,
        )
        traffic = board.of(event_types.Traffic)
        counts = board.counts
        if traffic is not None:
            per = f", {_bytes(traffic.sent / traffic.t)}/s" if traffic.t > 0 else ""
            rows["peers"] = f"{traffic.peers} in reach"
            rows["sent"] = f"{_bytes(traffic.sent)}{per}"
            rows["received"] = _bytes(traffic.received)
            rows["sent by type"] = [
                f"{kind}: {_bytes(sent)}" for kind, sent in sorted(traffic.sent_by_kind.items())
            ]
        rows["fetched"] = counted(counts.fetched, "part of a result", "parts of results")
        rows["failed fetches"] = f"{counts.failed:,}"
        rows["refused"] = counted(counts.refused, "time")
        rows["trouble"] = counts.trouble
    elif board.role == "watch":
        rows["peers"] = "only members know their peers: train --logs tui"
    if (status := board.status) is not None and board.role != "member":
        rows["members"] = (
            f"{taking_part(status)} of {counted(len(status.members), 'member')} take part"
        )
    return _rows(board, "Network", rows)


def chain_page(board: Board, now: float, width: int, height: int) -> RenderableType:
    """Draw the coordinator's view of the run, and the costs so far."""
    rows: Facts = dict.fromkeys(("epoch", "round", "state", "deadline", "witnesses"), UNKNOWN)
    if (status := board.status) is not None:
        fact_rows = facts_of(status)
        rows["epoch"] = f"{status.epoch}"
        rows["round"] = UNKNOWN if status.round is None else f"{status.round}"
        rows |= {name: fact_rows[name] for name in ("state", "deadline")}
        elected = [str(member.seat) for member in status.members if member.witness]
        rows["witnesses"] = f"members {', '.join(elected)}" if elected else "none elected now"
    if board.role == "member":
        started = board.of(event_types.MemberStarted)
        joined = board.of(event_types.Joined)
        traffic = board.of(event_types.Traffic)
        rows["wallet" if started is None else started.key] = (
            UNKNOWN if started is None else started.wallet
        )
        rows |= dict.fromkeys(("seat", "attestations", "checkpoint", "costs"), UNKNOWN)
        rows["attestations"] = f"{board.counts.attested:,}"
        if joined is not None and joined.seat is not None:
            rows["seat"] = f"{joined.seat}, tier {joined.tier}, weight {joined.weight:,}"
        if (checkpoint := board.of(event_types.CheckpointWritten)) is not None:
            rows["checkpoint"] = f"of step {checkpoint.step:,} at {checkpoint.path}"
        if traffic is not None:
            rows["costs"] = [
                f"{name.replace('_', ' ')} {spent:,}"
                for name, spent in sorted(traffic.costs.items())
            ]
    return _rows(board, "Chain", rows)


Page = Callable[[Board, float, int, int], RenderableType]
PAGES: Mapping[str, Page] = {
    "Run": run_page,
    "Training": training_page,
    "Network": network_page,
    "Chain": chain_page,
}
"""The tabs that are text; Members is a table, Log a list."""


def _rows(board: Board, tab: str, rows: Facts) -> Table:
    return grid({**rows, **board.facts.get(tab, {})})


def grid(rows: Facts) -> Table:
    """Draw names and their values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(printable(name)), _cell(value))
    return table


def _cell(value: str | Text | Sequence[str]) -> Text:
    if isinstance(value, Text):
        return value
    lines = [value] if isinstance(value, str) else value
    return Text("\n".join(printable(line) for line in lines) or UNKNOWN)


def _steps(board: Board, width: int) -> Text:
    text = progress_text(board)
    if (status := _further(board)) is not None:
        return bar(text, status.step, status.total_steps, width)
    return bar(text, board.progress.step, board.progress.total, width)


def bar(text: str, step: int, total: int, width: int) -> Text:
    """Return the text, and a progress bar in the rest of `width` columns."""
    room = min(30, width - len(text) - 4)
    if not total or room < 10:
        return Text(text)
    filled = min(room, room * step // total)
    return Text.assemble(f"{text}  ", ("━" * filled, "green"), ("─" * (room - filled), "dim"))


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


_EIGHTHS = " ▁▂▃▄▅▆▇█"
LABEL = 8
"""Columns of the chart's scale."""


def chart(curve: Sequence[tuple[int, float]], width: int, height: int) -> list[str]:
    """Draw (step, value) points in `width` columns and `height` lines, with a scale and both end
    steps.

    Few points are drawn wider. Points that do not fit are left out evenly, never the first or the
    last.
    """
    room = width - LABEL
    if not curve or room < 8 or height < 3:
        return []
    wide = max(1, room // len(curve))  # columns per point
    values = [curve[index][1] for index in evenly(len(curve), room) for _ in range(wide)]
    low = min(values)
    high = max(values)
    rows = height - 1
    scale = (high - low) or 1.0
    # eighths of a line
    tall = [1 + round((value - low) / scale * (rows * 8 - 1)) for value in values]
    lines = []
    for row in range(rows - 1, -1, -1):
        label = f"{high:.3f}" if row == rows - 1 else f"{low:.3f}" if row == 0 else ""
        bars = "".join(_EIGHTHS[max(0, min(8, eighths - 8 * row))] for eighths in tall)
        lines.append(f"{label:>{LABEL - 1}} {bars}".rstrip())
    first = f"step {curve[0][0]:,}"
    last = f"{curve[-1][0]:,}"
    gap = len(values) - len(first) - len(last)
    lines.append(
        " " * LABEL
        + (first + " " * gap + last if gap > 0 and curve[0][0] != curve[-1][0] else first)
    )
    return lines
