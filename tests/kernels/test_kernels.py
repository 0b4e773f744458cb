"""Kernels give the bits of torch, for many shapes, formats and thread counts."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aftermath.base.errors import SchemaError
from aftermath.kernels import block_topk, dct, runtime
from aftermath.model.levels import Segment
from aftermath.optim.blocks import UNUSED, cut
from aftermath.optim.codec import decode_level
from aftermath.optim.dct_basis import integer_basis
from aftermath.optim.engine import Engine
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.lattice import LEAST, MOST, SMALLEST, fraction_bits, quantise
from aftermath.optim.level_votes import Votes
from aftermath.optim.result_format import ResultFormat, Transform, Values
from aftermath.optim.schema import Schema, build_schema
from aftermath.optim.sparseloco_apply import MeanApply
from aftermath.optim.transform import ZERO_BELOW, strongest
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from optim.optim_oracle import RAGGED, toy_inner, toy_schema
from optim.optim_replica import bits, gradients, tensors
from replica.whole_round import MODELS, OPTIMIZERS

assert runtime.unavailable_reason() is None
THREADS = [1, 2, 3]
_MARGIN = 4096  # numbers on each side of an array, to be left as they are
CLIENT = Path(runtime.__file__).parents[2]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("vectors", [1, 7])
# folded 0, 1, 0, 2 and 4 times; sums of tiles and of rests
@pytest.mark.parametrize("edge", [1, 2, 7, 20, 64])
def test_dct_of_integers_equals_basis_product(edge: int, vectors: int) -> None:
    basis = np.array(integer_basis(edge), np.float64)
    coefficients = (
        np.random.default_rng(edge).integers(-(2**20), 2**20, (edge, vectors)).astype(np.float64)
    )
    output = np.empty_like(coefficients)
    scratch = np.empty_like(coefficients)
    dct.inverse(np.ascontiguousarray(basis.T), coefficients, output, scratch, vectors)
    assert (output == basis.T @ coefficients).all()
    dct.forward(basis, coefficients.copy(), output, scratch, vectors)
    assert (output == basis @ coefficients).all()


@st.composite
def blocks(draw: st.DrawFn) -> tuple[np.ndarray, int, float]:
    """Draw numbers with few or many ties and zeros, how many to keep, and what counts as zero."""
    size = draw(st.sampled_from([1, 2, 5, 64, 100, 255, 256, 257, 1000, 1024, 4096]))
    topk = min(
        size, draw(st.sampled_from([1, 2, 8, 15, 16, 17, 32, 64, 128, 200, 256, 1024, 4096]))
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = random.normal(size=size) * 2.0 ** draw(st.sampled_from([-130, -40, 0, 60]))
    kind = draw(st.sampled_from(["plain", "coarse", "sparse", "equal"]))
    if kind == "coarse":
        values = np.round(random.normal(size=size) * 2)
    elif kind == "sparse":
        values[random.random(size) < 0.97] = 0
    elif kind == "equal":
        values = np.where(random.random(size) < 0.5, -1.5, 1.5)
    return values.astype(np.float32), topk, draw(st.sampled_from([ZERO_BELOW, SMALLEST]))


def chosen(values: np.ndarray, topk: int, smallest: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the selected indices and values, and check that no array is overrun."""
    size = len(values)
    sizes = {"words": size, "more": 2 * size, "places": size, "indices": topk, "found": topk}
    kinds = {
        "words": np.uint32,
        "more": np.uint32,
        "places": np.int64,
        "indices": np.int64,
        "found": np.float32,
    }
    whole = {name: np.full(count + 2 * _MARGIN, 77, kinds[name]) for name, count in sizes.items()}
    arrays = {name: numbers[_MARGIN : _MARGIN + sizes[name]] for name, numbers in whole.items()}
    block_topk.top_k(values, int(np.float32(smallest).view(np.uint32)), *arrays.values())
    for name, numbers in whole.items():
        assert (numbers[:_MARGIN] == 77).all(), name
        assert (numbers[_MARGIN + sizes[name] :] == 77).all(), name
    return arrays["indices"], arrays["found"]


