"""Tests of user mistakes with `train`: it prints a sentence and a fix, exits with 1, and shows no
traceback.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from xprocess import XProcess

from aftermath.programs import AUTHORIZER_ID
from e2e.cluster import THREADS, TrainingCluster
from e2e.network import Network
from e2e.processes import Running, RunningMember
from e2e.run_inputs import RunInputs

pytestmark = pytest.mark.slow


@dataclass
class Scene:
    """Runs with mistakes on one network."""

    network: Network
    xprocess: XProcess
    run_inputs: RunInputs
    place: Path
    clusters: dict[str, TrainingCluster] = field(default_factory=dict)
    sockets: list[socket.socket] = field(default_factory=list)
    """Ports that stay occupied."""

    def run(self, name: str, run_inputs: RunInputs | None = None) -> TrainingCluster:
        """Return a configured run. Create it at the first call."""
        if name not in self.clusters:
            cluster = TrainingCluster(self.network, self.xprocess, self.place / name)
            cluster.configure((run_inputs or self.run_inputs).config(cluster.place))
            self.clusters[name] = cluster
        return self.clusters[name]

    def line(self, cluster: TrainingCluster, *options: str | Path) -> list[str | Path]:
        return cluster.line(cluster.add_member(0), *options)


Mistake = Callable[[Scene], list[str | Path]]


def unknown_run(scene: Scene) -> list[str | Path]:
    return scene.line(scene.run("good"), "--run-id", "nowhere")


def wrong_program(scene: Scene) -> list[str | Path]:
    return scene.line(scene.run("good"), "--coordinator-program-id", AUTHORIZER_ID)


def no_program_id(scene: Scene) -> list[str | Path]:
    return scene.line(scene.run("good"), "--coordinator-program-id", "nonsense")


def closed_run(scene: Scene) -> list[str | Path]:
    cluster = scene.run("closed")
    cluster.command("close-run", "--run-id", cluster.run_id, "--yes")
    return scene.line(cluster)


def missing_wallet(scene: Scene) -> list[str | Path]:
    return scene.line(scene.run("good"), "-w", scene.place / "no-such-wallet.json")


def wallet_that_is_no_key(scene: Scene) -> list[str | Path]:
    path = scene.place / "broken.json"
    path.write_text("[1, 2, 3]")
    return scene.line(scene.run("good"), "-w", path)


def unreadable_wallet(scene: Scene) -> list[str | Path]:
    directory = scene.place / "a-directory.json"
    directory.mkdir()
    return scene.line(scene.run("good"), "-w", directory)


def identity_that_is_no_key(scene: Scene) -> list[str | Path]:
    path = scene.place / "identity"
    path.write_bytes(b"too short")
    return scene.line(scene.run("good"), "--identity-secret-key-path", path)


def missing_data(scene: Scene) -> list[str | Path]:
    return scene.line(
        scene.run("no-data", scene.run_inputs.replacing(tokens=scene.place / "no-tokens"))
    )


def truncated_data(scene: Scene) -> list[str | Path]:
    tokens = shutil.copytree(scene.run_inputs.tokens, scene.place / "truncated")
    run = scene.run("truncated-data", scene.run_inputs.replacing(tokens=tokens))
    file = sorted(tokens.glob("*.bin"))[0]
    os.truncate(file, file.stat().st_size - 1)  # after its owner has seen all its parts
    return scene.line(run)


def tier_out_of_range(scene: Scene) -> list[str | Path]:
    return scene.line(scene.run("good"), "--matformer-tier", "3")


def changed_model(scene: Scene) -> list[str | Path]:
    model = shutil.copytree(scene.run_inputs.model, scene.place / "changed")
    line = scene.line(scene.run("changed-model", scene.run_inputs.replacing(model=model)))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    return line


def rpc_down(scene: Scene) -> list[str | Path]:
    # Other tests take free ports meanwhile, and nobody listens on this one.
    nobody = ("--rpc", "http://127.0.0.1:9", "--ws-rpc", "ws://127.0.0.1:9")
    return scene.line(scene.run("good"), *nobody)


def occupied_port(scene: Scene) -> list[str | Path]:
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.bind(("127.0.0.1", 0))
    scene.sockets.append(taken)
    return scene.line(scene.run("good"), "--bind-p2p-port", str(taken.getsockname()[1]))


MISTAKES: dict[Mistake, tuple[str, str]] = {
    # first, because it takes longest
    rpc_down: ("no Solana RPC endpoint answered", "pass another node with --rpc"),
    unknown_run: ("there is no run 'nowhere'", "list-runs"),
    wrong_program: ("there is no run", "--coordinator-program-id"),
    no_program_id: ("nonsense", "--coordinator-program-id"),
    closed_run: ("there is no run", "list-runs"),
    missing_wallet: ("there is no key file", "show-identity --create"),
    wallet_that_is_no_key: ("broken.json is not a Solana private key", "JSON array of 64 numbers"),
    unreadable_wallet: ("a-directory.json: Is a directory", "Check the path"),
    identity_that_is_no_key: ("identity is not an identity key", "32 raw bytes or 64 hex digits"),
    missing_data: ("there is no token data at", "Get the run's data from its owner"),
    truncated_data: ("is truncated", "Get the run's data from its owner"),
    tier_out_of_range: ("has tiers 0 to 2", "Choose a tier from 0 to 2"),
    changed_model: ("does not fit run", "Restore it, or run update-config again"),
    occupied_port: ("is already in use", "--bind-p2p-port"),
}


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest,
    network: Network,
    xprocess: XProcess,
    run_inputs: RunInputs,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[Mistake, Running]]:
    """Start `train` with each selected mistake, all at once, and return the outcomes."""
    place = tmp_path_factory.mktemp("mistakes")
    scene = Scene(network, xprocess, run_inputs, place)
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    mistakes = [
        spec.params["mistake"]
        for spec in parameters
        if spec is not None and "mistake" in spec.params
    ]
    yield {
        mistake: RunningMember(mistake.__name__, mistake(scene), place / "logs", THREADS)
        for mistake in MISTAKES
        if mistake in mistakes
    }
    for taken in scene.sockets:
        taken.close()


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_mistake_prints_sentence_and_fix(
    outcomes: dict[Mistake, Running], mistake: Mistake
) -> None:
    process = outcomes[mistake]
    sentence, fix = MISTAKES[mistake]
    assert process.wait() == (2 if mistake is no_program_id else 1), process.output
    assert "Traceback" not in process.output
    error_text = re.fullmatch(r"(?:.*\n)*error: (.+)\nfix: (.+)\n(?:docs: .+\n)?", process.output)
    assert error_text is not None, process.output
    assert sentence in error_text[1]
    assert fix in error_text[2]
