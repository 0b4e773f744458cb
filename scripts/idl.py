"""Assemble a program's canonical IDL (spec 0.1.0) from the output of its tests.

    idl.py PROGRAM < output > PROGRAM.json

`scripts/build-programs.sh` pipes `cargo test --features idl-build` into it.
"""

# The sections are those that `anchor idl build` reads. The program's address comes from
# keys/PROGRAM-keypair.json.
# Two things that would stop other clients are fixed here. Anchor lists the types of all accounts
# that an instruction reads, also of those that other programs own. It accepts any expression for
# the fixed address of an account.

import json
import re
import sys
from pathlib import Path

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

_ADDRESS = re.compile(f"[{_ALPHABET}]{{32,44}}")


def base58(data: bytes) -> str:
    """Return bytes in Bitcoin's base 58, as Solana writes addresses."""
    number = int.from_bytes(data, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = _ALPHABET[digit] + digits
    return _ALPHABET[0] * (len(data) - len(data.lstrip(b"\0"))) + digits


def section(output: str, name: str) -> str:
    """Return the text between a section's marks. Exit with an error if it is missing."""
    found = re.search(
        rf"^--- IDL begin {name} ---\n(.*?)\n--- IDL end {name} ---$",
        output,
        re.MULTILINE | re.DOTALL,
    )
    if not found:
        sys.exit(
            f"error: the IDL section {name!r} is missing; did `cargo test --features idl-build` fail?\n{output}"
        )
    return found[1]


def main(program: str) -> None:
    output = sys.stdin.read()
    idl = json.loads(section(output, "program"))
    declared = section(output, "address").strip().strip('"')
    root = Path(__file__).resolve().parent.parent
    keys = root / "keys" / f"{program}-keypair.json"
    address = base58(bytes(json.loads(keys.read_text(encoding="utf-8"))[32:]))
    if declared not in ("", address):
        sys.exit(
            f"error: {program} declares {declared} but its key file holds {address}: make declare_id! match"
        )
    idl["address"] = address
    idl["errors"] = json.loads(section(output, "errors"))
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (root / "programs" / program).rglob("*.rs")
    )
    own = set(re.findall(r"#\[account(?:\(\w+\))?\]\s*pub struct (\w+)", source))
    foreign = {account["name"] for account in idl["accounts"]} - own
    for part in ("accounts", "types"):
        idl[part] = [entry for entry in idl[part] if entry["name"] not in foreign]
    for account in (
        account for instruction in idl["instructions"] for account in instruction["accounts"]
    ):
        if not _ADDRESS.fullmatch(account.get("address", _ALPHABET[:32])):
            del account["address"]
    print(json.dumps(idl, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1])
