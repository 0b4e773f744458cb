#!/usr/bin/env python3
"""Tokenise a folder of text, or by default the Python standard library, into token files for the local data provider.

Example: python scripts/tokenise.py --output data/stdlib
         python scripts/tokenise.py --input books/ --tokenizer model/tokenizer.json --output data/books
         python scripts/tokenise.py --output data/stdlib --held-out data/stdlib-held-out --held-out-percent 20
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from aftermath.base.counted import counted
from aftermath.base.errors import UsageError
from aftermath.cli.present import Result
from aftermath.cli.script import Arguments, one_of, run, whole_number
from aftermath.data.bytelevel import byte_tokenizer
from aftermath.data.source import DataError
from aftermath.data.tokenise import (
    folder_documents,
    hold_out,
    refuse_older,
    standard_library,
    standard_library_root,
    tokenise,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments, convert, say what was written. Returns the exit status."""
    parser = Arguments(__file__, __doc__)
    parser.add_argument("--input", type=Path, help="folder of UTF-8 text; without it the standard library's sources")
    parser.add_argument("--output", type=Path, required=True, help="folder for the token files")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; without it one token per byte (257 ids)")
    parser.add_argument("--token-bytes", type=one_of((2, 4)), default=2, help="bytes of a token, 2 or 4 (default 2)")
    budget = whole_number(1)
    parser.add_argument(
        "--budget-bytes", type=budget, default=4 << 20, help="size of the default corpus (default 4 MiB)"
    )
    parser.add_argument("--held-out", type=Path, help="second folder, for files that are not to be trained on")
    share = whole_number(1, 99)
    parser.add_argument(
        "--held-out-percent", type=share, default=20, help="about so many percent of the files go there (default 20)"
    )
    return run(parser, _convert, argv)


def _convert(arguments: argparse.Namespace) -> Result:
    documents = folder_documents(arguments.input) if arguments.input else standard_library(arguments.budget_bytes)
    if arguments.held_out is None:
        return Result(*_write(arguments, documents, arguments.output))
    if arguments.held_out.absolute() == arguments.output.absolute():
        raise UsageError("--held-out is --output itself", "name two folders")
    refuse_older(arguments.held_out)
    root = arguments.input or standard_library_root()
    kept, held_out = hold_out(documents, root, arguments.held_out_percent)
    data, text = _write(arguments, kept, arguments.output)
    more, other = _write(arguments, held_out, arguments.held_out)
    return Result(data | {"held_out": more}, f"{text}\n{other}")


def _write(arguments: argparse.Namespace, documents: Sequence[Path], output: Path) -> tuple[dict[str, object], str]:
    """Fill a folder; what went into it, for scripts and for people."""
    done = tokenise(documents, output, _tokenizer(arguments.tokenizer), token_bytes=arguments.token_bytes)
    data = {"documents": done.documents, "skipped": done.skipped, "tokens": done.tokens, "vocab_size": done.vocab_size}
    skipped = f" ({counted(done.skipped, 'file')} left out: no UTF-8 text)" if done.skipped else ""
    return (
        data | {"files": [str(path) for path in done.files]},
        f"{counted(done.tokens, 'token')} of {counted(done.documents, 'document')} in {output}{skipped}",
    )


def _tokenizer(path: Path | None) -> Tokenizer:
    if path is None:
        return byte_tokenizer()
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8-sig"))
    except Exception as error:  # the library raises plain Exception for a bad file
        raise DataError(f"cannot read the tokenizer {path}: {error}", "name a tokenizer.json") from None


if __name__ == "__main__":
    sys.exit(main())
