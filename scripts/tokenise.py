#!/usr/bin/env python3
"""Tokenise a folder of text, or by default the Python standard library, into token files for the local data provider.

Example: python scripts/tokenise.py --output data/stdlib
         python scripts/tokenise.py --input books/ --tokenizer model/tokenizer.json --output data/books
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from aftermath.data.bytelevel import byte_tokenizer
from aftermath.data.local import DataError
from aftermath.data.tokenise import Tokenised, folder_documents, standard_library, tokenise
from aftermath.run.errors import AftermathError


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments, convert, say what was written. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, help="folder of UTF-8 text; without it the standard library's sources")
    parser.add_argument("--output", type=Path, required=True, help="folder for the token files")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; without it one token per byte (257 ids)")
    parser.add_argument("--token-bytes", type=int, choices=(2, 4), default=2, help="bytes of a token (default 2)")
    parser.add_argument("--budget-bytes", type=int, default=4 << 20, help="size of the default corpus (default 4 MiB)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args(argv)
    try:
        result = convert(arguments)
    except AftermathError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        summary = {"documents": result.documents, "skipped": result.skipped, "tokens": result.tokens}
        print(json.dumps(summary | {"vocab_size": result.vocab_size, "files": [str(path) for path in result.files]}))
    else:
        skipped = f" ({result.skipped} files that are not UTF-8 text left out)" if result.skipped else ""
        print(f"{result.tokens:,} tokens of {result.documents} documents in {arguments.output}{skipped}")
    return 0


def convert(arguments: argparse.Namespace) -> Tokenised:
    """Do what the arguments say. Raises DataError."""
    documents = folder_documents(arguments.input) if arguments.input else standard_library(arguments.budget_bytes)
    return tokenise(documents, arguments.output, _tokenizer(arguments.tokenizer), token_bytes=arguments.token_bytes)


def _tokenizer(path: Path | None) -> Tokenizer:
    if path is None:
        return byte_tokenizer()
    try:
        return Tokenizer.from_str(path.read_text())
    except Exception as error:  # the library raises plain Exception for a bad file
        raise DataError(f"cannot read the tokenizer {path}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
