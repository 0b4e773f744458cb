"""Print the command that usually follows, as one line on stderr: `next: …`.

The line repeats the options for cluster and wallet, and runs as printed. A command that needs a
value that only the user knows is not printed. Nothing is printed with `--json` or AFTERMATH_QUIET.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from aftermath.base.errors import AftermathError
from aftermath.cli.present import note
from aftermath.cli.usage import choices, profile_key
from aftermath.train.tier import AUTO_TIER

QUIET = "AFTERMATH_QUIET"
_LOOK = "show-run --run-id {run_id}"
_WATCH = "watch --run-id {run_id}"
_TRAIN = "train --run-id {run_id} --matformer-tier 0"
_TICK = "tick --run-id {run_id}"
_RESUME = "set-paused --run-id {run_id} resume"
NEXT: Mapping[tuple[str, str], str] = {
    ("config validate", ""): "estimate --config-path {file}",
    ("update-config", ""): _RESUME,
    ("update-config", "finished"): "reopen --run-id {run_id} --total-steps {total_steps}",
    ("set-paused", ""): _WATCH,
    ("set-paused", "stalled"): _TICK,
    ("set-paused", "resumed"): _TRAIN,
    ("set-paused", "paused"): _RESUME,
    ("checkpoint", ""): _LOOK,
    ("rewind", ""): _RESUME,
    ("reopen", ""): _TRAIN,
    ("kick", ""): _LOOK,
    ("set-future-epoch-rates", ""): _LOOK,
    ("tick", ""): _LOOK,
    ("close-run", ""): "list-runs",
    ("show-identity", "created"): "config set wallet {wallet_private_key_path}",
    ("can-join", "file"): "train --run-id {run_id} --matformer-tier {matformer_tier} -w {address}",
    ("predownload", ""): "train --run-id {run_id} --matformer-tier {matformer_tier}",
    ("withdraw", ""): "list-runs",
    ("model init", ""): "model inspect --model {out}",
    ("model export", ""): "model verify --model {checkpoint}",
    ("data tokenize", ""): "data inspect --data-path {output}",
    ("data fetch", ""): "data inspect --data-path {output}",
}
"""Next commands by command and `Result.case`. Words in braces are its options, or in `Result.made`.
"""
_WALLET = "wallet_private_key_path"
_FLAGS = {
    "rpc": "--rpc",
    "ws_rpc": "--ws-rpc",
    "coordinator_program_id": "--coordinator-program-id",
    _WALLET: "-w",
}
_ADDRESSES = ("--rpc", "--ws-rpc")
_CARRIED = (
    "authorizer",
    "owner",
    "max_bond",
    "device",
    "data_path",
    "model_path",
    "data_root",
    "allow_private_network",
    "hub_token_for",
)
"""Options of can-join and predownload without which `train` might refuse what they accepted."""
_IN_BRACES = re.compile(r"{(\w+)}")
_HIDDEN_ADDRESS = re.compile(r" --(ws-)?rpc (WS_)?RPC_ADDRESS\b")
"""An address that may contain an API key, as `_context_options` shows it."""
_WORD = re.compile(r"\s+('[^']*'|[^\s;,]+)")
_OTHERS = re.compile(r"\b(owner|join authority|grantee)\b[^;\n]*$")
"""Words before a command that say that another person calls it."""


def say_next(name: str, case: str, options: Mapping[str, Any]) -> None:
    """Print the command that usually follows `name`, if there is one. `options`: its options."""
    if "server_addr" in options:
        has_identity = options["identity_secret_key_path"] is not None
        if has_identity and name in ("can-join", "predownload") and not os.environ.get(QUIET):
            note(f"next: {_train_at_server(options)}")
        return
    template = NEXT.get((name, case))
    if template is None or os.environ.get(QUIET):
        return
    if any(options.get(key) is None for key in _IN_BRACES.findall(template)):
        return
    command = line(template, options)
    if not _HIDDEN_ADDRESS.search(command):
        note(f"next: {command}")


def _train_at_server(options: Mapping[str, Any]) -> str:
    """Return the command that joins the run of a server."""
    words = [
        "aftermath-centralized",
        "client",
        "train",
        "--run-id",
        options["run_id"],
        "--server-addr",
    ]
    words += [options["server_addr"], "-i", str(options["identity_secret_key_path"])]
    words += ["--tls"] if options["tls"] else []
    words += ["--tls-ca", str(options["tls_ca"])] if options["tls_ca"] else []
    tier = options["matformer_tier"]
    words += ["--matformer-tier", "auto" if tier == AUTO_TIER else str(tier)]
    return shlex.join([*words, *_train_options(options)])


def _train_options(options: Mapping[str, Any]) -> list[str]:
    """Return `--checkpoint-dir` for tiers that save checkpoints, and the options to repeat."""
    from aftermath.model.saved_checkpoints import file_name

    words = []
    # otherwise the model is lost with the last member
    if options.get("matformer_tier", 0) in (0, AUTO_TIER):
        usual = f"runs/{file_name(options['run_id'] or 'RUN_ID')}/checkpoints"
        words += ["--checkpoint-dir", str(options.get("checkpoint_dir") or usual)]
    for name in _CARRIED:
        value = options.get(name)
        if value in (None, False, 0, "auto"):  # these are the defaults of `train` too
            continue
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return words


def line(template: str, options: Mapping[str, Any]) -> str:
    """Return the command line of a template, with cluster and wallet options."""
    train_options = _train_options(options) if template.startswith("train ") else []
    options = (
        {**options, "matformer_tier": "auto"}
        if options.get("matformer_tier") == AUTO_TIER
        else options
    )
    values = {
        key: shlex.quote(str(value)) if value is not None else key.upper()
        for key, value in options.items()
    }
    from aftermath.cli.main import SOLANA

    next_command = SOLANA.command_of(shlex.split(template))
    assert next_command is not None
    words = [f"{SOLANA.name} {template.format_map(values)}", *map(shlex.quote, train_options)]
    return " ".join([*words, *_context_options(next_command, template, options)])


def completed(text: str, options: Mapping[str, Any]) -> str:
    """Add the running command's cluster and wallet options to the commands that a text suggests.

    `options`: the options of the running command. Commands for another person get no wallet.
    """
    from aftermath.cli.main import SOLANA

    pieces = re.split(rf"\b({SOLANA.name} )(?=[a-z])", text)
    text_so_far = pieces[0]
    prose = pieces[0]  # look only before the command, which may contain a file named owner.json
    for script, tail in zip(pieces[1::2], pieces[2::2], strict=True):
        name = SOLANA.command_of([word.rstrip(";,.:)") for word in tail.split()[:2]])
        if name is None or not tail.startswith(name):
            text_so_far += script + tail
            prose += tail
            continue
        end = len(name) + _end_of_command(name, tail[len(name) :])
        line = tail[:end]
        following = tail[end:]
        usable = {
            key: value
            for key, value in options.items()
            if key != _WALLET or not _OTHERS.search(prose)
        }
        added = (
            ""
            if following.startswith(" --help")
            else "".join(f" {word}" for word in _context_options(name, f"{line} ", usable))
        )
        text_so_far += script + line + added + following
        prose += following
    return text_so_far


def _end_of_command(name: str, tail: str) -> int:
    """Return where the options and arguments of a command end in the text behind its name."""
    from aftermath.cli.main import SOLANA

    kinds = SOLANA.kinds(name)
    flags: dict[str, bool] = {}
    words: set[str] = set()
    for option in SOLANA.load(name).params:
        flags |= dict.fromkeys(option.opts, getattr(option, "is_flag", False))
        if option.param_type_name == "argument":
            words |= set(choices(kinds.get(option.name)))
    end = 0
    value_follows = False
    while match := _WORD.match(tail, end):
        word = match[1].rstrip(".:)")
        if not value_follows and word not in flags and word not in words:
            break
        value_follows = not value_follows and not flags.get(word, True)
        end = match.start(1) + len(word)
        if word != match[1]:
            break
    return end


def _context_options(next_command: str, template: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the cluster and wallet options that the command `next_command` would otherwise miss.

    Skip options that `template` has, and values in an environment variable or the profile.
    """
    from aftermath.chain.endpoints import CLUSTERS, shown
    from aftermath.cli.main import SOLANA

    stored: Mapping[str, str] = {}
    with suppress(AftermathError):  # the error to print may be about the profile itself
        stored = SOLANA.stored()
    for option in SOLANA.load(next_command).params:
        value = options.get(str(option.name))
        flag = _FLAGS.get(str(option.name))
        if flag is None or value in (None, option.default) or f" {flag} " in template:
            continue
        if str(value) in (os.environ.get(str(option.envvar)), stored.get(profile_key(option))):
            continue
        if flag in _ADDRESSES and value not in CLUSTERS and shown(value) != value.rstrip("/"):
            # the address may contain an API key, so print a placeholder
            yield f"{flag} {flag[2:].replace('-', '_').upper()}_ADDRESS"
        else:
            yield f"{flag} {shlex.quote(str(value))}"
