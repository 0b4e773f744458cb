#!/usr/bin/env python3
"""Give both programs new addresses in keys/, declare_id!, Anchor.toml and the pages, then build.

Anyone can use the public keys in the repository. Keep the new keys private until you deploy.

Example: python scripts/new-program-ids.py
         python scripts/new-program-ids.py --sources-only   # and later: make programs
"""

# The first one to deploy takes an address on a cluster. The old keys are lost unless git has
# them.

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from solders.keypair import Keypair

from aftermath.chain.wallet import create_wallet
from aftermath.cli.present import CommandError, Result, facts
from aftermath.cli.script import ScriptParser, run

ROOT = Path(__file__).parents[1]
PROGRAMS = ("coordinator", "authorizer")


def main(argv: Sequence[str] | None = None) -> int:
    """Change the addresses and print what changed. Return the exit status."""
    parser = ScriptParser("python scripts/new-program-ids.py", __doc__)
    parser.add_argument(
        "--sources-only",
        action="store_true",
        help="do not build; the package keeps the old programs",
    )
    return run(parser, _change, argv)


def _change(arguments: argparse.Namespace) -> Result:
    old = {name: str(Keypair.from_json(_key(name).read_text()).pubkey()) for name in PROGRAMS}
    texts = {path: path.read_text(encoding="utf-8") for path in _sources()}
    for name in PROGRAMS:
        source = ROOT / "programs" / name / "src" / "lib.rs"
        if old[name] not in texts.get(source, ""):
            raise CommandError(
                f"{source} does not declare the address of {_key(name)}",
                "make them agree first, for example with git checkout keys programs",
            )
    new = {name: _renew(_key(name)) for name in PROGRAMS}
    changed = [
        path
        for path, text in texts.items()
        if _replace(path, text, {old[name]: new[name] for name in PROGRAMS})
    ]
    if not arguments.sources_only:
        _build()
    files = [str(path.relative_to(ROOT)) for path in (*map(_key, PROGRAMS), *changed)]
    data: dict[str, object] = {**new, "files": files, "built": not arguments.sources_only}
    return Result(data, facts(data | ({"next": "make programs"} if arguments.sources_only else {})))


def _key(name: str) -> Path:
    return ROOT / "keys" / f"{name}-keypair.json"


def _sources() -> Iterator[Path]:
    """Return the files that name an address and are not build outputs."""
    yield ROOT / "Anchor.toml"
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield from sorted((ROOT / "programs").rglob("*.rs"))


def _renew(path: Path) -> str:
    """Replace a key file by a new key that only its owner can read. Return its address."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    made = create_wallet(fresh)
    os.replace(fresh, path)
    return str(made.pubkey)


def _replace(path: Path, text: str, addresses: Mapping[str, str]) -> bool:
    changed = text
    for old, new in addresses.items():
        changed = changed.replace(old, new)
    if changed != text:
        path.write_text(changed, encoding="utf-8")
    return changed != text


def _build() -> None:
    if subprocess.run(
        [ROOT / "scripts" / "build-programs.sh"], stdout=sys.stderr, check=False
    ).returncode:
        raise CommandError(
            "the addresses are changed, but the programs could not be built: see the error above",
            "fix that, and then: make programs",
        )


if __name__ == "__main__":
    sys.exit(main())
