"""The demo's sizes, its files, and the `aftermath-solana` commands that it runs.

The corpus is the standard library's source, which every machine has. Tiers 0, 1 and 2 train one
model of about a million parameters, a Llama by default.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aftermath.cli.main import child_environment
from aftermath.config.recipe_file import recipe_of
from aftermath.testnet.chain import SOLANA, LocalNetwork, launch_chain
from aftermath.testnet.files import SHIPPED
from aftermath.testnet.processes import Process, ProcessError, at_once, call

TIERS = (0, 1, 2)
RUN_ID = "demo"
FILES = recipe_of(SHIPPED / "demo" / "config.toml")
CORPUS_BYTES: int = FILES["tokens"]["budget-bytes"]
# architectures by option, as a run's config names them
MODELS = {"llama": "HfLlama", "deepseek": "HfDeepseek", "nanogpt": "HfNanoGPT"}
MODEL: dict[str, int] = FILES["model"]
OPTIMIZERS = {
    "sparseloco": (
        "config.toml",
        "SparseLoCo: every member takes four steps of Muon in a round and sends what they changed",
    ),
    "distro": (
        "distro-config.toml",
        "DisTrO: a round is one step, and every member sends its largest coefficients",
    ),
}
"""The config in config/demo and a description of each optimizer."""
KILLED = 1  # the member that is killed in the first epoch
TRAIN_THREADS = 1


def model_config(vocab_size: int, *, tied: bool = False) -> dict[str, object]:
    """Return the parts of the model's config.json that differ from Llama's defaults."""
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


class DemoFailed(ProcessError):
    """The demo cannot continue. The message says what happened and where to look."""


DEMO_NAMES = (
    r"config\.toml|checkpoints|data|demo-report\.json|events|keys|ledger|logs|loss\.png|model|peers"
)
"""Names of the entries that the demo makes in its directory."""


@dataclass(frozen=True)
class DemoPaths:
    """The demo's files."""

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
    """The command lines for one chain."""

    paths: DemoPaths
    chain: LocalNetwork
    environment: Mapping[str, str]
    device: str = "cpu"
    """Device of the tier-0 member. The others train on the CPU."""

    def owner(self, command: str, *arguments: str) -> list[str]:
        wallet = str(self.paths.wallet("owner"))
        return self.chain.command(command, "--run-id", RUN_ID, "-w", wallet, *arguments)

    def train(self, name: str, tier: int) -> list[str]:
        """Return the command that a compute provider types."""
        archive = ["--checkpoint-dir", str(self.paths.checkpoints)] if tier == 0 else []
        return [
            *self.chain.command("train", "--run-id", RUN_ID, "-w", str(self.paths.wallet(name))),
            *(
                "--matformer-tier",
                str(tier),
                "--micro-batch-size",
                "8",
                "--threads",
                str(TRAIN_THREADS),
            ),
            *(
                "--device",
                "cpu" if tier else self.device,
                "--iroh-relay",
                "disabled",
                "--iroh-discovery",
                "local",
            ),
            *("--discovery-dir", str(self.paths.peers), "--bind-p2p-interface", "127.0.0.1"),
            *("--logs", "json", "--events-dir", str(self.paths.events(name)), *archive),
        ]


REPOSITORY = Path(__file__).resolve().parents[3]


def member_name(tier: int) -> str:
    """Return the name of the member that holds a tier."""
    return f"member-{tier}"


def prepare_files(paths: DemoPaths, model: str = "llama") -> None:
    """Tokenise the corpus and create the initial model."""
    scripts = REPOSITORY / "scripts"
    log = paths.log("setup")
    corpus = [
        str(scripts / "tokenise.py"),
        "--output",
        str(paths.data),
        "--budget-bytes",
        str(CORPUS_BYTES),
    ]
    size_options = {
        name: size for name, size in MODEL.items() if model == "llama" or name != "kv-heads"
    }
    sizes = [word for name, value in size_options.items() for word in (f"--{name}", str(value))]
    init = [
        str(scripts / "init-model.py"),
        "--architecture",
        model,
        "--out",
        str(paths.model),
        *sizes,
        "--seed",
        "0",
    ]
    at_once(([sys.executable, *command] for command in (corpus, init)), log, child_environment())


def write_config(paths: DemoPaths, template: Path, model: str = "llama") -> None:
    """Write the run's config with this machine's paths and the model's architecture."""
    text = template.read_text()
    changes = (
        ("runs/demo/tokens", str(paths.data)),
        ("runs/demo/model", str(paths.model)),
        (MODELS["llama"], MODELS[model]),
    )
    for word, own in changes:
        if word not in text:
            raise DemoFailed(f"{template} does not contain {word}")
        text = text.replace(word, own)
    paths.config.write_text(text)


def launch(paths: DemoPaths, engine: str, device: str = "cpu") -> tuple[Process, Commands]:
    """Start the local network without waiting for it."""
    environment = child_environment()
    process, chain = launch_chain(paths.ledger, paths.log("localnet"), environment, engine)
    return process, Commands(paths, chain, environment, device)


def create_run(commands: Commands, members: Sequence[str]) -> None:
    """Create all keys, then create and configure the run as its owner does. The run stays
    paused.
    """
    paths = commands.paths
    log = commands.paths.log("owner")
    create = [*SOLANA, "show-identity", "--create", "-w"]
    keys = ([*create, str(paths.wallet(name))] for name in ("owner", *members))
    at_once(keys, paths.log("keys"), commands.environment)
    described = (
        "--name",
        "aftermath demo",
        "--description",
        "three unequal members on one machine",
    )
    call(commands.owner("create-run", *described), log, commands.environment)
    call(
        commands.owner("update-config", "--config-path", str(paths.config)),
        log,
        commands.environment,
    )


def resume_run(commands: Commands) -> None:
    """Start the run, as its owner does."""
    call(commands.owner("set-paused", "resume"), commands.paths.log("owner"), commands.environment)