@given(blocks(), st.integers(0, 2**32))
def test_top_k_of_any_bits_fills_every_entry(
    case: tuple[np.ndarray, int, float], seed: int
) -> None:
    """NaN and infinite numbers count by their bits."""
    values, topk, smallest = case
    random = np.random.default_rng(seed)
    strange = random.random(len(values)) < random.choice([0.01, 0.5, 1.0])
    values[strange] = random.integers(0, 2**32, len(values), np.uint32).view(np.float32)[strange]
    values[random.random(len(values)) < random.choice([0.0, 0.1])] = random.choice(
        [np.nan, np.inf, -np.inf]
    )
    magnitudes = values.view(np.uint32) & 0x7FFFFFFF
    indices, chosen_values = chosen(values, topk, smallest)
    used = min(topk, int((magnitudes >= np.float32(smallest).view(np.uint32)).sum()))
    assert sorted(set(indices[:used].tolist())) == indices[:used].tolist()
    assert (indices[used:] == UNUSED).all()
    assert (np.sort(magnitudes[indices[:used]]) == np.sort(magnitudes)[len(values) - used :]).all()
    block_topk.quantise(chosen_values, 2, fraction_bits(topk), LEAST, MOST)


@given(blocks(), st.sampled_from([1, 2]))
def test_top_k_and_lattice_equal_torch(case: tuple[np.ndarray, int, float], wide: int) -> None:
    values, topk, smallest = case
    indices, chosen_values = chosen(values, topk, smallest)
    expected = strongest(torch.from_numpy(values)[None], topk, smallest)
    assert indices.tolist() == expected[0][0].tolist()
    assert chosen_values.tobytes() == expected[1][0].numpy().tobytes()
    if smallest == SMALLEST:
        block_topk.quantise(chosen_values, wide, fraction_bits(topk), LEAST, MOST)
        assert chosen_values.tobytes() == quantise(expected[1], wide)[0].numpy().tobytes()


WHOLE = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "chunk": 64}
INNER = {
    "2 bits": toy_inner(),
    "1 bit, padded": toy_inner(bits=1, **RAGGED),
    "larger blocks": toy_inner(topk=32, topk_embeddings=8, **WHOLE),
    "everything, no decay": toy_inner(topk=4096, topk_embeddings=4096, decay=1.0, **RAGGED),
}


def pair(schema: Schema, tier: int) -> tuple[ErrorFeedback, ErrorFeedback]:
    """Return error feedback by kernels, and by torch."""
    params = tensors(schema, tier, 0)
    feedbacks = tuple(
        ErrorFeedback(schema.results, tier, params, schema.optimizer.decay) for _ in range(2)
    )
    assert feedbacks[0]._compiled
    feedbacks[1]._compiled = False
    return feedbacks[0], feedbacks[1]


@pytest.mark.parametrize("topk", [16, 64, 65, 128, 256])
def test_top_k_with_exactly_k_candidates_selects_them(topk: int) -> None:
    """All other numbers are small and nonzero, so the candidates are exactly the top-k."""
    values = np.full(4096, 1e-3, np.float32)
    strong = np.arange(4096 - topk, 4096)  # in separate columns, after all weak numbers
    values[strong] = np.linspace(1, 2, topk, dtype=np.float32)
    indices, chosen_values = chosen(values, topk, SMALLEST)
    assert (indices == strong).all()
    assert (chosen_values == values[strong]).all()


@pytest.mark.parametrize(("tier", "threads"), [(0, 3), (2, 1)])
@pytest.mark.parametrize("name", INNER)
def test_results_and_residuals_equal_torch(name: str, tier: int, threads: int) -> None:
    schema = INNER[name]
    ours, torchs = pair(schema, tier)
    torch.set_num_threads(threads)
    for step in range(3):
        changes = {key: 0.01 * tensor for key, tensor in gradients(schema, tier, step).items()}
        if step == 2:  # with gaps in memory
            changes = {
                key: torch.stack([tensor, tensor], -1)[..., 0] for key, tensor in changes.items()
            }
        gradient = PseudoGradient(changes, 1.0, 0.0)
        assert ours.compress(gradient) == torchs.compress(gradient)
        assert bits(ours.state_tensors()) == bits(torchs.state_tensors())
    ours.restore(torchs.state_tensors())
    assert ours.sent() == torchs.sent()


@pytest.mark.parametrize("quantize", [True, False])
@pytest.mark.parametrize("sizes", [RAGGED, WHOLE], ids=["padded", "whole"])
def test_transformed_residuals_equal_torch_up_to_rounding(
    sizes: dict[str, int], quantize: bool
) -> None:
    """Both send the same here, since no rounding is a tie."""
    schema = toy_schema(quantize_1bit=quantize, **sizes)
    ours, torchs = pair(schema, 0)
    for step in range(4):
        gradient = PseudoGradient(gradients(schema, 0, step), 0.1, 0.0)
        one = ours.compress(gradient)
        other = torchs.compress(gradient)
        for level in one:
            first, second = (
                decode_level(data[level], schema.results, level) for data in (one, other)
            )
            assert torch.equal(first.positions, second.positions)
            assert torch.allclose(first.values.float(), second.values.float(), rtol=1e-3, atol=1e-5)
        for name, tensor in torchs.state_tensors().items():
            assert torch.allclose(ours.state_tensors()[name], tensor, rtol=1e-3, atol=1e-5), name


