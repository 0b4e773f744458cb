#!/usr/bin/env python3
"""Tokenise a folder of text, or the Python standard library, into token files.

Example: python scripts/tokenise.py --output data/stdlib
         python scripts/tokenise.py --input books/ --tokenizer model/tokenizer.json --output x
         python scripts/tokenise.py --output data/stdlib --held-out data/stdlib-held-out
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from aftermath.cli.data import Conversion, convert
from aftermath.cli.present import Result
from aftermath.cli.script import ScriptParser, one_of, run, whole_number


def main(argv: Sequence[str] | None = None) -> int:
    """Convert the text and print the written files. Return the exit status."""
    parser = ScriptParser("python scripts/tokenise.py", __doc__)
    parser.add_argument(
        "--input",
        type=Path,
        help="folder of text, or one file; without it the standard library's sources",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the token files")
    parser.add_argument(
        "--tokenizer", type=Path, help="tokenizer.json; without it one token per byte (257 ids)"
    )
    parser.add_argument(
        "--end-token", help="token after every document; by default the tokenizer's own"
    )
    parser.add_argument(
        "--text-field", default="text", help="field with the text in JSON lines and parquet"
    )
    parser.add_argument(
        "--token-bytes", type=one_of((2, 4)), default=2, help="bytes of a token, 2 or 4 (default 2)"
    )
    budget = whole_number(1)
    parser.add_argument(
        "--budget-bytes",
        type=budget,
        default=4 << 20,
        help="size of the default corpus (default 4 MiB)",
    )
    parser.add_argument(
        "--held-out", type=Path, help="second folder, for files that are not to be trained on"
    )
    share = whole_number(1, 99)
    parser.add_argument(
        "--held-out-percent",
        type=share,
        default=20,
        help="percentage of the files for held-out tokens, about (default 20)",
    )
    return run(parser, _convert, argv)


def _convert(arguments: argparse.Namespace) -> Result:
    given = {name: value for name, value in vars(arguments).items() if name != "json"}
    return convert(Conversion(**given | {"token_bytes": str(arguments.token_bytes)}))


if __name__ == "__main__":
    sys.exit(main())
