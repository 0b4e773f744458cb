"""Measure encode, decode and exact apply of a result, against DeMo's float apply.

python benchmarks/distro.py [--json]
"""

# How it is measured:
# - The model is a Llama of about 20 M parameters in three tiers, top-k 8 of 64 x 64 blocks,
#   1-bit.
# - Gradients are independent noise per peer, so peers rarely share coefficients: an aggregate has
#   the most entries possible.
# - Speeds are the best of five runs, in million parameters per second.
# - The float reference is scatter-mean, one inverse DCT and sign in fp32 over the same blocks,
#   batched like ours, in the same process.
# - Signs are compared with the same estimate in float64. `exact_differs` counts ours and
#   `fp32_differs` the reference's, where the sum exceeds 1e-12 in float64. Below that, the sign
#   is noise.

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aftermath.model.segments import view
from aftermath.optim.codec import decode_level
from aftermath.optim.distro_step import GradientStep
from aftermath.optim.engine import Engine
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.exact_signs import signs
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.layout import level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.schema import Schema, build_schema
from aftermath.optim.transform import cells, inverse
from aftermath.rules.distro import Distro

LR = 1e-3
DECAY = 0.999
TIE = 1e-12
CPU = torch.device("cpu")
MODEL = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


def the_schema() -> Schema:
    """Return the benchmark's run."""
    return build_schema(
        MODEL,
        3,
        Distro(
            topk=8,
            topk_embeddings=8,
            chunk=64,
            quantize_1bit=True,
            decay=DECAY,
            weight_decay=0.0,
            clip=None,
        ),
    )


