"""Measure rounds per second of a run on the centralized server, with members that do not train.

python benchmarks/server_pace.py [--members 64] [--rounds 30] [--processes 2] [--json]
"""

# How it is measured:
# - The server is `aftermath-centralized server run`, in its own process, with its state on the
#   disk.
# - Each member has its own identity, two signed connections, the real client of the run and the
#   real ticker. It joins. When it is elected it attests at once that all members delivered.
# - No member trains, has a model or sends a result. So this is the pace that the server and the
#   program allow, not that of a training run.
# - The shortest round is one second of the chain's clock, which counts whole seconds.
# - `attested_seconds_median` is the time from the start of a round to the quorum of its
#   attestations. The rest of the round is room for training.
# - The members share the machine with the server.

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from solders.keypair import Keypair

from aftermath.chain.member import SolanaMember
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import Refused, Unavailable
from aftermath.member.feed import RunFeed
from aftermath.member.stall_detector import StallDetector
from aftermath.member.ticker import Ticker
from aftermath.rules.committee import quorum, witnesses
from aftermath.rules.consensus import pack_fingerprints
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from aftermath.server.client_backend import ServerRpcPool
from aftermath.server.connection import ServerConnection

RUN = "bench"
FINGERPRINT = bytes(31) + b"\1"
SIZES = [
    "--hidden",
    "16",
    "--layers",
    "1",
    "--heads",
    "2",
    "--kv-heads",
    "2",
    "--intermediate",
    "16",
]
LIMIT = 900.0  # seconds after which something is broken


def state_file(place: Path, members: int, rounds: int) -> Path:
    """Write the state of a run, and return its path. Only the shape of the model matters."""
    model = place / "model"
    command = [sys.executable, "-m", "aftermath", "model", "init", "--out", str(model), *SIZES]
    subprocess.run(command, check=True, capture_output=True)
    path = place / "state.toml"
    path.write_text(
        f"""
run_id = "{RUN}"

[config]
warmup_time = 600
cooldown_time = 60
rounds_per_epoch = {rounds + 10}
min_round_time = 1
max_round_train_time = 60
round_witness_time = 10
init_min_clients = {members}
min_clients = {members}
global_batch_size_start = {4 * members}
global_batch_size_end = {4 * members}
total_steps = 100000
waiting_for_members_extra_time = 1

[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 32
checkpoint = {{ Dummy = {{ repo_id = {json.dumps(str(model))} }} }}
data_location = "Dummy"

[model.LLM.lr_schedule.Constant]
base_lr = 1.0e-3

[model.LLM.optimizer.Distro]
clip_grad_norm = 1.0
compression_decay = 0.999
compression_topk = 4
compression_chunk = 16
quantize_1bit = true
"""
    )
    return path