def test_thread_count_changes_no_bit_of_a_result() -> None:
    schema = toy_schema(**WHOLE)
    states = []
    for threads in THREADS:
        ours, _ = pair(schema, 0)
        torch.set_num_threads(threads)
        sent = [
            ours.compress(PseudoGradient(gradients(schema, 0, step), 0.1, 0.0)) for step in range(3)
        ]
        states.append((sent, bits(ours.state_tensors())))
    assert states[1:] == states[:1] * 2


# --- applies --------------------------------------------------------------------------------------


def received(schema: Schema, tier: int, members: int) -> dict[int, list[Votes]]:
    """Return decoded results of members that have different gradients."""
    params = tensors(schema, 0, 0)
    votes_by_level: dict[int, list[Votes]] = {
        level: [] for level in range(tier, schema.results.levels)
    }
    for member in range(members):
        own = ErrorFeedback(schema.results, 0, params, 0.9)
        payloads = own.compress(PseudoGradient(gradients(schema, 0, member), 0.01, 0.0))
        for level, votes in votes_by_level.items():
            votes.append(decode_level(payloads[level], schema.results, level))
    return votes_by_level


def applied(
    schema: Schema, tier: int, results: Mapping[int, Sequence[Votes]], kernels: bool
) -> dict[str, bytes]:
    params = tensors(schema, tier, 0)
    engine = Engine(schema, tier, params)
    assert engine._apply._compiled
    engine._apply._compiled = kernels
    for _ in range(2):
        engine.apply(results, 0.01)
    assert bits(params) != bits(tensors(schema, tier, 0))
    return bits(params)


SIGNS = {
    "padded": toy_schema(weight_decay=0.1, **RAGGED),
    "whole": toy_schema(**WHOLE),
    "one sign of each number": toy_schema(topk=4096, topk_embeddings=4096, **RAGGED),
}
MEANS = {
    "2 bits": toy_inner(divisor="root", outer_lr=0.7, **RAGGED),
    "1 bit": toy_inner(bits=1, divisor="all", **WHOLE),
    "everything": toy_inner(topk=4096, topk_embeddings=4096, **RAGGED),
}


@pytest.mark.parametrize(("members", "tier", "threads"), [(5, 0, 3), (2, 1, 2), (1, 0, 1)])
@pytest.mark.parametrize("schema", [*SIGNS.values(), *MEANS.values()], ids=[*SIGNS, *MEANS])
def test_applied_parameters_equal_torch(
    schema: Schema, members: int, tier: int, threads: int
) -> None:
    results = received(schema, tier, members)
    results[2] = results[2][:1]
    del results[1]
    torch.set_num_threads(threads)
    expected = applied(schema, tier, results, kernels=False)
    assert applied(schema, tier, results, kernels=True) == expected
    turned = {level: votes[::-1] for level, votes in results.items()}
    assert applied(schema, tier, turned, kernels=True) == expected


@pytest.mark.parametrize("schema", [SIGNS["padded"], MEANS["2 bits"]], ids=["sign", "mean"])
def test_votes_in_any_order_apply_and_bad_positions_raise(schema: Schema) -> None:
    results = received(schema, 2, 3)
    mixed = {}
    for level, votes in results.items():
        orders = [
            torch.randperm(len(v.positions), generator=torch.Generator().manual_seed(level))
            for v in votes
        ]
        mixed[level] = [
            Votes(level, v.positions[o], v.values[o], None if v.shifts is None else v.shifts[o])
            for v, o in zip(votes, orders, strict=True)
        ]
    assert applied(schema, 2, mixed, kernels=True) == applied(schema, 2, results, kernels=False)
    params = tensors(schema, 2, 0)
    engine = Engine(schema, 2, params)
    before = bits(params)
    for position in (-1, 1 << 40):
        (first, *rest) = results[2]
        wrong = Votes(2, first.positions.clone(), first.values, first.shifts)
        wrong.positions[0] = position
        with pytest.raises(ValueError, match="outside the level"):
            engine.apply({2: [*rest, wrong]}, 0.01)
        assert bits(params) == before


