"""The parts that tasks wait on: Pulse, first_of, RunFeed, persist, worker threads and virtual
time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest

from aftermath.base.concurrency import Pulse, ThreadWorker, first_of
from aftermath.chain.refusals import refusal
from aftermath.coordinator.errors import Refusal, Refused, Unavailable
from aftermath.coordinator.ports import Coordinator, View
from aftermath.events.stream import Events
from aftermath.member.feed import RunFeed
from aftermath.member.ports import Ports
from aftermath.member.retry import Duty, persist
from aftermath.rules.state import RunState
from aftermath.sim.virtual_time import InlineWorker, VirtualClock, run_virtual
from rules.builders import run, view

# --- pulse and first_of ---------------------------------------------------------------------------


async def test_pulse_before_first_step_of_wait_is_not_lost() -> None:
    pulse = Pulse()
    waiting = pulse.wait()
    pulse.fire()
    await asyncio.wait_for(waiting, 1)


async def test_pulse_wakes_all_waiters_once() -> None:
    pulse = Pulse()
    both = asyncio.gather(pulse.wait(), pulse.wait())
    await asyncio.sleep(0)
    pulse.fire()
    await asyncio.wait_for(both, 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pulse.wait(), 0.01)


async def test_first_of_leaves_no_task_behind() -> None:
    await first_of(asyncio.sleep(0), asyncio.sleep(3600))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_first_of_returns_first_result() -> None:
    assert await first_of(asyncio.sleep(3600, "late"), asyncio.sleep(0, "soon")) == "soon"
    assert await first_of(asyncio.sleep(0, "one"), asyncio.sleep(0, "two")) == "one"


async def test_first_of_raises_first_error_and_cancels_rest() -> None:
    async def fails() -> None:
        raise LookupError("first")

    with pytest.raises(LookupError, match="first"):
        await first_of(fails(), asyncio.sleep(3600))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_first_of_cancelled_from_outside_cancels_its_waits() -> None:
    task = asyncio.ensure_future(first_of(asyncio.sleep(3600), asyncio.sleep(3600)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- feed -----------------------------------------------------------------------------------------


def _at(seq: int, state: RunState = RunState.WARMUP) -> View:
    return view(run(state, seq=seq))


async def test_feed_with_older_state_keeps_newer() -> None:
    feed = RunFeed(_at(5))
    await feed.put(_at(4))
    assert feed.run.seq == 5
    await feed.put(_at(6))
    assert feed.run.seq == 6


async def test_waiter_sees_only_newest_state() -> None:
    feed = RunFeed(_at(1))
    waiting = asyncio.ensure_future(feed.after(1))
    await asyncio.sleep(0)
    await feed.put(_at(2))
    await feed.put(_at(3))
    assert (await asyncio.wait_for(waiting, 1)).seq >= 2
    assert (await feed.after(2)).seq == 3


async def test_cancelled_waiter_does_not_affect_others() -> None:
    feed = RunFeed(_at(1))
    given_up = asyncio.ensure_future(feed.after(1))
    patient = asyncio.ensure_future(feed.after(1))
    await asyncio.sleep(0)
    given_up.cancel()
    await feed.put(_at(2))
    assert (await asyncio.wait_for(patient, 1)).seq == 2


async def test_follow_ends_with_error_of_chain() -> None:
    class Ending:
        async def views(self) -> AsyncIterator[View]:
            yield _at(2)
            raise Unavailable("gone for good")

    feed = RunFeed(_at(1))
    with pytest.raises(Unavailable):
        await feed.follow(cast(Coordinator, Ending()))
    assert feed.run.seq == 2


# --- persist --------------------------------------------------------------------------------------


class Calls:
    """A call with scripted outcomes that records when it was made."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self._outcomes = list(outcomes)
        self.times: list[float] = []

    async def __call__(self) -> None:
        self.times.append(asyncio.get_running_loop().time())
        outcome = self._outcomes.pop(0)
        if outcome is not None:
            raise outcome


def _persist(call: Callable[[], Awaitable[None]], **options: Any) -> bool:
    return run_virtual(
        persist(VirtualClock(), call, still_wanted=options.pop("wanted", lambda: True), **options)
    )


def test_unreachable_chain_is_retried_with_backoff() -> None:
    call = Calls(*[Unavailable("down")] * 7, None)
    assert _persist(call)
    assert call.times == [0, 0.25, 0.75, 1.75, 3.75, 7.75, 11.75, 15.75]


def test_persist_accepts_refusal_of_done_call() -> None:
    call = Calls(Unavailable("the reply was lost"), refusal("DuplicateWitness", "twice"))
    assert not _persist(call, done_if=frozenset({Refusal.ALREADY_DONE}))


