"""Test runs of three honest members with one hostile member in each epoch.

`make hostile` prints the table and writes runs/hostile.json, and `make hostile
ATTACKS="silence,early ticks"` has only these rows. Several runs share the attacks in parallel.
Durations of rounds are recorded but not checked.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair
from xprocess import XProcess

from aftermath.chain.wallet import identity_secret, load_wallet
from aftermath.p2p.transport import short
from aftermath.rules.state import RunState
from e2e.cluster import ClusterMember, TrainingCluster
from e2e.network import Network
from e2e.processes import PATIENCE, Running, until
from e2e.run_inputs import RunInputs
from hostile.attack_table import Attacker, Row, RunRecorder, figures, format_table, rows_of
from hostile.attacks import ATTACKS, NONE, epochs, newcomers_from

pytestmark = pytest.mark.timeout(3 * PATIENCE)
RUNS = 3
"""Number of runs that share the attacks of the full table."""
SHORT = (
    "truncated results",
    "two results to all",
    "false witness",
    "false offers of the model",
    "early ticks",
)
"""One attack of each class: bytes, equivocation, votes, the shared model, the clock. Copying is in
tests/member/test_member_copies.py.
"""
ROUNDS = 4
LIMIT = 15
WARMUP = 20
LOOK_EVERY_S = 0.1
LEAVING_S = 20.0
PATH = Path(__file__).parents[2] / "runs" / "hostile.json"

KNOWN: dict[str, tuple[str, frozenset[str]]] = {
    "false attestation of the model": (
        "level 0 has two holders, so its quorum needs both of them",
        frozenset({"every level is attested"}),
    ),
    "never a witness": (
        "every round waits `round_witness_time` for its vote, and the chain's clock counts whole seconds",
        frozenset(),
    ),
}
"""Attacks that are not stopped yet: the reason, and the limits that they may miss. All others must
meet all limits.
"""


class AttackedRun:
    """A run with its honest members, and the attacker of each epoch.

    The first two epochs and the last have no attacker. The last one trains the model that the
    attacks have left. The others are compared with the second and the last.
    """

    def __init__(
        self,
        cluster: TrainingCluster,
        run_inputs: RunInputs,
        xprocess: XProcess,
        attacks: list[str],
    ) -> None:
        self.cluster = cluster
        self.epochs = 0
        self.attackers: dict[int, Attacker] = {}
        self.newcomers: list[tuple[str, ClusterMember]] = []
        self._members_seq = -1
        self.honest = [cluster.add_member(tier) for tier in (0, 1, 2)]
        self._recorder = RunRecorder(self.honest)
        schedule = [part for name in (NONE, NONE, *attacks, NONE) for part in self._parts(name)]
        del self.attackers[0], self.attackers[self.epochs - 1]
        self._script = cluster.place / "schedule.json"
        self._script.write_text(json.dumps(schedule))
        self._configure(run_inputs)
        tests = str(Path(__file__).parents[1])
        paths = {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tests}"}
        command = [sys.executable, Path(__file__).with_name("attacker_process.py"), self._script]
        attackers = Running(xprocess, f"{cluster.run_id}-hostile", command, paths)
        for member in cluster.members[len(self.honest) :]:
            member.processes.append(attackers)
        for member in self.honest:
            cluster.start(member)
        cluster.command("set-paused", "resume", "--run-id", cluster.run_id)

    def _parts(self, name: str) -> list[dict[str, Any]]:
        """Return the parts of the schedule. An attack of two epochs has a newcomer in its second
        one.
        """
        first = self.epochs
        self.epochs += epochs(name)
        member = self.cluster.add_member(0)
        last = self.epochs - 1
        secret = identity_secret(self.cluster.run_id, load_wallet(member.key))
        self.attackers[last] = Attacker(
            name, member, short(bytes(Keypair.from_seed(secret).pubkey()))
        )
        parts = [
            {"attack": name, "first": first, "epoch": last, "settings": self._settings(member)}
        ]
        if last > first:
            self.newcomers.append((name, newcomer := self.cluster.add_member(0)))
            parts.append(
                {"attack": NONE, "first": last, "epoch": last, "settings": self._settings(newcomer)}
            )
        return parts

    def _settings(self, member: ClusterMember) -> dict[str, Any]:
        """Return the settings of `train`, as its command line would give them."""
        words = [str(word) for word in self.cluster.line(member)[1:]]
        pairs = zip(words[::2], words[1::2], strict=True)
        settings = {name.lstrip("-").replace("-", "_"): value for name, value in pairs}
        settings["wallet_private_key_path"] = settings.pop("w")
        settings.pop("checkpoint_dir")  # only honest members keep checkpoints
        return settings

    def _configure(self, run_inputs: RunInputs) -> None:
        # so that all members have a share
        batch = {"global_batch_size_start": 32, "global_batch_size_end": 32}
        times = {"max_round_train_time": LIMIT, "warmup_time": WARMUP, "cooldown_time": 10}
        rules = {
            "init_min_clients": 4,
            "rounds_per_epoch": ROUNDS,
            "total_steps": ROUNDS * (self.epochs + 1),
        }
        self.cluster.configure(
            run_inputs.config(self.cluster.place, one_bit=False, **times, **rules, **batch)
        )

    def over(self) -> bool:
        """Record the run's state. Return whether every attack has had its epoch."""
        run = self.cluster.run
        members = self.cluster.chain_members if run.members_seq != self._members_seq else None
        self._members_seq = run.members_seq
        self._recorder.record(run, members)
        return run.epoch >= self.epochs or run.state is RunState.FINISHED

    def rows(self) -> list[Row]:
        actions_file = self._script.with_name("actions.json")
        actions = json.loads(actions_file.read_text()) if actions_file.exists() else {}
        newcomers = [member for _, member in self.newcomers]
        return rows_of(
            self._recorder,
            self.honest,
            newcomers,
            self.attackers,
            (1, self.epochs - 1),
            LIMIT,
            actions,
        )

    def check(self) -> None:
        """Check what must hold after any attack."""
        for member in self.honest:
            member.process.interrupt(LEAVING_S)
        assert [member.process.code for member in self.honest] == [0, 0, 0]
        assert self.cluster.run.lost_sequences == 0
        for attack, member in self.newcomers:
            assert [event["source"] for event in member.event_log.events_of("model")] == [
                newcomers_from(attack)
            ]
        self.cluster.members = self.honest
        assert self.cluster.compare_replicas() > 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_run_under_one_attack_of_each_class_stays_sound(
    network: Network,
    run_inputs: RunInputs,
    xprocess: XProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = attacked(
        [TrainingCluster(network, xprocess, tmp_path)], SHORT, run_inputs, xprocess, capsys
    )
    assert {row.attack for row in rows} == {NONE, *SHORT}


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_run_under_every_attack_stays_sound(
    network: Network,
    run_inputs: RunInputs,
    xprocess: XProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = [name for name in os.environ.get("ATTACKS", "").split(",") if name] or [
        n for n in ATTACKS if n != NONE
    ]
    unknown = [name for name in chosen if name not in ATTACKS]
    assert not unknown, (
        f"ATTACKS (make hostile ATTACKS=...) names {unknown}; there are {', '.join(ATTACKS)}"
    )
    runs = RUNS if len(chosen) > RUNS else 1
    clusters = [
        TrainingCluster(network, xprocess, tmp_path / f"{number}") for number in range(runs)
    ]
    rows = attacked(clusters, chosen, run_inputs, xprocess, capsys, keep=PATH)
    assert {row.attack for row in rows} == {NONE, *chosen}


def attacked(
    clusters: Sequence[TrainingCluster],
    attacks: Sequence[str],
    run_inputs: RunInputs,
    xprocess: XProcess,
    capsys: pytest.CaptureFixture[str],
    keep: Path | None = None,
) -> list[Row]:
    """Distribute the attacks over runs, run all in parallel, print the table and check every row.
    Return the rows.
    """
    rows: list[Row] = []
    try:
        runs = [
            AttackedRun(cluster, run_inputs, xprocess, list(attacks[number :: len(clusters)]))
            for number, cluster in enumerate(clusters)
        ]
        try:
            play(runs)
        finally:
            rows = [row for run in runs for row in run.rows()]
            report(rows, capsys, keep)
        for run in runs:
            run.check()
    finally:
        for cluster in clusters:
            cluster.kill_all()
    for row in rows:
        _, missed = KNOWN.get(row.attack, ("", frozenset()))
        assert set(row.failed()) <= missed, row
    return rows


def play(runs: list[AttackedRun]) -> None:
    """Wait until every attack has had its epoch."""

    def over() -> bool:
        time.sleep(LOOK_EVERY_S)
        return min([run.over() for run in runs])  # records every run

    def check() -> None:
        for run in runs:
            run.cluster.check()

    try:
        until(over, "every attack has had its epoch", 2 * PATIENCE, check)
    except AssertionError as error:
        for run in runs:
            error.add_note(run.cluster.situation())
        raise


def report(rows: list[Row], capsys: pytest.CaptureFixture[str], keep: Path | None) -> None:
    """Print the table, and write it to a file if one is given."""
    if keep is not None:
        keep.parent.mkdir(exist_ok=True)
        known = {attack: why for attack, (why, _) in KNOWN.items()}
        keep.write_text(json.dumps(figures(rows, ROUNDS, LIMIT, WARMUP, known), indent=1) + "\n")
    with capsys.disabled():
        print("\n" + format_table(rows, WARMUP))