def test_other_formats_and_memory_use_torch() -> None:
    schema = toy_inner()
    params = {name: torch.stack([t, t], -1)[..., 0] for name, t in tensors(schema, 0, 0).items()}
    assert not Engine(schema, 0, params)._apply._compiled
    assert not Engine(toy_inner(orthogonal_lr=1.0), 0, tensors(schema, 0, 0))._apply._compiled
    floats = toy_schema(quantize_1bit=False)
    assert isinstance(floats.optimizer, Distro)
    results = received(floats, 0, 2)
    assert applied(floats, 0, results, kernels=True) == applied(floats, 0, results, kernels=False)


@pytest.mark.parametrize(
    "settings", [OPTIMIZERS["distro"], OPTIMIZERS["sparseloco"]], ids=["sign", "mean"]
)
def test_stack_of_matrices_equals_torch(settings: Optimizer) -> None:
    pytest.importorskip("transformers")
    schema = build_schema(MODELS["auto-experts"], 1, settings)
    results = received(schema, 0, 3)
    assert applied(schema, 0, results, kernels=True) == applied(schema, 0, results, kernels=False)
    ours, torchs = pair(schema, 0)
    for step in range(3):
        gradient = PseudoGradient(gradients(schema, 0, step), 0.01, 0.0)
        assert ours.compress(gradient) == torchs.compress(gradient)
        for name, tensor in torchs.state_tensors().items():
            assert torch.allclose(ours.state_tensors()[name], tensor, rtol=1e-3, atol=1e-5), name


GAPS = {
    "columns": (torch.Size((9, 20)), 1, 13, 1),
    "every other row": (torch.Size((9, 20)), 0, 4, 2),
    "rows of matrices": (torch.Size((3, 20, 9)), 1, 13, 1),
    "matrices": (torch.Size((5, 7, 9)), 0, 3, 1),
    "matrices of matrices": (torch.Size((4, 2, 7, 9)), 0, 3, 1),
}


@pytest.mark.parametrize("kind", GAPS)
def test_strided_parameters_change_in_place(kind: str) -> None:
    """Kernels see two levels of one tensor in place, and leave the gaps alone."""
    shape, dim, border, step = GAPS[kind]
    parts = [(1, 0, border), (0, border, shape[dim])]
    segments = [
        Segment("w", level, dim, start, stop, (*shape[:dim], stop - start, *shape[dim + 1 :]))  # type: ignore[arg-type]
        for level, start, stop in parts
    ]
    results = ResultFormat(
        cut(segments, chunk=8, topk=5, topk_embeddings=5), 2, Transform.NONE, Values.TWO_BIT
    )
    outcomes = []
    for kernels in (True, False):
        whole = torch.randn(shape[0] * step, *shape[1:], generator=torch.Generator().manual_seed(0))
        params = {"w": whole[::step]}
        before = whole.clone()
        feedback = ErrorFeedback(results, 0, params, 0.9)
        mean = MeanApply(results, 0, params, SparseLoCo())
        assert feedback._compiled
        assert mean._compiled
        feedback._compiled = mean._compiled = kernels
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        payloads = feedback.compress(PseudoGradient({"w": gradient}, 0.01, 0.0))
        mean.apply(
            {level: [decode_level(data, results, level)] for level, data in payloads.items()}, 0.1
        )
        changed = whole != before
        assert all(
            changed[::step].narrow(dim, start, stop - start).any() for _, start, stop in parts
        )
        assert step == 1 or not changed[1::2].any()
        outcomes.append((payloads, whole.numpy().tobytes()))
    assert outcomes[0] == outcomes[1]


def test_segment_without_matrix_stack_raises() -> None:
    """A kernel could change such matrices only in a copy."""
    with pytest.raises(
        SchemaError, match="w has 4 dimensions, so levels cannot cut it along the second"
    ):
        cut([Segment("w", 0, 1, 0, 4, (3, 4, 7, 9))], chunk=8, topk=5, topk_embeddings=5)


# --- where they cannot be used --------------------------------------------------------------------


def test_kernels_without_numba_use_torch_and_give_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not runtime.needs_compilation()  # this module has compiled them
    monkeypatch.setattr(runtime, "find_spec", lambda name: None)
    assert not runtime.needs_compilation()
    assert "aftermath[fast]" in str(runtime.unavailable_reason.__wrapped__())
    reason = runtime.unavailable_reason.__wrapped__()
    monkeypatch.setattr("aftermath.optim.compiled_proof.unfit", lambda: reason)
    schema = toy_inner()
    engine = Engine(schema, 0, tensors(schema, 0, 0))
    assert not engine._apply._compiled
    engine.apply(received(schema, 0, 2), 0.01)