def test_persist_raises_other_refusals() -> None:
    with pytest.raises(Refused, match="who are you"):
        _persist(
            Calls(refusal("NotAuthorized", "who are you")),
            done_if=frozenset({Refusal.ALREADY_DONE}),
        )


def test_persist_skips_unwanted_call() -> None:
    call = Calls()
    assert not _persist(call, wanted=lambda: False)
    assert not call.times


def test_refused_duty_warning_names_the_duty() -> None:
    events: list[Any] = []
    ports = cast(Ports, _Bare(VirtualClock(), Events(lambda: 0.0, [events.append])))
    call = Calls(refusal("BadParticipation", "no such member"))
    assert not run_virtual(Duty(ports, "the attestation", still_wanted=lambda: True).fulfil(call))
    assert events[0].message == "the attestation was refused: no such member"


def test_duty_repeats_call_after_temporary_refusals() -> None:
    ports = cast(Ports, _Bare(VirtualClock(), Events(lambda: 0.0, [])))
    call = Calls(*[refusal("CasesFull", "wait")] * 2, None)
    run_virtual(Duty(ports, "the case", still_wanted=lambda: True).insist(call))
    assert call.times == [0, 5, 15]


@pytest.mark.parametrize("name", ["DuplicateVerdict", "NotAuditor", "BadParticipation"])
def test_duty_does_not_repeat_call_after_final_refusal(name: str) -> None:
    ports = cast(Ports, _Bare(VirtualClock(), Events(lambda: 0.0, [])))
    call = Calls(refusal(name, "no"))
    run_virtual(Duty(ports, "the case", still_wanted=lambda: True).insist(call))
    assert call.times == [0]


class _Bare:
    def __init__(self, clock: VirtualClock, events: Events) -> None:
        self.clock = clock
        self.events = events


# --- workers --------------------------------------------------------------------------------------


async def test_worker_runs_one_job_at_a_time_in_order() -> None:
    worker = ThreadWorker("test")
    jobs = []

    def job(number: int) -> int:
        jobs.append((number, threading.current_thread().name))
        return number

    results = await asyncio.gather(*(worker(lambda n=n: job(n)) for n in range(20)))
    assert results == list(range(20))
    assert jobs == [(n, "test") for n in range(20)]


async def test_worker_error_reaches_caller() -> None:
    worker = ThreadWorker("test")

    def job() -> None:
        raise ValueError("of the job")

    with pytest.raises(ValueError, match="of the job"):
        await worker(job)
    assert await worker(lambda: 1) == 1


async def test_job_raising_stop_iteration_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await ThreadWorker("test")(lambda: next(iter(())))


async def test_job_cancelled_before_start_never_runs() -> None:
    worker = ThreadWorker("test")
    gate = threading.Event()
    ran = []
    first = asyncio.ensure_future(worker(gate.wait))
    second = asyncio.ensure_future(worker(lambda: ran.append(2)))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    gate.set()
    await first
    assert await worker(lambda: 3) == 3
    assert not ran


async def test_job_cancelled_while_running_does_not_stop_worker() -> None:
    worker = ThreadWorker("test")
    begun = threading.Event()
    gate = threading.Event()
    job = asyncio.ensure_future(worker(lambda: (begun.set(), gate.wait())))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    gate.set()
    assert await worker(lambda: 4) == 4


def test_worker_survives_end_of_loop() -> None:
    worker = ThreadWorker("test")
    begun = threading.Event()
    gate = threading.Event()

    async def leave_early() -> None:
        job = asyncio.ensure_future(worker(lambda: (begun.set(), gate.wait())))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        job.cancel()

    asyncio.run(leave_early())
    gate.set()


# --- virtual time ---------------------------------------------------------------------------------


def test_virtual_time_wakes_sleepers_in_order_at_once() -> None:
    async def scenario() -> list[tuple[str, float]]:
        order: list[tuple[str, float]] = []

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            order.append((name, asyncio.get_running_loop().time()))

        await asyncio.gather(wait("late", 7200), wait("early", 1.5), wait("middle", 60))
        return order

    assert run_virtual(scenario()) == [("early", 1.5), ("middle", 60), ("late", 7200)]


def test_virtual_time_deadlock_is_detected() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock in virtual time"):
        run_virtual(scenario())


def test_inline_worker_runs_jobs_one_after_another() -> None:
    async def scenario() -> list[float]:
        worker = InlineWorker(2.0)
        now = asyncio.get_running_loop().time
        return await asyncio.gather(*(worker(now) for _ in range(3)))

    assert run_virtual(scenario()) == [2, 4, 6]
