"""A run without a chain: a server and three members as real processes, and kill -9 of the one and of the others.

The members share nothing but the server's address: it tells them where their peers are, and serves their tokens.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest
from solders.keypair import Keypair
from xprocess import XProcess

from aftermath.localnet.free_ports import free_ports
from e2e.diary import Diary, applied_sequences, compare_replicas
from e2e.material import Material
from e2e.processes import PATIENCE, Running, until

pytestmark = pytest.mark.slow
SCRIPT = [sys.executable, "-m", "aftermath.central"]
RUN = "central"
STEPS = 24


class Central:
    """A server on one state, and its members."""

    def __init__(self, xprocess: XProcess, place: Path, state: Path) -> None:
        self._xprocess, self._place, self._state = xprocess, place, state
        self.members: dict[str, Running] = {}
        self.diaries: dict[str, Diary] = {}
        self.identities: dict[str, str] = {}
        self.port = "0"
        self.start_server()
        found = re.search(r"server ready run=(\w+) port=(\d+)", self.server.output)
        assert found is not None
        assert found[1] == RUN
        self.port = found[2]

    def start_server(self) -> None:
        words = ["server", "run", "--state", str(self._state), "-s", self.port, "--host", "127.0.0.1"]
        kept = ["--save-state-dir", str(self._place / "kept"), "--tui", "false"]
        kept += ["--data-config", str(self._place / "data.toml")]
        self.server = Running(self._xprocess, "server", [*SCRIPT, *words, *kept], ready="server ready")

    def start(self, tier: int) -> str:
        name = f"member-{tier}"
        key = self._place / f"{name}.key"
        if not key.exists():
            secret = bytes([tier + 1]) * 32
            key.write_bytes(secret)
            key.chmod(0o600)
            self.identities[name] = str(Keypair.from_seed(secret).pubkey())
            self.diaries[name] = Diary(self._place / "events" / name)
        keeps = ["--checkpoint-dir", str(self._place / "checkpoints")] if tier == 0 else []
        line = [
            *(*SCRIPT, "client", "train", "--run-id", RUN, "--server-addr", f"127.0.0.1:{self.port}", "-i", str(key)),
            *("--matformer-tier", str(tier), "--micro-batch-size", "4", "--threads", "1", "--device", "cpu"),
            *("--bind-p2p-interface", "127.0.0.1", "--logs", "json", "--events-dir"),
            *(str(self._place / "events" / name), *keeps),
        ]
        own = {"OMP_NUM_THREADS": "1", "HOME": str(self._place / f"home-{tier}"), "TMPDIR": str(self._temporary(tier))}
        self.members[name] = Running(self._xprocess, f"central-{name}", line, own)
        return name

    def _temporary(self, tier: int) -> Path:
        made = self._place / f"tmp-{tier}"
        made.mkdir(exist_ok=True)
        return made

    def check(self) -> None:
        for process in (self.server, *self.members.values()):
            process.check()

    def until(self, wanted: Callable[[], bool], what: str) -> None:
        try:
            until(wanted, what, PATIENCE, self.check)
        except AssertionError as error:
            error.add_note("\n".join(p.last_words for p in (self.server, *self.members.values())))
            raise

    def applied(self, name: str) -> int:
        return len(self.diaries[name].saw("applied"))


@pytest.fixture
def central(xprocess: XProcess, material: Material, tmp_path: Path) -> Central:
    rules = {"rounds_per_epoch": STEPS // 3, "total_steps": STEPS, "min_round_time": 1}
    config = material.config(tmp_path, **rules)
    local = f"data_location = {{ Local = {json.dumps(str(material.tokens))} }}"
    served = f'data_location = {{ Server = "127.0.0.1:{free_ports("127.0.0.1", 1)}" }}'
    text = config.read_text()
    assert local in text
    state = tmp_path / "state.toml"
    state.write_text(f'run_id = "{RUN}"\n{text.replace(local, served)}')
    (tmp_path / "data.toml").write_text(f"dir = {json.dumps(str(material.tokens))}\nseq_len = 32\n")
    return Central(xprocess, tmp_path, state)


def test_a_run_outlives_kill_9_of_its_server_and_of_a_member(central: Central) -> None:
    names = [central.start(tier) for tier in (0, 1, 2)]
    central.until(lambda: central.applied(names[0]) >= 2, "rounds go on")
    central.server.kill()  # in the middle of a round
    before = central.applied(names[0])
    central.start_server()
    central.until(lambda: central.applied(names[0]) > before + 1, "they go on with the server that came back")
    central.until(lambda: central.applied(names[2]) >= STEPS // 3 + 2, "the second epoch goes on")
    central.members[names[2]].kill()
    gone = f"{central.identities[names[2]]} is withdrawn from the run"
    central.until(lambda: gone in central.server.output, "who is gone is withdrawn")
    back = central.start(2)
    survivors = names[:2]
    for name in survivors:
        assert central.members[name].wait() == 0
    central.until(lambda: central.members[back].code == 0, "who came back ends too")
    steps = [event["step"] for event in central.diaries[names[0]].saw("applied")]
    assert steps == list(range(1, STEPS + 1)), "no step was lost, none was done twice"
    assert applied_sequences(central.diaries[names[0]]) == list(range(STEPS * 9))
    assert compare_replicas(central.diaries) > STEPS
    losses = [event["loss"] for event in central.diaries[names[0]].saw("trained")]
    assert mean(losses[-4:]) < mean(losses[:4])
    central.server.kill()
