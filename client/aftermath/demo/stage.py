"""Sets the demo's stage: corpus, model, wallets, chain and run, all through the commands a user has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from aftermath.cli.variables import environment
from aftermath.demo.commands import CORPUS_BYTES, MODEL, MODELS, Commands, DemoFailed, Places
from aftermath.testnet.chain import SOLANA, launch_chain
from aftermath.testnet.processes import Process, at_once, call

REPOSITORY = Path(__file__).resolve().parents[3]


def member_name(tier: int) -> str:
    """What the demo calls the member that holds a tier."""
    return f"member-{tier}"


def prepare_files(places: Places, model: str = "llama") -> None:
    """Tokenise the corpus and make the model everybody starts from."""
    scripts, log = REPOSITORY / "scripts", places.log("setup")
    corpus = [str(scripts / "tokenise.py"), "--output", str(places.data), "--budget-bytes", str(CORPUS_BYTES)]
    given = {name: size for name, size in MODEL.items() if model == "llama" or name != "kv-heads"}
    sizes = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    init = [str(scripts / "init-model.py"), "--architecture", model, "--out", str(places.model), *sizes, "--seed", "0"]
    at_once(([sys.executable, *command] for command in (corpus, init)), log, environment())


def write_config(places: Places, template: Path, model: str = "llama") -> None:
    """The run's config with this machine's paths and the model's architecture in it."""
    text = template.read_text()
    changes = (
        ("runs/demo/tokens", str(places.data)),
        ("runs/demo/model", str(places.model)),
        (MODELS["llama"], MODELS[model]),
    )
    for word, own in changes:
        if word not in text:
            raise DemoFailed(f"{template} does not say {word}")
        text = text.replace(word, own)
    places.config.write_text(text)


def launch(places: Places, engine: str, device: str = "cpu") -> tuple[Process, Commands]:
    """Start the local network without waiting for it."""
    own = environment()
    process, chain = launch_chain(places.ledger, places.log("localnet"), own, engine)
    return process, Commands(places, chain, own, device)


def create_run(commands: Commands, members: Sequence[str]) -> None:
    """Make keys for everybody, then create and configure the run as its owner does. It is still paused."""
    places, log = commands.places, commands.places.log("owner")
    create = [*SOLANA, "show-identity", "--create", "-w"]
    keys = ([*create, str(places.wallet(name))] for name in ("owner", *members))
    at_once(keys, places.log("keys"), commands.environment)
    described = ("--name", "aftermath demo", "--description", "three unequal members on one machine")
    call(commands.owner("create-run", *described), log, commands.environment)
    call(commands.owner("update-config", "--config-path", str(places.config)), log, commands.environment)


def resume_run(commands: Commands) -> None:
    """Let the run begin, as its owner does."""
    call(commands.owner("set-paused", "resume"), commands.places.log("owner"), commands.environment)
