"""`python -m aftermath.sim`: simulate runs from seeds and print a digest of each.

If a seed breaks an invariant, it prints how to replay that seed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from aftermath.base.text import counted
from aftermath.sim.audit_seed import try_audits
from aftermath.sim.seed import Verdict, try_seed

SECONDS = 240.0
_EXAMPLES = """\
examples:
  python -m aftermath.sim --seed 7
      print the scenario, faults and event digest of seed 7; the same seed always has the same digest
  python -m aftermath.sim --seed 7 --seconds 300 --events seven.jsonl
      with 300 virtual seconds of faults, and the events of all members in a file
  python -m aftermath.sim --seeds 0..99 --jobs 2
      a campaign; prints how to replay each seed that breaks an invariant, and exits with 1 if there is one
  python -m aftermath.sim --audits --seeds 0..99
      short runs with audits, in which a minority cheats, accuses, votes falsely or leaves
"""


def main() -> int:
    arguments = _parser().parse_args()
    started = time.monotonic()
    verdicts = []
    for verdict in _verdicts(arguments):
        verdicts.append(verdict)
        _tell(verdict, arguments, in_full=arguments.seeds is None)
    if arguments.events is not None:
        arguments.events.write_text(
            "".join(json.dumps(event, default=repr) + "\n" for event in verdicts[0].events)
        )
    broken = [verdict.seed for verdict in verdicts if verdict.broken]
    if arguments.seeds is not None:
        minutes = (time.monotonic() - started) / 60
        virtual = sum(verdict.virtual for verdict in verdicts) / 60
        print(
            f"{counted(len(verdicts), 'seed')}, {virtual:.0f} virtual minutes in {minutes:.1f} min; ",
            end="",
        )
        print(f"broken: {' '.join(map(str, sorted(broken)))}" if broken else "all invariants hold")
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aftermath.sim",
        description="Simulate whole runs on virtual time, with faults at state changes that are drawn from a seed, "
        "and check the invariants of a run.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, metavar="N", help="simulate this seed")
    which.add_argument("--seeds", type=_span, metavar="A..B", help="simulate the seeds from A to B")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help="virtual seconds with faults, before the run may recover (default: %(default)g)",
    )
    parser.add_argument(
        "--audits",
        action="store_true",
        help="let a minority of the members attack a run's audits, instead of causing faults",
    )
    parser.add_argument(
        "--overlap",
        type=int,
        choices=(0, 1),
        help="overlap of all runs (default: each seed draws its own)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="J",
        help="processes for --seeds (default: %(default)d)",
    )
    parser.add_argument(
        "--events",
        type=Path,
        metavar="FILE",
        help="write the events of all members of --seed as JSON lines",
    )
    return parser


def _span(text: str) -> range:
    first, dots, last = text.partition("..")
    if not (dots and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not A..B, for example 0..99")
    return range(int(first), int(last) + 1)


def _verdicts(arguments: argparse.Namespace) -> Iterator[Verdict]:
    seeds = arguments.seeds or [arguments.seed]
    play: Callable[[int], Verdict] = try_audits
    if not arguments.audits:
        play = partial(try_seed, seconds=arguments.seconds, overlap=arguments.overlap)
    if arguments.jobs < 2 or len(seeds) < 2:
        yield from map(play, seeds)
        return
    with ProcessPoolExecutor(
        arguments.jobs, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for future in as_completed([pool.submit(play, seed) for seed in seeds]):
            yield future.result()


def _tell(verdict: Verdict, arguments: argparse.Namespace, *, in_full: bool) -> None:
    state = "BROKEN" if verdict.broken else "ok    "
    print(
        f"seed {verdict.seed:<6} {state} {verdict.digest}  {counted(verdict.steps, 'step')}, "
        f"{counted(len(verdict.faults), 'fault')}, "
        f"{verdict.virtual:.0f} s virtual, {verdict.cpu:.1f} s of CPU",
        flush=True,
    )
    if in_full or verdict.broken:
        print(f"  {verdict.scenario}")
        print("".join(f"  {fault}\n" for fault in verdict.faults), end="")
    if verdict.broken:
        print(f"  broken: {verdict.broken}")
        overlap = f" --overlap {arguments.overlap}" if arguments.overlap is not None else ""
        faults = "--audits" if arguments.audits else f"--seconds {arguments.seconds:g}{overlap}"
        options = f"--seed {verdict.seed} {faults}"
        print(f"  replay: python -m aftermath.sim {options}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
