"""What the demo does: its sizes, its places on disk, and the command lines it runs.

Decided: everything is a real command of `aftermath-solana`, started as a process; the corpus is the Python standard
library's own source, which every machine has; tiers 0, 1 and 2 train one model of about a million parameters,
a Llama unless another is asked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from aftermath.chain.wallet import IDENTITY_VARIABLE, WALLET_VARIABLE
from aftermath.cli.main import INDEX, load

TIERS = (0, 1, 2)
RUN_ID = "demo"
CORPUS_BYTES = 2_000_000  # six times what the run reads, so that nothing is read twice and some can be held out
MODELS = {"llama": "HfLlama", "deepseek": "HfDeepseek", "nanogpt": "HfNanoGPT"}  # and what a run's config calls them
MODEL = {"hidden": 128, "layers": 4, "heads": 4, "kv-heads": 2, "intermediate": 512}
KILLED = 1  # the member that is killed in the first epoch
TRAIN_THREADS = 1
CALL_SECONDS = 300  # for a command that only sets the stage


def model_config(vocab_size: int, *, tied: bool = False) -> dict[str, object]:
    """The config.json of the demo's model, as far as it is not what every Llama has."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": MODEL["hidden"],
        "num_hidden_layers": MODEL["layers"],
        "num_attention_heads": MODEL["heads"],
        "num_key_value_heads": MODEL["kv-heads"],
        "intermediate_size": MODEL["intermediate"],
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
    }


def environment() -> dict[str, str]:
    """The environment of the demo's processes: what it says of the user's own runs must not steer the demo."""
    options = {str(option.envvar) for name in INDEX for option in load(name).params if option.envvar}
    read = options | {WALLET_VARIABLE, IDENTITY_VARIABLE}
    return {name: value for name, value in os.environ.items() if name not in read}


class DemoFailed(Exception):
    """The demo cannot go on; the message says what happened and where to look."""


@dataclass(frozen=True)
class Places:
    """Where the demo keeps its files."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger"

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def peers(self) -> Path:
        return self.root / "peers"

    def wallet(self, name: str) -> Path:
        return self.root / "keys" / f"{name}.json"

    @property
    def all_events(self) -> Path:
        return self.root / "events"

    def events(self, name: str) -> Path:
        return self.all_events / name

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"


@dataclass(frozen=True)
class Commands:
    """The command lines, for one chain."""

    places: Places
    rpc: str
    ws_rpc: str

    def solana(self, *arguments: str) -> list[str]:
        """An `aftermath-solana` command against this chain."""
        return [sys.executable, "-m", "aftermath.cli.main", *arguments, "--rpc", self.rpc, "--ws-rpc", self.ws_rpc]

    def owner(self, command: str, *arguments: str) -> list[str]:
        return self.solana(command, "--run-id", RUN_ID, "-w", str(self.places.wallet("owner")), *arguments)

    def train(self, name: str, tier: int) -> list[str]:
        """The command that a compute provider types."""
        archive = ["--checkpoint-dir", str(self.places.checkpoints)] if tier == 0 else []
        return [
            *self.solana("train", "--run-id", RUN_ID, "-w", str(self.places.wallet(name))),
            *("--matformer-tier", str(tier), "--micro-batch-size", "8", "--threads", str(TRAIN_THREADS)),
            *("--device", "cpu", "--iroh-relay", "disabled", "--iroh-discovery", "local"),
            *("--discovery-dir", str(self.places.peers), "--bind-p2p-interface", "127.0.0.1"),
            *("--logs", "json", "--events-dir", str(self.places.events(name)), *archive),
        ]


def call(command: list[str], log: Path) -> str:
    """Run a command to its end and return its output; DemoFailed with its last words if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=CALL_SECONDS,
            check=False,
            env=environment(),
        )
    except subprocess.TimeoutExpired:
        took = f"took longer than {CALL_SECONDS} s"
        raise DemoFailed(f"`{' '.join(command[2:4])}` {took}: is this machine busy? Try again later.") from None
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n")
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise DemoFailed(f"`{' '.join(command[2:4])}` failed:\n{said}\nThe whole log is in {log}.")
    return done.stdout


def at_once(commands: Iterable[list[str]], log: Path) -> None:
    """Run commands side by side to their ends; DemoFailed as `call` if one fails."""
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda command: call(command, log), commands):
            pass
