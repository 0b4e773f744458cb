"""What usually follows a command that somebody has called: one line on stderr, `next: …`.

Decided
- One table says it, and a test that every command in it exists and takes these options.
- The line names the cluster and the wallet where they were given as options, so that it can be copied; words in
  capitals are for the reader to fill in.
- With `--json` nothing is said, nor where AFTERMATH_QUIET is set: by the scripts and processes that know by themselves
  what they do next.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from aftermath.cli.present import note
from aftermath.train.tier import AUTO_TIER

QUIET = "AFTERMATH_QUIET"
_CONFIGURE, _LOOK = "update-config --run-id {run_id} --config-path FILE", "show-run --run-id {run_id}"
_WATCH, _RESUME = "watch --run-id {run_id}", "set-paused --run-id {run_id} resume"
NEXT: Mapping[tuple[str, str], str] = {
    ("create-run", ""): _CONFIGURE,
    ("update-config", ""): _RESUME,
    ("update-config", "invited"): "join-authorization-create --run-id {run_id} --authorizer KEY -w JOIN_AUTHORITY_FILE",
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
    ("join-authorization-delegate", ""): "join-authorization-read --join-authority {join_authority} --authorizer KEY",
    ("deploy", ""): "create-run --run-id RUN --name NAME",
    ("show-identity", "created"): "config set wallet {wallet_private_key_path}",
    ("can-join", ""): "train --run-id {run_id} --matformer-tier {matformer_tier} -w FILE",
    ("can-join", "file"): "train --run-id {run_id} --matformer-tier {matformer_tier} -w {address}",
    ("predownload", ""): "train --run-id {run_id} --matformer-tier {matformer_tier} -w FILE",
    ("withdraw", ""): "list-runs",
    ("model init", ""): "model inspect --model {out}",
    ("model export", ""): "model verify --model {src}",
    ("model export", "elsewhere"): "model verify --model {out}/CHECKPOINT",
    ("data tokenize", ""): "data inspect --data-path {output}",
    ("data fetch", ""): "data inspect --data-path {output}",
}
"""By the command and the case of its result (`Result.case`); words in braces are its own options."""
_FLAGS = {"rpc": "--rpc", "coordinator_program_id": "--coordinator-program-id", "wallet_private_key_path": "-w"}


def say_next(name: str, case: str, given: Mapping[str, Any]) -> None:
    """Say what follows the command `name`, which was called with these options, if anything usually does."""
    template = NEXT.get((name, case))
    if template is not None and not os.environ.get(QUIET):
        note(f"next: {line(template, given)}")


def line(template: str, given: Mapping[str, Any]) -> str:
    """The whole command line."""
    given = {**given, "matformer_tier": "auto"} if given.get("matformer_tier") == AUTO_TIER else given
    named = {key: shlex.quote(str(value)) if value is not None else key.upper() for key, value in given.items()}
    words = f"aftermath-solana {template.format_map(named)}"
    return " ".join([words, *_where(template, given)])


def _where(template: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Cluster and wallet, where the command that follows takes them and does not read them from a variable."""
    from aftermath.cli.main import SOLANA

    follows = SOLANA.called(shlex.split(template))
    assert follows is not None
    for option in SOLANA.load(follows).params:
        value, flag = given.get(str(option.name)), _FLAGS.get(str(option.name))
        if flag is None or value in (None, option.default) or f" {flag} " in template:
            continue
        if os.environ.get(str(option.envvar)) != str(value):
            yield f"{flag} {shlex.quote(str(value))}"
