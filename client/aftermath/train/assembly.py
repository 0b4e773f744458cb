"""Build a member: its model, replica, threads, data, measured speed, and the features it chose.

`admission` has already refused members that the run would not admit. The prompt, the evaluations
and the checkpoint upload do not change the run's arithmetic.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from aftermath.base.allowed_locations import RunAccess
from aftermath.base.concurrency import ThreadWorker, Worker, cancel
from aftermath.base.files import state_directory
from aftermath.chain.member import SolanaMember
from aftermath.coordinator.errors import CoordinatorError
from aftermath.coordinator.ports import Clock, View
from aftermath.data.source import Source, SourceUnavailable
from aftermath.events import event_types
from aftermath.events.status import RunStatus, status_of
from aftermath.events.stream import Events
from aftermath.kernels.runtime import needs_compilation, unavailable_reason
from aftermath.member.checkpoint_writer import Archive, Hub
from aftermath.member.feed import RunFeed
from aftermath.member.local_options import LocalOptions
from aftermath.member.measured_speed import measured_weight
from aftermath.member.member import Member
from aftermath.member.ports import Ports, Role, Workers
from aftermath.member.rounds.evaluations import Evaluations
from aftermath.member.stall_detector import StallDetector
from aftermath.model.outline import Outline
from aftermath.model.saved_checkpoints import saved_steps, stem_of_run
from aftermath.model.text import Prompt, check_vocabulary
from aftermath.optim.compiled_proof import unfit
from aftermath.optim.schema import Schema
from aftermath.p2p.iroh import IrohTransport
from aftermath.parallel.launch import RankProcesses
from aftermath.replica.options import PLAIN
from aftermath.replica.origin import Origin
from aftermath.replica.outline_sharing import OutlineShare
from aftermath.replica.pass_size import PassSize
from aftermath.rules.model import Checkpoint
from aftermath.rules.run import Run
from aftermath.rules.state import CheckpointKind, DataType
from aftermath.train.access import access_for
from aftermath.train.checkpoint_checks import check_room, checkpoint_warning
from aftermath.train.device_options import DeviceSetup
from aftermath.train.interrupts import is_a_person_there
from aftermath.train.newcomer import Newcomer
from aftermath.train.option_checks import eval_request_of
from aftermath.train.put_links import PutLinks
from aftermath.train.requirements import data_of
from aftermath.train.settings import PROMPT_TOKENS, TrainSettings
from aftermath.train.tier import check_memory

_SHOW = 1.0  # seconds between two updates of the status
_ASK_AGAIN = 10.0  # seconds between two attempts to open unavailable data


def prompt_of(settings: TrainSettings, outline: Outline, schema: Schema) -> Prompt | None:
    """Return the prompt of --prompt-text, or None.

    Raises UsageError, or CheckpointError if the model has no tokenizer.
    """
    if settings.prompt_text is None:
        return None
    prompt = Prompt(
        settings.prompt_text, settings.prompt_tokens or PROMPT_TOKENS, outline.tokenizer()
    )
    prompt.check(schema.state.config.vocab_size)
    return prompt


def evaluations_of(settings: TrainSettings, outline: Outline, schema: Schema) -> Evaluations | None:
    """Return the evaluations of --eval-tasks, or None.

    Raises CheckpointError if the model has no tokenizer.
    """
    if (request := eval_request_of(settings)) is None:
        return None
    tokenizer = outline.tokenizer()
    config = schema.state.config
    check_vocabulary(tokenizer, config.vocab_size)
    return Evaluations(request, tokenizer, config.max_position_embeddings)


def hub_of(settings: TrainSettings) -> Hub | None:
    """Return the upload of checkpoints that the options choose, or None."""
    if settings.checkpoint_put_links is not None:
        return Hub("", PutLinks(settings.checkpoint_put_links).put, recordable=False)
    if settings.hub_repo is None:
        return None
    from aftermath.model.hub import upload

    token = settings.hub_token
    repo = settings.hub_repo
    return Hub(
        repo,
        lambda directory, message: upload(
            directory, repo, token=token, message=message, card=False
        ),
    )


class RealClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def assembled(
    settings: TrainSettings,
    setup: DeviceSetup,
    events: Events,
    chain: SolanaMember,
    transport: IrohTransport,
    ranks: RankProcesses | None,
    stack: contextlib.AsyncExitStack,
) -> Member:
    """Return the member. Raises an AftermathError if it does not fit the run.

    `stack` cancels the background tasks on exit.
    """
    view = await chain.view()
    model = view.model
    workers = Workers(
        *(
            ThreadWorker(name)
            for name in ("replica", "decode", "upload", "write", "data", "state", "audit")
        )
    )
    compute = workers.compute
    clock = RealClock()
    access = access_for(settings, view.run, on_local_network=setup.backend.pool.is_local)
    newcomer = Newcomer(
        settings.run_id, settings.matformer_tier, chain, transport, clock, events, access
    )
    outline, schema = await newcomer.outline(
        compute, *own_newest(settings.checkpoint_dir, view.run)
    )
    _check_model_options(settings, setup, schema)
    shortage = check_room(settings, schema.shared, view.run, chain.wallet)
    check_memory(view, schema, settings.matformer_tier, setup.mesh.devices)
    for advice in filter(None, (shortage, checkpoint_warning(settings))):
        events.emit(event_types.Warning(message=advice))
    origin = await _origin(settings, setup, schema, ranks, compute, access)
    feed = RunFeed(view)
    if events.looked_at:
        stack.push_async_callback(cancel, [asyncio.create_task(_show(feed, chain, events))])
    ports = Ports(chain, feed, transport, clock, StallDetector(clock), events)
    role = Role(
        settings.run_id, schema, settings.matformer_tier, setup.backend.secret, origin.device
    )
    local_options = await _local_options(settings, outline, schema, compute)
    data = await _data(events, clock, workers.read, lambda: data_of(model, schema, access))
    keep_steps = settings.keep_steps if settings.delete_old_steps else None
    archive = Archive(
        settings.checkpoint_dir,
        hub_of(settings),
        keep_steps,
        outline.companions,
        origin.read_config,
    )
    if origin.device.type == "cpu":
        await ready_kernels(events, compute)
    weight = await measured_weight(ports, role, compute, origin, model.max_seq_len)
    if origin.arithmetic.compiled:
        events.emit(event_types.Compiling())
    await compute(lambda: origin.warm_up(model.max_seq_len, model.data_type == DataType.FINETUNING))
    OutlineShare(transport, outline)
    parallel = settings.max_concurrent_parameter_requests
    return Member(
        ports, role, workers, data, origin, archive, local_options, weight=weight, parallel=parallel
    )


def own_newest(directory: Path | None, run: Run) -> list[Checkpoint]:
    """Return the newest checkpoint that this member wrote for the run, if any.

    The checkpoints recorded on chain may be false, because any member of tier 0 can record one.
    """
    if directory is None:
        return []
    steps = saved_steps(directory, stem_of_run(directory, run.run_id, run.identity))
    return [Checkpoint(CheckpointKind.LOCAL, str(path.absolute()), "") for path in steps[-1:]]


def _check_model_options(settings: TrainSettings, setup: DeviceSetup, schema: Schema) -> None:
    """Raise Unsuitable or UsageError if the options do not fit the run's model."""
    if setup.mesh.tensor > 1:
        from aftermath.parallel.tensor_parallel import check_tensor_parallelism

        check_tensor_parallelism(schema.state.config, settings.matformer_tier, setup.mesh.tensor)


