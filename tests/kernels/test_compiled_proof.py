"""A member detects a wrong kernel before it uses one, and warns once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aftermath.events import event_types
from aftermath.events.stream import Event, Events
from aftermath.kernels import aggregate, dense, dense_encode, polar, sparse_encode
from aftermath.kernels.runtime import unavailable_reason
from aftermath.optim import compiled_proof, compiled_sparse
from aftermath.optim.engine import Engine
from aftermath.train.assembly import ready_kernels
from optim.optim_oracle import toy_schema
from optim.optim_replica import tensors

assert unavailable_reason() is None
Kernel = Callable[..., None]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    compiled_proof.unfit.cache_clear()
    yield
    compiled_proof.unfit.cache_clear()


def _flips_what_is_sent(kernel: Kernel) -> Kernel:
    def wrong(*args: Any) -> None:
        kernel(*args)
        values = args[14]
        values *= -1

    return wrong


def _applies_backwards(kernel: Kernel) -> Kernel:
    return lambda *args: kernel(*args[:-1], -args[-1])


def _raises(kernel: Kernel) -> Kernel:
    def fails(*args: Any) -> None:
        raise SystemError("no such instruction")

    return fails


def _leaves_zeros(kernel: Kernel) -> Kernel:
    def wrong(codes: Any, packed: Any, *args: Any) -> None:
        packed[:] = 0

    return wrong


def _accepts_all(kernel: Kernel) -> Kernel:
    return lambda *args: True


WRONG = [
    (sparse_encode, "encode", _flips_what_is_sent, "differ from torch when they choose signs"),
    (sparse_encode, "encode", _raises, "fail when they choose signs"),
    (aggregate, "apply_signs", _applies_backwards, "differ from torch when they apply signs"),
    (aggregate, "apply_mean", _applies_backwards, "differ from torch when they apply values"),
    (aggregate, "apply_mean", _raises, "fail when they apply values"),
    (dense_encode, "encode", _raises, "fail when they choose all values"),
    (dense_encode, "pack", _leaves_zeros, "differ from torch when they choose all values"),
    (dense, "check", _accepts_all, "differ from torch when they apply all values"),
    (dense, "apply_mean", _applies_backwards, "differ from torch when they apply all values"),
    (polar, "polar", _applies_backwards, "differ from torch when they compute polar factors"),
]


def test_kernels_of_this_machine_equal_torch() -> None:
    assert compiled_proof.unfit() is None


@pytest.mark.parametrize(("module", "name", "spoil", "says"), WRONG)
async def test_wrong_kernel_is_replaced_by_torch_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    spoil: Callable[[Kernel], Kernel],
    says: str,
) -> None:
    monkeypatch.setattr(module, name, spoil(getattr(module, name)))
    events: list[Event] = []

    async def here(work: Callable[[], Any]) -> Any:
        return work()

    await ready_kernels(Events(lambda: 0.0, [events.append]), here)
    (kernels_event,) = (event for event in events if isinstance(event, event_types.Kernels))
    assert says in (kernels_event.missing or "")
    (warning,) = (event for event in events if isinstance(event, event_types.Warning))
    assert says in warning.message
    schema = toy_schema()
    params = tensors(schema, 0, 0)
    assert not compiled_sparse.usable(params)
    engine = Engine(schema, 0, params)
    assert not engine._apply._compiled  # type: ignore[attr-defined]