def best(
    *actions: Callable[[], object], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the seconds of the fastest run of each action, after one untimed run. The actions take
    turns.
    """
    for action in actions:
        action()
    times = [float("inf")] * len(actions)
    for _ in range(repeats):
        for place, action in enumerate(actions):
            started = clock()
            action()
            times[place] = min(times[place], clock() - started)
    return times


def noise(schema: Schema, seed: int) -> dict[str, Tensor]:
    """Return one normal tensor for each of the model's."""
    generator = torch.Generator().manual_seed(seed)
    shapes = schema.state.config.parameter_shapes()
    return {name: torch.randn(shape, generator=generator) for name, shape in sorted(shapes.items())}


def float_estimate(
    votes: Sequence[Votes], schema: Schema, level: int, dtype: torch.dtype
) -> list[Tensor]:
    """Return the scatter-mean and one inverse DCT in floating point, per segment of the level."""
    layout = level_layout(schema.results, level)
    positions = torch.cat([vote.positions for vote in votes])
    values = torch.cat([vote.values for vote in votes]).to(dtype)
    dense = torch.zeros(sum(group.blocks * group.block for group in layout.groups), dtype=dtype)
    dense.scatter_reduce_(0, positions, values, "mean", include_self=False)
    transform = inverse_float64 if dtype == torch.float64 else inverse
    groups = [
        transform(
            dense[group.base : group.base + group.blocks * group.block].view(
                -1, group.height, group.width
            )
        )
        for group in layout.groups
    ]
    return [part.of(groups[part.group]) for part in layout.parts]


def dct_rows(edge: int) -> Tensor:
    """Return the orthonormal DCT-II, float64 [frequency, position], not made from our integers."""
    place = torch.arange(edge, dtype=torch.float64)
    rows: Tensor = (
        torch.cos(torch.pi * (2 * place + 1) * place.unsqueeze(1) / (2 * edge)) * (2 / edge) ** 0.5
    )
    rows[0] = edge**-0.5
    return rows


def inverse_float64(coefficients: Tensor) -> Tensor:
    """Return the inverse DCT, with a float64 basis of its own."""
    for axis in (1, 2):
        rows = dct_rows(coefficients.shape[axis])
        coefficients = (coefficients.transpose(axis, 2) @ rows).transpose(axis, 2)
    return coefficients


def float_apply(
    params: Mapping[str, Tensor], schema: Schema, results: Mapping[int, Sequence[Votes]]
) -> None:
    """Run the reference's whole apply."""
    for level, votes in results.items():
        estimates = float_estimate(votes, schema, level, torch.float32)
        for blocks, estimate in zip(schema.results.of_level(level), estimates, strict=True):
            for place, step in cells(view(params, blocks.segment), estimate.sign_(), blocks):
                place.sub_(step, alpha=LR)


def compare_signs(schema: Schema, results: Mapping[int, Sequence[Votes]]) -> dict[str, float]:
    """Return how often the exact and the fp32 signs differ from float64's, and the largest sum at
    which ours do.
    """
    total = exact = single = 0
    largest = 0.0
    for level, votes in results.items():
        rows = zip(
            signs(votes, schema.results, level, CPU),
            float_estimate(votes, schema, level, torch.float32),
            float_estimate(votes, schema, level, torch.float64),
            strict=True,
        )
        for ours, fp32, fp64 in rows:
            decided = fp64.abs() > TIE
            differs = decided & (ours != fp64.sign())
            total, exact = total + fp64.numel(), exact + int(differs.sum())
            single += int((decided & (fp32.sign() != fp64.sign())).sum())
            largest = max(largest, float(fp64[differs].abs().max()) if differs.any() else 0.0)
    return {
        "signs": total,
        "exact_differs": exact,
        "fp32_differs": single,
        "largest_sum_that_differs": largest,
    }


def decode_all(schema: Schema, payloads: Mapping[int, bytes]) -> dict[int, Votes]:
    """Return one peer's votes on all levels."""
    return {level: decode_level(data, schema.results, level) for level, data in payloads.items()}


def look(step: GradientStep) -> None:
    """Look ahead and back."""
    with step.lookahead(LR):
        pass


def encoded(feedback: ErrorFeedback, grads: Mapping[str, Tensor]) -> dict[int, bytes]:
    """Return the result of one gradient."""
    return feedback.compress(PseudoGradient(grads, LR, 0.0))


def measure() -> dict[str, Any]:
    """Return everything this benchmark reports."""
    schema = the_schema()
    millions = schema.state.parameters() / 1e6
    params = noise(schema, 0)
    engine = Engine(schema, 0, params)
    feedback = ErrorFeedback(schema.results, 0, params, DECAY)
    step = GradientStep(params, feedback.go_ahead, None)
    fresh = (ErrorFeedback(schema.results, 0, params, DECAY) for _ in range(16))
    payloads = [encoded(sender, noise(schema, 1 + peer)) for peer, sender in enumerate(fresh)]
    votes = [decode_all(schema, each) for each in payloads]
    grads = noise(schema, 100)
    speeds = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        row: dict[str, float] = {"threads": threads}
        phases: dict[str, Callable[[], object]] = {
            "lookahead": partial(look, step),
            "encode": partial(encoded, feedback, grads),
            "decode": partial(decode_all, schema, payloads[0]),
        }
        row |= {name: millions / best(action)[0] for name, action in phases.items()}
        for peers in (1, 3, 16):
            results = {level: [each[level] for each in votes[:peers]] for level in payloads[0]}
            ours, float_seconds = best(
                partial(engine.apply, results, LR), partial(float_apply, params, schema, results)
            )
            row[f"apply_{peers}"] = millions / ours
            row[f"float_apply_{peers}"] = millions / float_seconds
            row[f"ratio_{peers}"] = float_seconds / ours
        speeds.append(row)
    compared = {
        f"peers_{peers}": compare_signs(
            schema, {level: [v[level] for v in votes[:peers]] for level in payloads[0]}
        )
        for peers in (1, 3, 16)
    }
    size = schema.results.result_bytes()
    return {
        "parameters": schema.state.parameters(),
        "payload_bytes": size,
        "bytes_per_4096": size * 4096 / schema.state.parameters(),
        "mparam_per_second": speeds,
        "signs": compared,
    }


def table(report: Mapping[str, Any]) -> str:
    """Return the report as text."""
    size = f"{report['bytes_per_4096']:.2f} B per 4096 ({report['payload_bytes']:,} B)"
    lines = [f"{report['parameters']:,} parameters, {size}; million parameters per second:"]
    rows = report["mparam_per_second"]
    lines += [f"{name:>16} " + " ".join(f"{row[name]:>10.2f}" for row in rows) for name in rows[0]]
    lines += [f"{name}: {counts}" for name, counts in report["signs"].items()]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description="Speed and precision of DisTrO's encode, decode and exact apply."
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    as_json = parser.parse_args().json
    report = measure()
    print(json.dumps(report, indent=1) if as_json else table(report))


if __name__ == "__main__":
    main()