@pytest.mark.slow
def test_kernels_compile_in_one_process_and_are_cached(tmp_path: Path) -> None:
    """Use a small kernel: compiling all of them takes half a minute."""
    code = """
import sys
from pathlib import Path
from aftermath.kernels import jit
from aftermath.kernels.jit import compile_all, is_compiled
jit.CACHE_PATH = Path(sys.argv[1])
from {module} import twice
print(is_compiled())
compile_all()
print(is_compiled(), twice(21), sum(twice.stats.cache_misses.values()))
"""
    module = tmp_path / "small_kernel.py"
    module.write_text(
        "from aftermath.kernels.jit import kernel\n\n\n@kernel('i8(i8)')\ndef twice(x):\n    return 2 * x\n"
    )
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "kept"),
        "PYTHONPATH": f"{CLIENT}:{tmp_path}",
    }
    command = [sys.executable, "-c", code.format(module=module.stem), str(tmp_path / "place")]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(2)
    ]
    lines = [process.communicate()[0].split() for process in processes]
    assert [line[1:3] for line in lines] == [["True", "42"]] * 2
    assert sorted(line[3] for line in lines) == ["0", "1"]
    later = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=True)
    assert later.stdout.split() == ["True", "True", "42", "0"]
    for file in (tmp_path / "kept").rglob("*.nbc"):
        file.write_bytes(file.read_bytes()[:100])
    repaired = subprocess.run(
        command, stdout=subprocess.PIPE, env=environment, text=True, check=True
    )
    assert repaired.stdout.split()[1:3] == ["True", "42"], "damaged kernels are compiled again"


def test_failing_compiler_is_reported_as_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("no such processor\nand much more")

    monkeypatch.setattr("aftermath.kernels.jit.compile_all", fails)
    assert runtime.unavailable_reason.__wrapped__() == "numba does not work here: no such processor"


@pytest.mark.parametrize("threads", [1, 3])
def test_run_parallel_raises_error_of_task(threads: int) -> None:
    torch.set_num_threads(threads)
    numbers = []

    def task(number: int) -> None:
        if number == 5:
            raise KeyError(number)
        numbers.append(number)

    with pytest.raises(KeyError):
        runtime.run_parallel([lambda number=number: task(number) for number in range(6)])  # type: ignore[misc]
    assert sorted(numbers) == list(range(5))


def test_run_parallel_waits_for_all_tasks_before_raising() -> None:
    """Kernels get bare addresses, whose arrays the caller may free after the error."""
    torch.set_num_threads(3)
    for turn in range(4):  # either error may be raised first
        together = threading.Barrier(3)
        numbers = itertools.count(turn % 2)
        over = threading.Event()
        late = list[bool]()

        def task(
            together: threading.Barrier = together,
            numbers: Iterator[int] = numbers,
            over: threading.Event = over,
            late: list[bool] = late,
        ) -> None:
            together.wait()
            if threading.current_thread() is threading.main_thread():
                return
            if next(numbers) == 1:  # one of the other two
                raise KeyError
            late.append(over.wait(0.05))

        with pytest.raises(KeyError):
            runtime.run_parallel([task] * 3)
        over.set()
        assert late == [False]


@pytest.mark.slow
def test_chosen_cache_directory_gets_one_folder_per_source_hash(tmp_path: Path) -> None:
    """A kernel cached by an older client would still call that client's kernels."""
    code = "from aftermath.kernels import jit; import numba; print(jit.CACHE_PATH, numba.config.CACHE_DIR)"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(CLIENT)}
    folders = []
    for checked in "01":
        own = environment | {"NUMBA_BOUNDSCHECK": checked}
        output = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            env=own,
            text=True,
            check=True,
        )
        place, cache = map(Path, output.stdout.split())
        assert place == cache
        assert place.parent == tmp_path
        folders.append(place)
    assert folders[0] != folders[1]


@pytest.mark.nightly  # compiling all kernels with checks takes 40 s
def test_kernels_with_bounds_checks_stay_inside_arrays(tmp_path: Path) -> None:
    """Run the tests above again with kernels that check every index."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_BOUNDSCHECK": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not nightly", __file__]
    completed = subprocess.run(
        command, stdout=subprocess.PIPE, env=environment, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout
