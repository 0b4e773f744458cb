"""Sets the demo's stage: corpus, model, wallets, chain and run, all through the commands a user has."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from aftermath.demo.commands import CORPUS_BYTES, MODEL, MODELS, Commands, DemoFailed, Places, at_once, call
from aftermath.demo.processes import Process, wait_for
from aftermath.localnet.free_ports import free_ports

REPOSITORY = Path(__file__).resolve().parents[3]
SLOT_MS = 50
"""An eighth of mainnet's: a round lasts until the slot of the next one's seed is over, which is four slots later."""


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
    at_once(([sys.executable, *command] for command in (corpus, init)), log)


def write_config(places: Places, template: Path, model: str = "llama") -> None:
    """The run's config with this machine's paths and the model's architecture in it."""
    text = template.read_text()
    changes = (("demo/tokens", str(places.data)), ("demo/model", str(places.model)), (MODELS["llama"], MODELS[model]))
    for word, own in changes:
        if word not in text:
            raise DemoFailed(f"{template} does not say {word}")
        text = text.replace(word, own)
    places.config.write_text(text)


def start_chain(places: Places, engine: str) -> tuple[Process, Commands]:
    """The local network, ready to answer."""
    port = free_ports("127.0.0.1", 2)  # Solana's websocket is at the RPC's port plus one
    rpc = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "aftermath.cli.main", "localnet", "--engine", engine, "--slot-ms", str(SLOT_MS)]
    chain = Process("localnet", [*command, "--port", str(port), "--ledger", str(places.ledger)], places.log("localnet"))
    wait_for("the local network", lambda: healthy(rpc), 90, chain)
    return chain, Commands(places, rpc, f"ws://127.0.0.1:{port + 1}")


def ask(rpc: str, method: str, *params: object) -> object:
    """One JSON-RPC call."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}).encode()
    request = urllib.request.Request(rpc, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        answer = json.load(reply)
    if "error" in answer:
        raise DemoFailed(f"{method}: {answer['error']}")
    return answer["result"]


def healthy(rpc: str) -> bool:
    try:
        return ask(rpc, "getHealth") == "ok"
    except (OSError, ValueError, DemoFailed):
        return False


def create_run(commands: Commands, members: Sequence[str]) -> None:
    """Keys for everybody, then what a run owner types: three commands."""
    places, log = commands.places, commands.places.log("owner")
    create = [sys.executable, "-m", "aftermath.cli.main", "show-identity", "--create", "-w"]
    at_once(([*create, str(places.wallet(name))] for name in ("owner", *members)), log)
    described = ("--name", "aftermath demo", "--description", "three unequal members on one machine")
    call(commands.owner("create-run", *described), log)
    call(commands.owner("update-config", "--config-path", str(places.config)), log)
    call(commands.owner("set-paused", "resume"), log)
