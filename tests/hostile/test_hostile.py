"""Runs of three honest members with one hostile member in each epoch.

`make hostile` prints the table and writes runs/hostile.json, and `make hostile
ATTACKS="silence,early ticks"` has only these rows. Several runs share the attacks at the same time.
How long rounds take is recorded and not judged.
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
from e2e.company import Company, Player
from e2e.material import Material
from e2e.network import Network
from e2e.processes import PATIENCE, Running, until
from hostile.attacks import ATTACKS, NONE, epochs, newcomers_from
from hostile.table import Attacker, Row, Watch, figures, rows_of, shown

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
        "two members have shown level 0, and a quorum of two is both",
        frozenset({"every level is attested"}),
    ),
    "never a witness": (
        "every round waits `round_witness_time` for its vote, and the chain's clock counts whole seconds",
        frozenset(),
    ),
}
"""What is not stopped yet: why, and the bars that may be missed for it. All others must be met."""


class Stage:
    """A run with its honest members, and who attacks it in which epoch.

    Nobody does in the first two and in the last, which trains what an attack has left. The others
    are compared with the second and the last.
    """

    def __init__(
        self, company: Company, material: Material, xprocess: XProcess, attacks: list[str]
    ) -> None:
        self.company = company
        self.epochs = 0
        self.attackers: dict[int, Attacker] = {}
        self.newcomers: list[tuple[str, Player]] = []
        self._members_seq = -1
        self.honest = [company.player(tier) for tier in (0, 1, 2)]
        self._watch = Watch(self.honest)
        schedule = [part for name in (NONE, NONE, *attacks, NONE) for part in self._parts(name)]
        del self.attackers[0], self.attackers[self.epochs - 1]
        self._script = company.place / "schedule.json"
        self._script.write_text(json.dumps(schedule))
        self._configure(material)
        tests = str(Path(__file__).parents[1])
        paths = {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tests}"}
        command = [sys.executable, Path(__file__).with_name("cast.py"), self._script]
        cast = Running(xprocess, f"{company.run_id}-hostile", command, paths)
        for player in company.players[len(self.honest) :]:
            player.processes.append(cast)
        for player in self.honest:
            company.start(player)
        company.command("set-paused", "resume", "--run-id", company.run_id)

    def _parts(self, name: str) -> list[dict[str, Any]]:
        """Return the attackers, for `cast`. An attack of two epochs has a newcomer in its second
        one.
        """
        first = self.epochs
        self.epochs += epochs(name)
        player = self.company.player(0)
        last = self.epochs - 1
        secret = identity_secret(self.company.run_id, load_wallet(player.key))
        self.attackers[last] = Attacker(
            name, player, short(bytes(Keypair.from_seed(secret).pubkey()))
        )
        parts = [
            {"attack": name, "first": first, "epoch": last, "settings": self._settings(player)}
        ]
        if last > first:
            self.newcomers.append((name, newcomer := self.company.player(0)))
            parts.append(
                {"attack": NONE, "first": last, "epoch": last, "settings": self._settings(newcomer)}
            )
        return parts

    def _settings(self, player: Player) -> dict[str, Any]:
        """The settings of `train`, as its command line would give them."""
        words = [str(word) for word in self.company.line(player)[1:]]
        pairs = zip(words[::2], words[1::2], strict=True)
        found = {name.lstrip("-").replace("-", "_"): value for name, value in pairs}
        found["wallet_private_key_path"] = found.pop("w")
        found.pop("checkpoint_dir")  # only the honest member's is kept
        return found

    def _configure(self, material: Material) -> None:
        # so that everybody has a share
        batch = {"global_batch_size_start": 32, "global_batch_size_end": 32}
        times = {"max_round_train_time": LIMIT, "warmup_time": WARMUP, "cooldown_time": 10}
        rules = {
            "init_min_clients": 4,
            "rounds_per_epoch": ROUNDS,
            "total_steps": ROUNDS * (self.epochs + 1),
        }
        self.company.configure(
            material.config(self.company.place, one_bit=False, **times, **rules, **batch)
        )

    def over(self) -> bool:
        """Look at the run; whether every attack has had its epoch."""
        run = self.company.run
        members = self.company.members if run.members_seq != self._members_seq else None
        self._members_seq = run.members_seq
        self._watch.see(run, members)
        return run.epoch >= self.epochs or run.state is RunState.FINISHED

    def rows(self) -> list[Row]:
        made = self._script.with_name("deeds.json")
        deeds = json.loads(made.read_text()) if made.exists() else {}
        newcomers = [player for _, player in self.newcomers]
        return rows_of(
            self._watch, self.honest, newcomers, self.attackers, (1, self.epochs - 1), LIMIT, deeds
        )

    def check(self) -> None:
        """What must hold of the run, whatever was done to it."""
        for player in self.honest:
            player.process.interrupt(LEAVING_S)
        assert [player.process.code for player in self.honest] == [0, 0, 0]
        assert self.company.run.lost_sequences == 0
        for attack, player in self.newcomers:
            assert [event["source"] for event in player.diary.saw("model")] == [
                newcomers_from(attack)
            ]
        self.company.players = self.honest
        assert self.company.compare_replicas() > 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_run_under_one_attack_of_each_class_stays_sound(
    network: Network,
    material: Material,
    xprocess: XProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = attacked([Company(network, xprocess, tmp_path)], SHORT, material, xprocess, capsys)
    assert {row.attack for row in rows} == {NONE, *SHORT}


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_run_under_every_attack_stays_sound(
    network: Network,
    material: Material,
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
    companies = [Company(network, xprocess, tmp_path / f"{number}") for number in range(runs)]
    rows = attacked(companies, chosen, material, xprocess, capsys, keep=PATH)
    assert {row.attack for row in rows} == {NONE, *chosen}


def attacked(
    companies: Sequence[Company],
    attacks: Sequence[str],
    material: Material,
    xprocess: XProcess,
    capsys: pytest.CaptureFixture[str],
    keep: Path | None = None,
) -> list[Row]:
    """Share the attacks among runs, play all at once, print the table and judge every row. Return
    the rows.
    """
    rows: list[Row] = []
    try:
        stages = [
            Stage(company, material, xprocess, list(attacks[number :: len(companies)]))
            for number, company in enumerate(companies)
        ]
        try:
            play(stages)
        finally:
            rows = [row for stage in stages for row in stage.rows()]
            report(rows, capsys, keep)
        for stage in stages:
            stage.check()
    finally:
        for company in companies:
            company.disband()
    for row in rows:
        _, missed = KNOWN.get(row.attack, ("", frozenset()))
        assert set(row.failed()) <= missed, row
    return rows


def play(stages: list[Stage]) -> None:
    """Until every attack has had its epoch."""

    def over() -> bool:
        time.sleep(LOOK_EVERY_S)
        return min([stage.over() for stage in stages])  # all are looked at

    def check() -> None:
        for stage in stages:
            stage.company.check()

    try:
        until(over, "every attack has had its epoch", 2 * PATIENCE, check)
    except AssertionError as error:
        for stage in stages:
            error.add_note(stage.company.situation())
        raise


def report(rows: list[Row], capsys: pytest.CaptureFixture[str], keep: Path | None) -> None:
    """Print the table, and write it to a file if one is given."""
    if keep is not None:
        keep.parent.mkdir(exist_ok=True)
        known = {attack: why for attack, (why, _) in KNOWN.items()}
        keep.write_text(json.dumps(figures(rows, ROUNDS, LIMIT, WARMUP, known), indent=1) + "\n")
    with capsys.disabled():
        print("\n" + shown(rows, WARMUP))
