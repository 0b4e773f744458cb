#!/usr/bin/env python3
"""Measure where a round's time goes, for 3 and 8 members on one machine.

python benchmarks/round.py --members 3 8 --json
"""

# How it is measured:
# - It runs the embedded chain and the real commands, with one process per member over QUIC.
# - The reference is the round's own training time in the same run. What a round takes beyond its
#   slowest member's training is the protocol's overhead.
# - All members share this machine's cores, so training times grow with the number of members.
# - The run is the demonstration's. With its overlap of 0, results travel and are attested after
#   the round's training; with `--overlap 1`, during the next one's.
# - Wall time grows with other load, so CPU seconds of each process count too: `cpu_ms` is a
#   member's in a round, `chain_cpu_ms` the chain's, and `cores_busy` the cores that all of them
#   used. A member on its own machine would need its CPU seconds and the waiting only.
# - A round of the demonstration has several inner steps of each member, and the protocol's part
#   once. `overhead_per_step_ms` compares with a run of one step a round.

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
import time
import tomllib
from bisect import bisect_left
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from aftermath.demo.commands import (
    REPOSITORY,
    Commands,
    DemoFailed,
    DemoPaths,
    create_run,
    launch,
    prepare_files,
    resume_run,
    write_config,
)
from aftermath.events.reader import EventReader, flat
from aftermath.testnet.chain import await_chain
from aftermath.testnet.processes import Process, ProcessError

TIERS = (0, 1, 2)
LIMIT_SECONDS = 600.0
STEPS = 16
SKIPPED = 3  # rounds at the start of an epoch, which also warm caches


def measure(members: int, overlap: int | None, place: Path) -> dict[str, Any]:
    """Run this number of members, and return medians over rounds and members, in milliseconds."""
    paths = DemoPaths(place)
    prepare_files(paths)
    write_config(paths, REPOSITORY / "config" / "demo" / "config.toml")
    paths.config.write_text(short(paths.config.read_text(), members, overlap))
    names = [f"member-{index}" for index in range(members)]
    chain, commands = launch(paths, "embedded")
    processes = [chain]
    try:
        await_chain(chain, commands.chain)
        create_run(commands, names)
        resume_run(commands)
        processes += [start(commands, name, TIERS[index % 3]) for index, name in enumerate(names)]
        spent = wait_for_end(processes)
    finally:
        for process in reversed(processes):
            process.stop()
    events = [read_events(paths.events(name)) for name in names]
    found = findings(members, events)
    inner = tomllib.loads(paths.config.read_text())["model"]["LLM"]["optimizer"]["SparseLoCo"][
        "inner_steps"
    ]
    by_step = {"inner_steps": inner, "overhead_per_step_ms": round(found["overhead_ms"] / inner, 1)}
    return found | by_step | cpu_figures(spent, events)


def short(config: str, members: int, overlap: int | None) -> str:
    """Return the demo's configuration with this number of members, few steps and this overlap, if
    one is given.
    """
    changes = {"init_min_clients": members, "total_steps": STEPS} | (
        {} if overlap is None else {"overlap": overlap}
    )
    for key, value in changes.items():
        config, found = re.subn(rf"^{key} = \d+$", f"{key} = {value}", config, flags=re.MULTILINE)
        if found != 1:
            raise DemoFailed(f"the demonstration's configuration does not set {key} once")
    return config


def start(commands: Commands, name: str, tier: int) -> Process:
    """Start one member's process, on one thread."""
    return Process(
        name,
        commands.train(name, tier),
        commands.paths.log(name),
        {**commands.environment, "OMP_NUM_THREADS": "1"},
    )


class Spent:
    """CPU seconds of a process, sampled over time."""

    def __init__(self, process: Process) -> None:
        self._process = psutil.Process(process.pid)
        self._readings: list[tuple[float, float]] = []

    def look_up(self) -> None:
        """Take a sample. Do nothing if the process has ended."""
        try:
            times = self._process.cpu_times()
        except psutil.Error:
            return
        self._readings.append((time.time(), times.user + times.system))

    def until(self, at: float) -> float:
        """Return the CPU seconds used until a time (unix seconds), interpolated between samples."""
        after = min(max(bisect_left(self._readings, (at, 0.0)), 1), len(self._readings) - 1)
        (began, before), (ended, spent) = self._readings[after - 1 : after + 1]
        return before + (spent - before) * min(1.0, max(0.0, (at - began) / (ended - began)))


