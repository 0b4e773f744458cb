"""Print the command that usually follows, as one line on stderr: `next: …`.

The line repeats the options for cluster and wallet, so that it can be copied. Nothing is printed
with `--json` or AFTERMATH_QUIET.
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
from aftermath.cli.usage import choices, stored_as
from aftermath.train.tier import AUTO_TIER

QUIET = "AFTERMATH_QUIET"
_CONFIGURE = "update-config --run-id {run_id} --config-path FILE"
_LOOK = "show-run --run-id {run_id}"
_WATCH = "watch --run-id {run_id}"
_RESUME = "set-paused --run-id {run_id} resume"
NEXT: Mapping[tuple[str, str], str] = {
    ("create-run", ""): _CONFIGURE,
    ("update-config", ""): _RESUME,
    (
        "update-config",
        "invited",
    ): "join-authorization-create --run-id {run_id} --authorizer KEY -w JOIN_AUTHORITY_FILE",
    ("set-paused", ""): _WATCH,
    ("set-paused", "paused"): _CONFIGURE,
    ("checkpoint", ""): _LOOK,
    ("rewind", ""): _RESUME,
    ("rewind", "listed"): "rewind --run-id {run_id} --to-step STEP",
    ("reopen", ""): _WATCH,
    ("kick", ""): _LOOK,
    ("set-future-epoch-rates", ""): _LOOK,
    ("tick", ""): _LOOK,
    ("close-run", ""): "list-runs",
    ("join-authorization-create", ""): "can-join --run-id {run_id} --address KEY",
    (
        "join-authorization-delegate",
        "",
    ): "join-authorization-read --join-authority {join_authority} --authorizer KEY",
    ("deploy", ""): "create-run --run-id RUN --name NAME",
    ("show-identity", "created"): "config set wallet {wallet_private_key_path}",
    ("can-join", ""): "train --run-id {run_id} --matformer-tier {matformer_tier} -w FILE",
    ("can-join", "file"): "train --run-id {run_id} --matformer-tier {matformer_tier} -w {address}",
    ("predownload", ""): "train --run-id {run_id} --matformer-tier {matformer_tier} -w FILE",
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
_WORD = re.compile(r"\s+('[^']*'|[^\s;,]+)")
_OTHERS = re.compile(r"\b(owner|join authority|grantee)\b[^;\n]*$")
"""Words before a command that say that another person calls it."""


def say_next(name: str, case: str, given: Mapping[str, Any]) -> None:
    """Print the command that usually follows `name`, if there is one. `given`: its options."""
    if "server_addr" in given:
        if name in ("can-join", "predownload") and not os.environ.get(QUIET):
            note(f"next: {_train_at_server(given)}")
        return
    template = NEXT.get((name, case))
    if template is not None and not os.environ.get(QUIET):
        note(f"next: {line(template, given)}")


def _train_at_server(given: Mapping[str, Any]) -> str:
    """Return the command that joins the run of a server."""
    words = [
        "aftermath-centralized",
        "client",
        "train",
        "--run-id",
        given["run_id"],
        "--server-addr",
    ]
    words += [given["server_addr"], "-i", str(given["identity_secret_key_path"] or "FILE")]
    words += ["--tls"] if given["tls"] else []
    words += ["--tls-ca", str(given["tls_ca"])] if given["tls_ca"] else []
    tier = given["matformer_tier"]
    words += ["--matformer-tier", "auto" if tier == AUTO_TIER else str(tier)]
    return shlex.join([*words, *_of_train(given)])


def _of_train(given: Mapping[str, Any]) -> list[str]:
    """Return `--checkpoint-dir` for tiers that save checkpoints, and the options to repeat."""
    from aftermath.model.saved_checkpoints import file_name

    words = []
    if given["matformer_tier"] in (0, AUTO_TIER):  # else the model is lost with the last member
        words += ["--checkpoint-dir", f"runs/{file_name(given['run_id'] or 'RUN_ID')}/checkpoints"]
    for name in _CARRIED:
        value = given.get(name)
        if value in (None, False, 0, "auto"):  # the defaults, which are those of `train`
            continue
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return words


def line(template: str, given: Mapping[str, Any]) -> str:
    """Return the command line of a template, with cluster and wallet options."""
    more = _of_train(given) if template.startswith("train ") else []
    given = (
        {**given, "matformer_tier": "auto"} if given.get("matformer_tier") == AUTO_TIER else given
    )
    named = {
        key: shlex.quote(str(value)) if value is not None else key.upper()
        for key, value in given.items()
    }
    from aftermath.cli.main import SOLANA

    follows = SOLANA.called(shlex.split(template))
    assert follows is not None
    words = [f"{SOLANA.name} {template.format_map(named)}", *map(shlex.quote, more)]
    return " ".join([*words, *_where(follows, template, given)])


def completed(text: str, given: Mapping[str, Any]) -> str:
    """Add the running command's cluster and wallet options to the commands that a text suggests.

    `given`: the options of the running command. Commands for another person get no wallet.
    """
    from aftermath.cli.main import SOLANA

    parts = re.split(rf"\b({SOLANA.name} )(?=[a-z])", text)
    done = parts[0]
    prose = parts[0]  # without the commands: a file may be called owner.json
    for script, rest in zip(parts[1::2], parts[2::2], strict=True):
        name = SOLANA.called([word.rstrip(";,.:)") for word in rest.split()[:2]])
        if name is None or not rest.startswith(name):
            done += script + rest
            prose += rest
            continue
        end = len(name) + _end(name, rest[len(name) :])
        line = rest[:end]
        after = rest[end:]
        mine = {
            key: value
            for key, value in given.items()
            if key != _WALLET or not _OTHERS.search(prose)
        }
        added = (
            ""
            if after.startswith(" --help")
            else "".join(f" {word}" for word in _where(name, f"{line} ", mine))
        )
        done += script + line + added + after
        prose += after
    return done


def _end(name: str, after: str) -> int:
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
    while found := _WORD.match(after, end):
        word = found[1].rstrip(".:)")
        if not value_follows and word not in flags and word not in words:
            break
        value_follows = not value_follows and not flags.get(word, True)
        end = found.start(1) + len(word)
        if word != found[1]:
            break
    return end


def _where(follows: str, template: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the cluster and wallet options that the command `follows` would otherwise miss.

    Skip options that `template` has, and values in an environment variable or the profile.
    """
    from aftermath.chain.endpoints import CLUSTERS, shown
    from aftermath.cli.main import SOLANA

    stored: Mapping[str, str] = {}
    with suppress(AftermathError):  # the error that is being told may be that of the profile
        stored = SOLANA.stored()
    for option in SOLANA.load(follows).params:
        value = given.get(str(option.name))
        flag = _FLAGS.get(str(option.name))
        if flag is None or value in (None, option.default) or f" {flag} " in template:
            continue
        if str(value) in (os.environ.get(str(option.envvar)), stored.get(stored_as(option))):
            continue
        if flag in _ADDRESSES and value not in CLUSTERS and shown(value) != value.rstrip("/"):
            # the address may contain an API key, so print a placeholder
            yield f"{flag} {flag[2:].replace('-', '_').upper()}_ADDRESS"
        else:
            yield f"{flag} {shlex.quote(str(value))}"