async def _origin(
    settings: TrainSettings,
    setup: DeviceSetup,
    schema: Schema,
    ranks: RankProcesses | None,
    compute: Worker,
    access: RunAccess,
) -> Origin:
    """Return a factory of replicas on one device, or on all `ranks`."""
    tier = settings.matformer_tier
    strategy = settings.matformer_load_strategy
    pass_size = PassSize(settings.micro_batch_size, settings.activation_checkpointing)
    if ranks is None:
        device = setup.mesh.devices[0]
        return Origin(
            schema,
            tier,
            strategy,
            device,
            pass_size,
            time.monotonic,
            setup.arithmetic,
            access=access,
        )
    # torch's sharding takes a second to import, which few members need
    from aftermath.parallel.multi_device_replica import MultiDeviceReplica
    from aftermath.parallel.sharded import ShardedModel

    def network() -> ShardedModel:
        config = schema.state.config.to_hf()
        return ranks.join().build(ShardedModel, config, tier, setup.arithmetic.bf16)

    make = partial(MultiDeviceReplica, await compute(network))
    device = torch.device("cpu")  # for tensors that the ranks do not hold
    return Origin(schema, tier, strategy, device, pass_size, time.monotonic, PLAIN, make, access)


async def _local_options(
    settings: TrainSettings, outline: Outline, schema: Schema, compute: Worker
) -> LocalOptions:
    return LocalOptions(
        hash_replicas=settings.events_dir is not None,
        gradients_dir=settings.write_gradients_dir,
        optim_stats_steps=settings.optim_stats_steps,
        downloads=settings.max_concurrent_downloads,
        share_delay=float(settings.dummy_training_delay_secs),
        optimizer_state_dir=settings.optimizer_state_dir,
        signed_dir=state_directory() / "signed",
        audit_dir=state_directory() / "audits",
        confirms_loss=is_a_person_there(),
        prompt=await compute(lambda: prompt_of(settings, outline, schema)),
        evaluations=await compute(lambda: evaluations_of(settings, outline, schema)),
    )


async def _show(feed: RunFeed, chain: SolanaMember, events: Events) -> None:
    """Give the display a function that computes the run's status, every `_SHOW` seconds.

    The display calls it on its own thread.
    """
    while True:
        with contextlib.suppress(CoordinatorError):  # the chain's time is not known yet
            events.look(
                partial(
                    _standing, feed.view, chain.now(), silent=chain.silent, has_tick=chain.has_tick
                )
            )
        await asyncio.sleep(_SHOW)


def _standing(view: View, now: int, *, silent: int, has_tick: bool) -> RunStatus:
    return status_of(view.run, view.model, view.members, now, silent=silent, has_tick=has_tick)


async def _data(
    events: Events, clock: Clock, read: Worker, open_data: Callable[[], Source]
) -> Source:
    """Open the run's data. Retry, after one warning, while its source does not answer."""
    warned = False
    while True:
        try:
            return await read(open_data)
        except SourceUnavailable as error:
            if not warned:
                events.emit(
                    event_types.Warning(
                        message=f"{error.message}; this member joins when the data is available"
                    )
                )
            warned = True
        await clock.sleep(_ASK_AGAIN)


async def ready_kernels(events: Events, compute: Worker) -> None:
    """Compile the kernels and compare them with PyTorch. Emit an event if PyTorch replaces them.

    If their results differ from PyTorch's, emit a warning: something is wrong with the machine.
    """
    if await compute(needs_compilation):
        events.emit(event_types.Compiling())
    why = await compute(unfit)
    events.emit(event_types.Kernels(missing=why))
    if why is not None and await compute(unavailable_reason) is None:
        events.emit(event_types.Warning(message=f"{why}: PyTorch replaces them and is slower"))