def wait_for_end(processes: list[Process]) -> list[Spent]:
    """Wait until every member has ended, and return the CPU samples of each process."""
    until = time.monotonic() + LIMIT_SECONDS
    spent = [Spent(process) for process in processes]
    while any(process.running for process in processes[1:]):
        for process, own in zip(processes, spent, strict=True):
            own.look_up()
            if process.code not in (None, 0):
                process.expect_running()
        if time.monotonic() > until:
            raise DemoFailed(f"the run did not end within {LIMIT_SECONDS:.0f} s")
        time.sleep(0.2)
    return spent


def read_events(directory: Path) -> list[dict[str, Any]]:
    """Return a member's events in order."""
    return [flat(told) for told in EventReader([directory]).read()]


def findings(members: int, events: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the median of every part of a round."""
    parts: dict[str, list[float]] = defaultdict(list)
    walls: dict[int, list[float]] = defaultdict(list)
    training: dict[int, list[float]] = defaultdict(list)
    for own in events:
        for begin, end in counted(own):
            walls[begin["step"]].append(end["t"] - begin["t"])
        for event in own:
            collect(event, parts, training)
    overheads = [
        statistics.median(walls[step]) - max(training[step]) for step in walls if training[step]
    ]
    result: dict[str, Any] = {"members": members, "rounds": len(walls)}
    result["wall_ms"] = milliseconds([statistics.median(values) for values in walls.values()])
    result["slowest_training_ms"] = milliseconds(
        [max(training[step]) for step in walls if training[step]]
    )
    result["overhead_ms"] = milliseconds(overheads)
    result["overhead_to_training"] = round(
        result["overhead_ms"] / max(result["slowest_training_ms"], 0.1), 2
    )
    return result | {f"{name}_ms": milliseconds(values) for name, values in sorted(parts.items())}


def counted(events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the first and last event of each measured round of a member, in order."""
    rounds = pairwise(event for event in events if event["kind"] == "round")
    return [
        (begin, end)
        for begin, end in rounds
        if begin["epoch"] == end["epoch"] and begin["height"] >= SKIPPED
    ]


def cpu_figures(spent: list[Spent], events: list[list[dict[str, Any]]]) -> dict[str, float]:
    """Return CPU seconds per round: the chain's, and the median over members. `spent[0]` is the
    chain's.
    """
    dates = [
        [
            tuple(datetime.fromisoformat(event["at"]).timestamp() for event in ends)
            for ends in counted(own)
        ]
        for own in events
    ]

    def of_a_round(own: Spent, rounds: list[tuple[float, ...]]) -> float:
        return statistics.fmean(own.until(ended) - own.until(began) for began, ended in rounds)

    each = [of_a_round(own, rounds) for own, rounds in zip(spent[1:], dates, strict=True)]
    chain = of_a_round(spent[0], dates[0])
    wall = statistics.fmean(ended - began for began, ended in dates[0])
    busy = round((sum(each) + chain) / wall, 2)
    return {"cpu_ms": milliseconds(each), "chain_cpu_ms": milliseconds([chain]), "cores_busy": busy}


def collect(
    event: dict[str, Any], parts: dict[str, list[float]], training: dict[int, list[float]]
) -> None:
    """Sort one event's times into the parts of a round."""
    kind = event["kind"]
    if kind == "trained":
        training[event["step"]].append(event["seconds"])
        parts["train"].append(event["seconds"])
        parts["encode"].append(event["encode_seconds"])
        parts["announce"].append(event["announce_seconds"])
    elif kind == "fetched":
        parts["fetch"].append(event["seconds"])
        parts["decode"].append(event["decode_seconds"])
    elif kind == "witnessed":
        parts["chain"].append(event["seconds"])
    elif kind == "applied":
        parts["wait"].append(event["waited"])
        parts["apply"].append(event["seconds"])


def milliseconds(seconds: list[float]) -> float:
    """Return the median in milliseconds."""
    return round(1000 * statistics.median(seconds), 1) if seconds else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--members", type=int, nargs="+", default=[3, 8], help="sizes to measure (default 3 8)"
    )
    parser.add_argument(
        "--overlap", type=int, choices=(0, 1), help="overlap of the runs (default: the demo's)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, by size")
    chosen = parser.parse_args()
    report = {}
    for members in chosen.members:
        place = Path(tempfile.mkdtemp(prefix="aftermath-round-"))
        try:
            found = report[str(members)] = measure(members, chosen.overlap, place)
        except ProcessError as failure:
            print(f"error: {failure}\nlogs: {place}", file=sys.stderr)
            return 1
        shutil.rmtree(place)
        if not chosen.json:
            print("\n".join(f"{name:24} {value}" for name, value in found.items()))
    if chosen.json:
        print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