@contextlib.contextmanager
def server(place: Path, members: int, rounds: int) -> Iterator[tuple[psutil.Process, int]]:
    """Start the server, and yield its process and port."""
    state = state_file(place, members, rounds)
    command = [sys.executable, "-m", "aftermath.server", "server", "run", "--state", str(state)]
    with (place / "server.log").open("w") as log:
        child = subprocess.Popen(
            [
                *command,
                "--host",
                "127.0.0.1",
                "--save-state-dir",
                str(place / "kept"),
                "--tui",
                "false",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        ends = time.monotonic() + LIMIT
        while not (
            found := re.search(r"ready run=\w+ port=(\d+)", (place / "server.log").read_text())
        ):
            if child.poll() is not None or time.monotonic() > ends:
                raise SystemExit((place / "server.log").read_text())
            time.sleep(0.1)
        yield psutil.Process(child.pid), int(found[1])
    finally:
        child.terminate()
        child.wait()


class _Clock:
    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@contextlib.asynccontextmanager
async def connected(port: int) -> Any:
    """Connect with a new identity. Yield the run's client and its peer key."""
    wallet = Wallet(Keypair())
    peer = Keypair()
    link = ServerConnection(f"127.0.0.1:{port}", None, RUN, wallet, peer)
    seed = int.from_bytes(wallet.public[:4])
    async with (
        ServerRpcPool(link, patience=60.0, seed=seed) as pool,
        SolanaMember(pool, wallet, RUN, client_version="") as chain,
    ):
        yield chain, peer


async def light_member(port: int, rounds: int) -> None:
    """Run one member until the measured rounds are over."""
    async with connected(port) as (chain, peer):
        view = await chain.view()
        schema = view.model.schema_hash
        while True:
            try:
                await chain.join(
                    p2p=bytes(peer.pubkey()), tier=0, weight=1, schema_hash=schema, stateless=True
                )
                break
            except Unavailable:  # all members join at once and share the server's cores
                continue
        clock = _Clock()
        feed = RunFeed(await chain.view())
        ticker = asyncio.create_task(Ticker(chain, feed, clock, StallDetector(clock)).run())
        try:
            async for view in chain.views():
                await feed.put(view)
                if over(view.run, rounds):
                    return
                with contextlib.suppress(
                    Refused, Unavailable
                ):  # too late, or the quorum is already reached
                    await duty(chain, feed)
        finally:
            ticker.cancel()


def over(run: Run, rounds: int) -> bool:
    """Return whether the measured rounds are over."""
    return (
        run.epoch > 0
        or run.state is RunState.COOLDOWN
        or (run.state.training and run.current.height > rounds)
    )


async def duty(chain: SolanaMember, feed: RunFeed) -> None:
    """Send what an elected witness owes in this state, once."""
    run = feed.run
    members = feed.members
    seat = members.find(chain.wallet)
    current = run.current
    if seat is None or current.attested >> seat & 1:
        return
    if seat not in witnesses(current, members):
        return
    if run.state is RunState.WARMUP:
        await chain.warmup_witness(seat, run.round_id)
    elif run.state.training:
        judged = run.round(run.config.judged(current.height))
        seen = judged.roster if judged is not None and judged.batch else 0
        said = {place: FINGERPRINT for place in range(256) if seen >> place & 1}
        prints = (
            pack_fingerprints(said, judged.roster, current.seed) if judged and seen else bytes(320)
        )
        await chain.witness(
            seat,
            run.round_id,
            seen,
            prints,
            step=current.step,
            loss=1.0,
            tokens_per_sec=1.0,
            bytes_per_sec=1.0,
        )


def run_members(port: int, count: int, rounds: int) -> None:
    """Run several members in one process."""

    async def live() -> None:
        await asyncio.gather(*(light_member(port, rounds) for _ in range(count)))

    asyncio.run(live())


async def observe(
    process: psutil.Process, port: int, rounds: int
) -> tuple[list[float], list[float], int, float]:
    """Return the start time of each round, the seconds until its quorum (if seen), the number of
    witnesses, and the CPU cores that the server used.
    """
    began: list[float] = []
    attested: list[float] = []
    used = 0.0
    elected = 0
    height = -1
    async with asyncio.timeout(LIMIT), connected(port) as (chain, _):
        async for view in chain.views():
            run = view.run
            now = time.monotonic()
            if run.state.training and run.current.height != height:
                height = run.current.height
                used = used or cpu(process)
                began.append(now)
                chosen = witnesses(run.current, view.members)
                elected = len(chosen)
                quorum_seen = False
            if (
                run.state.training
                and not quorum_seen
                and run.current.attestations >= quorum(elected)
            ):
                quorum_seen = True
                attested.append(now - began[-1])
            if over(run, rounds):
                return began, attested, elected, (cpu(process) - used) / (now - began[0])
    raise AssertionError


def cpu(process: psutil.Process) -> float:
    """Return the CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def watched(process: psutil.Process, port: int, rounds: int, children: list[Any]) -> Any:
    """Return what `observe` does. Raises SystemExit if a member process fails first."""
    observing = asyncio.create_task(observe(process, port, rounds))
    while not observing.done():
        if any(child.exitcode for child in children):
            observing.cancel()
            raise SystemExit("a member ended with an error")
        await asyncio.wait([observing], timeout=1)
    return observing.result()


def measure(members: int, rounds: int, processes: int) -> dict[str, Any]:
    """Run the server and its members, and return the figures."""
    with (
        tempfile.TemporaryDirectory() as directory,
        server(Path(directory), members, rounds) as (process, port),
    ):
        spawn = multiprocessing.get_context("spawn")
        counts = [
            members // processes + (index < members % processes) for index in range(processes)
        ]
        children = [
            spawn.Process(target=run_members, args=(port, count, rounds), daemon=True)
            for count in counts
        ]
        for child in children:
            child.start()
        try:
            began, attested, elected, cores = asyncio.run(watched(process, port, rounds, children))
        finally:
            for child in children:
                child.terminate()
        span = began[-1] - began[0]
        return {
            "members": members,
            "witnesses": elected,
            "rounds": len(began) - 1,
            "rounds_per_second": round((len(began) - 1) / span, 3),
            "shortest_round_seconds": 1,
            "attested_seconds_median": round(median(attested), 3) if attested else None,
            "server_cores": round(cores, 3),
        }


def main() -> int:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--processes", type=int, default=2, help="processes that run the members (default 2)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    found = measure(given.members, given.rounds, given.processes)
    print(
        json.dumps(found, indent=1)
        if given.json
        else "\n".join(f"{name}: {value}" for name, value in found.items())
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
