"""Measure bytes and speed of results against DeMo's published algorithm, in the same process.

python benchmarks/codec.py [--json]
"""

# How it is measured:
# - DeMo (Peng et al., arXiv 2411.19870; its reference code) works per tensor in 64 x 64 chunks:
#   delta <- delta * decay + lr grad, DCT, top-k by magnitude, int64 indices of 8 bytes and fp32
#   values. Delta loses the inverse DCT of what is sent. Apply is a scatter mean of all peers, an
#   inverse DCT and the sign.
# - `encode` is from a gradient to the sent bytes, with error feedback; DeMo's is to its tensors.
# - `apply` is from decoded results to changed weights. Ours is exact: the same bits on every
#   replica.
# - Both of our kinds are measured as runs use them: DisTrO with one bit, SparseLoCo with two and
#   the mean.
# - Seconds are CPU time with one thread on both sides, the best of five in turns: other work on
#   the machine hardly changes them. Ratios are DeMo's seconds over ours: above 1 ours is faster.
# - `two_threads` is the same on two threads in wall time, since a waiting thread uses no CPU.
#   Other work on the machine changes it: measure on an idle machine, or compare with
#   `load_before`.
# - `bound` is log2 of the number of different results: positions, values and, with a power of
#   two, its exponent.
# - Where numba is installed, its compiled kernels encode and apply (`kernels`). DeMo's use torch.
# - `aggregate32_seconds` is the exact apply of 32 members' results to a model of 124 M
#   parameters.
# - `all_numbers` is SparseLoCo as docs/experiments.md recommends it: it sends 512 times the
#   numbers of DeMo. `all_numbers_muon` also has Muon at the apply. DeMo has nothing like its
#   exact polar factors.

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aftermath.kernels.runtime import unavailable_reason
from aftermath.optim.engine import Engine
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.lattice import LEAST, MOST
from aftermath.optim.result_format import ResultFormat
from aftermath.optim.schema import Schema, build_schema
from aftermath.rules.distro import Distro
from aftermath.rules.sparseloco import SparseLoCo
from distro import DECAY, LR, MODEL, best, dct_rows, decode_all, encoded, noise, the_schema

PEERS = 16
MANY = 32
TOPK = 8
EDGE = 64
DEMO_BYTES = 8 + 4  # bytes of an index and a value
GPT2 = MODEL | {
    "vocab_size": 50257,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
}

Sent = Sequence[tuple[Tensor, Tensor]]
"""The tensors of one peer's result: indices int64 and values fp32, [chunks, k]."""


class Demo:
    """DeMo's optimizer for one replica: no exactness, and no bytes."""

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        self.params = params
        self.delta = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
        self.rows = dct_rows(EDGE).float()

    def chunks(self, tensor: Tensor) -> Tensor:
        """Split [h, w] into [h / 64, w / 64, 64, 64], and a vector into [w / 64, 64]. Every edge
        here is a multiple of 64.
        """
        if tensor.ndim == 1:
            return tensor.view(-1, EDGE)
        height, width = tensor.shape
        return tensor.view(height // EDGE, EDGE, width // EDGE, EDGE).transpose(1, 2)

    def forward(self, chunks: Tensor) -> Tensor:
        """Return the DCT over the last edge or the last two."""
        out = chunks @ self.rows.T
        return out if chunks.ndim == 2 else torch.einsum("...ij,ki->...kj", out, self.rows)

    def inverse(self, chunks: Tensor) -> Tensor:
        """Return the inverse of `forward`."""
        out = chunks @ self.rows
        return out if chunks.ndim == 2 else torch.einsum("...ij,ik->...kj", out, self.rows)

    def restored(self, tensor: Tensor, sent: Sent) -> Tensor:
        """Return the inverse DCT of the mean of a tensor's results, in its shape."""
        like = self.chunks(tensor)
        flat = torch.zeros(like.numel() // self.size(tensor), self.size(tensor))
        indices, values = (torch.cat(parts, 1) for parts in zip(*sent, strict=True))
        flat.scatter_reduce_(1, indices, values, "mean", include_self=False)
        out = self.inverse(flat.view(like.shape))
        return (
            out.reshape(tensor.shape)
            if tensor.ndim == 1
            else out.transpose(1, 2).reshape(tensor.shape)
        )

    def size(self, tensor: Tensor) -> int:
        """Return how many values a chunk has."""
        return EDGE if tensor.ndim == 1 else EDGE * EDGE

    @torch.no_grad()
    def encode(self, grads: Mapping[str, Tensor]) -> Sent:
        """Return the result of one step."""
        found = []
        for name, delta in self.delta.items():
            delta.mul_(DECAY).add_(grads[name], alpha=LR)
            flat = self.forward(self.chunks(delta)).reshape(-1, self.size(delta))
            indices = flat.abs().topk(TOPK, dim=1, sorted=False).indices
            values = flat.gather(1, indices)
            found.append((indices, values))
            delta.sub_(self.restored(delta, [(indices, values)]))
        return found

    @torch.no_grad()
    def apply(self, results: Sequence[Sent]) -> None:
        """Apply the results of one step: x <- x - lr sign(mean)."""
        for tensor, sent in zip(self.params.values(), zip(*results, strict=True), strict=True):
            tensor.sub_(self.restored(tensor, sent).sign_(), alpha=LR)


def loco(model: Mapping[str, Any], topk: int, bits: int = 2) -> Schema:
    """Return a run of SparseLoCo."""
    return build_schema(model, 1, SparseLoCo(topk=topk, topk_embeddings=topk, bits=bits))


def everything(orthogonal_lr: float) -> Schema:
    """Return a run of SparseLoCo that sends all values in two bits."""
    size = EDGE * EDGE
    agreed = SparseLoCo(
        topk=size, topk_embeddings=size, bits=2, divisor="all", orthogonal_lr=orthogonal_lr
    )
    return build_schema(MODEL, 1, agreed)


def signs(model: Mapping[str, Any], topk: int) -> Schema:
    """Return a run of DisTrO with one bit."""
    return build_schema(
        model, 1, Distro(topk=topk, topk_embeddings=topk, decay=DECAY, weight_decay=0.0, clip=None)
    )


def least_bytes(results: ResultFormat) -> float:
    """Return the fewest bytes of a result, if all messages of its blocks took equally many bits."""
    exponents = 1
    values = 2
    if results.values.lattice_bits:
        exponents = MOST - LEAST + 1
        values = 1 << results.values.lattice_bits
    kinds = Counter(
        (blocks.size, blocks.topk) for blocks in results.blocks for _ in range(blocks.count)
    )
    return sum(count * log2_messages(*kind, values, exponents) for kind, count in kinds.items()) / 8


def log2_messages(places: int, most: int, values: int, exponents: int) -> float:
    """Return log2 of the number of messages of a block: the kept indices, one of `values` for each,
    and an exponent.
    """
    sets = 1
    some = 0
    for members in range(1, most + 1):
        sets = sets * (places - members + 1) // members
        some += sets * values**members
    return math.log2(some * exponents + 1)


def bytes_of(schemas: Callable[[int], Schema]) -> dict[str, dict[str, float]]:
    """Return the bytes for 4,096 values, and the lower bound, by top-k. They are means over a whole
    model with its small vectors.
    """
    found = {}
    for topk in (8, 32, 64, 256, 4096):
        schema = schemas(topk)
        share = 4096 / schema.state.parameters()
        found[str(topk)] = {
            "bytes": schema.results.result_bytes() * share,
            "bound": least_bytes(schema.results) * share,
        }
    return found


def seconds(*actions: Callable[[], object], repeats: int = 5) -> list[float]:
    """Return the seconds of the fastest run of each: CPU time with one thread, wall time
    with more.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    return best(*actions, repeats=repeats, clock=clock)


def against_demo(schema: Schema, repeats: int = 5) -> dict[str, float]:
    """Return DeMo's seconds over ours, for a result and for applying those of 16 members."""
    params = noise(schema, 0)
    ours = Engine(schema, 0, params)
    feedback = ErrorFeedback(schema.results, 0, params, DECAY)
    demo = Demo({name: tensor.clone() for name, tensor in params.items()})
    grads = noise(schema, 100)
    step = PseudoGradient(grads, LR, 0.0)
    encode, demos = seconds(
        partial(feedback.compress, step), partial(demo.encode, grads), repeats=repeats
    )
    peers = [noise(schema, 1 + peer) for peer in range(PEERS)]
    fresh = (ErrorFeedback(schema.results, 0, params, DECAY) for _ in peers)
    votes = [
        decode_all(schema, encoded(sender, each)) for sender, each in zip(fresh, peers, strict=True)
    ]
    results = {level: [each[level] for each in votes] for level in votes[0]}
    sent = [Demo(params).encode(each) for each in peers]
    apply, demo_apply = seconds(
        partial(ours.apply, results, LR), partial(demo.apply, sent), repeats=repeats
    )
    return {
        "encode_over_demo": demos / encode,
        f"apply{PEERS}_over_demo": demo_apply / apply,
        "encode_seconds": encode,
        f"apply{PEERS}_seconds": apply,
    }


def aggregate(schema: Schema) -> float:
    """Return the seconds to apply 32 members' results, whose indices differ as for independent
    noise.
    """
    params = noise(schema, 0)
    sender = ErrorFeedback(schema.results, 0, params, DECAY)
    votes = [decode_all(schema, encoded(sender, noise(schema, 1 + peer))) for peer in range(MANY)]
    results = {level: [each[level] for each in votes] for level in votes[0]}
    engine = Engine(schema, 0, params)
    return seconds(partial(engine.apply, results, LR), repeats=3)[0]


def measure() -> dict[str, Any]:
    """Return everything this benchmark reports."""
    big = loco(GPT2, 32)
    return {
        "demo_bytes_per_4096": TOPK * DEMO_BYTES,
        "kernels": unavailable_reason() or "compiled",
        "bytes_per_4096": {
            "sign": bytes_of(partial(signs, GPT2)),
            "1": bytes_of(partial(loco, GPT2, bits=1)),
            "2": bytes_of(partial(loco, GPT2, bits=2)),
        },
        "parameters": the_schema().state.parameters(),
        "aggregate_parameters": big.state.parameters(),
        **speeds(1, big),
        "two_threads": speeds(2, big),
    }


def speeds(threads: int, big: Schema) -> dict[str, Any]:
    """Measure both kinds against DeMo, and the exact apply of many results to a big model."""
    torch.set_num_threads(threads)
    return {
        "distro": against_demo(the_schema()),
        "sparseloco": against_demo(loco(MODEL, TOPK)),
        "all_numbers": against_demo(everything(0.0), 2),
        "all_numbers_muon": against_demo(everything(1.5), 1),
        f"aggregate{MANY}_seconds": aggregate(big),
    }


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
