"""Measure a member's tokens per CPU second without audits, with them, and in older code.

OMP_WAIT_POLICY=PASSIVE python benchmarks/audit_cost.py [--before COMMIT] [--keep]
"""

# How it is measured:
# - Four members of tier 0 train in one process, on the simulator's virtual time. Their code is the
#   real one. An epoch makes them established. In the next one, `cpu_seconds` counts the CPU time of
#   the process: shares, hashes, copies, replays, and the simulated chain and network.
# - `tokens_per_cpu_second` is the number of trained tokens over that time. It is the best of
#   `--repetitions` runs, which alternate, because other load slows all of them.
# - `before` is the code of a commit without audits in the client, from a git worktree. It runs this
#   file with the rules of `0`. `over_before` is a quotient of these figures.
# - The model is small and its shares are short, so copies cost more than with a useful model.

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent
BEFORE = "6499f7e2"
"""The last commit whose members keep nothing for audits and replay nothing."""
MEMBERS = 4
SEQUENCES = 128
ROUNDS = 12
MODEL = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 96,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
RULES = {
    "min_clients": MEMBERS,
    "init_min_clients": MEMBERS,
    "waiting_for_members_extra_time": 1,
    "rounds_per_epoch": ROUNDS,
    "min_round_time": 8,
    "max_round_train_time": 30,
    "global_batch_size_start": SEQUENCES,
    "global_batch_size_end": SEQUENCES,
    "total_steps": 2 * ROUNDS,
}
OPTIMIZER = {"SparseLoCo": {"inner_steps": 4, "compression_chunk": 16, "compression_topk": 4}}


def measure(percent: int) -> dict[str, float]:
    """Return the figures of one run with this `verification_percent`."""
    from aftermath.model.architectures import config_of
    from aftermath.rules.state import RunState
    from aftermath.sim.simulation import SimulatedRun, play

    spent = 0.0

    async def story(sim: SimulatedRun) -> None:
        nonlocal spent
        for _ in range(MEMBERS):
            sim.add(0)
        await sim.until(lambda run: run.epoch == 1 and run.state.training)
        began = time.process_time()
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        spent = time.process_time() - began

    rules = RULES | {"verification_percent": percent}
    with tempfile.TemporaryDirectory() as directory:
        sim = play(
            Path(directory) / "run", story, config=config_of(MODEL), optimizer=OPTIMIZER, **rules
        )
    trained = [event["tokens"] for one in sim.sim_members for event in one.saw("trained", epoch=1)]
    audited = [event for one in sim.sim_members for event in one.saw("audited")]
    return {
        "tokens_per_cpu_second": round(sum(trained) / spent, 1),
        "cpu_seconds": round(spent, 2),
        "shares": len(trained),
        "audits": len(audited),
        "not_matching": sum(event["verdict"] != "match" for event in audited),
    }


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check out a commit in a temporary directory."""
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / commit
        subprocess.run([*git, "add", "--detach", str(place), commit], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def measured_in(source: Path, percent: int) -> dict[str, float]:
    """Return the figures of a run with the client in a checkout."""
    environment = os.environ | {"PYTHONPATH": str(source / "client")}
    command = [sys.executable, str(Path(__file__)), "--once", str(percent)]
    printed = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    figures: dict[str, float] = json.loads(printed.splitlines()[-1])
    return figures


def report(before: str, percents: list[int], repetitions: int) -> dict[str, Any]:
    """Return the best figures of each code and percentage."""
    found: dict[str, dict[str, float]] = {}
    with worktree(before) as old:
        kinds = [("before", old, 0), *((str(percent), REPOSITORY, percent) for percent in percents)]
        for _ in range(repetitions):
            for name, source, percent in kinds:
                figures = measured_in(source, percent)
                print(f"{name}: {json.dumps(figures)}", file=sys.stderr, flush=True)
                best = found.setdefault(name, figures)
                if figures["tokens_per_cpu_second"] > best["tokens_per_cpu_second"]:
                    found[name] = figures
    base = found["before"]["tokens_per_cpu_second"]
    over = {
        name: round(figures["tokens_per_cpu_second"] / base, 3)
        for name, figures in found.items()
        if name != "before"
    }
    return {"before_commit": before, "repetitions": repetitions, "over_before": over} | found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT")
    parser.add_argument("--percents", type=int, nargs="+", default=[0, 6])
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--once", type=int, metavar="PERCENT", help="print the figures of one run")
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/measured/audit-cost.json"
    )
    options = parser.parse_args()
    if options.once is not None:
        print(json.dumps(measure(options.once)))
        return
    load = os.getloadavg()[0]
    found = report(options.before, options.percents, options.repetitions)
    if options.keep:
        from measure import BY_ITSELF, write

        write("audit-cost", BY_ITSELF["audit-cost"], load, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
