#!/usr/bin/env python3
"""Tokenise a folder of text, or by default the Python standard library, into token files for the local data provider.

Example: python scripts/tokenise.py --output data/stdlib
         python scripts/tokenise.py --input books/ --tokenizer model/tokenizer.json --output data/books
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from aftermath.cli.present import Result
from aftermath.cli.script import Arguments, run
from aftermath.data.bytelevel import byte_tokenizer
from aftermath.data.local import DataError
from aftermath.data.tokenise import folder_documents, standard_library, tokenise


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments, convert, say what was written. Returns the exit status."""
    parser = Arguments(__file__, __doc__)
    parser.add_argument("--input", type=Path, help="folder of UTF-8 text; without it the standard library's sources")
    parser.add_argument("--output", type=Path, required=True, help="folder for the token files")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; without it one token per byte (257 ids)")
    parser.add_argument("--token-bytes", type=int, choices=(2, 4), default=2, help="bytes of a token (default 2)")
    parser.add_argument("--budget-bytes", type=int, default=4 << 20, help="size of the default corpus (default 4 MiB)")
    return run(parser, _convert, argv)


def _convert(arguments: argparse.Namespace) -> Result:
    documents = folder_documents(arguments.input) if arguments.input else standard_library(arguments.budget_bytes)
    done = tokenise(documents, arguments.output, _tokenizer(arguments.tokenizer), token_bytes=arguments.token_bytes)
    data = {"documents": done.documents, "skipped": done.skipped, "tokens": done.tokens, "vocab_size": done.vocab_size}
    skipped = f" ({done.skipped} files that are not UTF-8 text left out)" if done.skipped else ""
    return Result(
        data | {"files": [str(path) for path in done.files]},
        f"{done.tokens:,} tokens of {done.documents} documents in {arguments.output}{skipped}",
    )


def _tokenizer(path: Path | None) -> Tokenizer:
    if path is None:
        return byte_tokenizer()
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8-sig"))
    except Exception as error:  # the library raises plain Exception for a bad file
        raise DataError(f"cannot read the tokenizer {path}: {error}", "Name a tokenizer.json.") from None


if __name__ == "__main__":
    sys.exit(main())
