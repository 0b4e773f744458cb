"""Measure how fast tokens are read, from local files and from a web server behind a slow link.

python benchmarks/data.py [--json]
"""

# How it is measured:
# - Local: shuffled sequences of 2,048 tokens of 2 bytes, in shares of 256, from files in the page
#   cache. `bytes` are those of the files. Each sequence is checked and returned as for training.
# - HTTP: a server on this machine answers as slowly as at 100 Mb/s. A round takes ROUND seconds,
#   and the first APPLY of them apply results while the share is read ahead, as in a member. The
#   wait is the rest of the read.

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from aftermath.data.http import HttpClient, HttpFiles
from aftermath.data.local import open_tokens
from aftermath.data.tokens import TokenFiles

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from faulty_web import serving

SEQ_LEN = 2048
VOCAB = 50257
SHARE = 256
LINK = 100e6 / 8  # bytes per second
FILES = 4
TOKENS = 1 << 24
ROUND = 10.0
APPLY = 0.1
ROUNDS = 5
OF_A_ROUND = 32


def local(folder: Path) -> dict[str, float]:
    """Return the bytes of tokens per second, the best of three passes."""
    source = open_tokens(folder, 2, SEQ_LEN, vocab_size=VOCAB, shuffle_seed=bytes(32))
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        for first in range(0, source.sequences - SHARE + 1, SHARE):
            source.read(range(first, first + SHARE))
        best = min(best, time.perf_counter() - started)
    read = source.sequences // SHARE * SHARE * SEQ_LEN * 2
    return {"megabytes": read / 1e6, "megabytes_per_second": read / best / 1e6}


def http(folder: Path) -> dict[str, float]:
    """Return how long a member waits for data in a round, with the share read ahead."""
    with serving() as web:
        web.files = {f"/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}
        web.rate = LINK
        store = HttpFiles([f"{web.url}{name}" for name in web.files], HttpClient())
        source = TokenFiles(store, web.url, 2, SEQ_LEN, vocab_size=VOCAB, shuffle_seed=bytes(32))
        waited = 0.0
        for number in range(ROUNDS):
            share = range(number * OF_A_ROUND, (number + 1) * OF_A_ROUND)
            started = time.perf_counter()
            reader = threading.Thread(target=source.read, args=(share,))
            reader.start()
            time.sleep(APPLY)
            waiting = time.perf_counter()
            reader.join()
            waited += time.perf_counter() - waiting
            time.sleep(max(0.0, started + ROUND - time.perf_counter()))
    return {
        "link_megabits": LINK * 8 / 1e6,
        "round_seconds": ROUND,
        "apply_seconds": APPLY,
        "sequences_of_a_round": OF_A_ROUND,
        "waited_seconds_a_round": waited / ROUNDS,
        "waited_percent": 100 * waited / (ROUNDS * ROUND),
    }


def measure() -> dict[str, Any]:
    """Return everything this benchmark reports."""
    with tempfile.TemporaryDirectory(prefix="aftermath-data-") as place:
        folder = Path(place)
        draw = np.random.default_rng(1)
        for number in range(FILES):
            tokens = draw.integers(0, VOCAB, TOKENS).astype("<u2")
            (folder / f"{number}.bin").write_bytes(tokens.tobytes())
        return {"seq_len": SEQ_LEN, "local": local(folder), "http": http(folder)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of lines"
    )
    as_json = parser.parse_args().json
    report = measure()
    print(
        json.dumps(report, indent=1)
        if as_json
        else "\n".join(f"{name}: {value}" for name, value in report.items())
    )


if __name__ == "__main__":
    main()
