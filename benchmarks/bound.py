"""How many bits a block of a result takes beyond the fewest there can be, for every number that it may keep.

    python benchmarks/bound.py [--json]

Decided
- A block's bits are those of `ResultFormat`, of so many blocks that no string of them ends within a byte. So they are
  what a block adds to a level; each string's last byte is one for the whole level.
- The fewest are log2 of how many things a block can say, as `codec.py` counts them: no whole number.
- Blocks of 64 x 64, of 52 x 64 (of an embedding, or of a tensor whose size no 64 divides) and of 64, a vector's.
- `model` is the most that a result of a whole model of 124 M parameters takes more, small vectors and all, by any of
  the top-k of `codec.py`.
- Nothing is drawn or timed: the figures are the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from aftermath.model.levels import Segment
from aftermath.optim.blocks import Blocks
from aftermath.optim.format import ResultFormat, Transform, Values
from aftermath.optim.lattice import LEAST, MOST
from codec import GPT2, bytes_of, loco, signs

EDGES: dict[str, tuple[int, ...]] = {"4096": (64, 64), "3328": (52, 64), "64": (64,)}
KINDS = {"sign": Values.SIGN, "1": Values.ONE_BIT, "2": Values.TWO_BIT}
TOGETHER = 8 * 3 * 5  # blocks, so that digits and bytes come out even
FEW = 3
"""Kept of a block: from so many on, one figure is the largest of all."""
NEAR = 0.03


def bits_of(edges: tuple[int, ...], kept: int, values: Values) -> float:
    """Of a block that may keep so many."""
    segment = Segment("blocks", 0, None, 0, TOGETHER * edges[0], (TOGETHER * edges[0], *edges[1:]))
    results = ResultFormat((Blocks(segment, edges, kept),), 1, Transform.NONE, values)
    return 8 * results.payload_bytes(0) / TOGETHER


def fewest(places: int, values: Values) -> Iterator[float]:
    """Bits of all that a block can say, if it may keep 1, 2, ... of its places."""
    exponents, each = (MOST - LEAST + 1, 1 << values.lattice_bits) if values.lattice_bits else (1, 2)
    sets, some = 1, 0
    for kept in range(1, places + 1):
        sets = sets * (places - kept + 1) // kept
        some += sets * each**kept
        yield math.log2(some * exponents + 1)


def beyond(edges: tuple[int, ...], values: Values) -> list[float]:
    """By what part a block takes more than the fewest, if it may keep 1, 2, ..., all of its places."""
    bounds = enumerate(fewest(math.prod(edges), values), 1)
    return [bits_of(edges, kept, values) / bound - 1 for kept, bound in bounds]


def summary(found: Sequence[float]) -> dict[str, Any]:
    """Of one and two kept, the most of all others and where, and which of them are not near."""
    others = range(FEW, len(found) + 1)
    far = [kept for kept in others if found[kept - 1] > NEAR]
    most = max(others, key=lambda kept: found[kept - 1])
    return {"one": found[0], "two": found[1], "most": found[most - 1], "at": most, "far": spans(far)}


def spans(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending numbers as the first and last of those that follow each other."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def of_a_model() -> dict[str, float]:
    """By kind of values."""
    kinds = {"sign": partial(signs, GPT2), "1": partial(loco, GPT2, bits=1), "2": partial(loco, GPT2, bits=2)}
    sizes = {kind: bytes_of(schemas).values() for kind, schemas in kinds.items()}
    return {kind: max(each["bytes"] / each["bound"] for each in found) - 1 for kind, found in sizes.items()}


def measure(edges: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """By block and kind of values."""
    return {size: {kind: summary(beyond(EDGES[size], values)) for kind, values in KINDS.items()} for size in edges}


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", nargs="+", choices=EDGES, default=list(EDGES), help="numbers of a block")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    chosen = parser.parse_args()
    found = measure(chosen.blocks)
    model = of_a_model()
    if chosen.json:
        print(json.dumps(found | {"model": model}))
        return
    print("model: " + ", ".join(f"{kind} {most}" for kind, most in model.items()))
    for size, kinds in found.items():
        for kind, figures in kinds.items():
            print(f"{size}, {kind}: " + ", ".join(f"{name} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
