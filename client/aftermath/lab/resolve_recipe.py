"""Make a recipe from settings, a config file and defaults.

An optimizer other than the config's needs its own learning rate, because rates of different
optimizers are not comparable. Clipping always comes from the config. The model is cut into the
config's number of levels, or without a config into as many as the smallest tier needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from aftermath.base.errors import Unsuitable, UsageError
from aftermath.base.text import counted, is_repository
from aftermath.config.chain_values import checkpoint_of, location_of, rules_of, schedule_of
from aftermath.config.data_sources import DataLocationChoice, LocalData
from aftermath.config.document import RunConfig, load_config
from aftermath.config.training import MOST_RATE
from aftermath.lab import rates
from aftermath.lab.recipe import Batch, Recipe
from aftermath.lab.settings import SEQ_LEN, STEPS, TOTAL_BATCH, LabSettings, options_of
from aftermath.model.json_documents import CheckpointError
from aftermath.model.run_checkpoint import local_directory, resolve
from aftermath.rules.assignment import cut
from aftermath.rules.limits import MAX_LEVELS
from aftermath.rules.model import Checkpoint, LrSchedule
from aftermath.rules.optimizer import CLIP, Optimizer
from aftermath.rules.optimizers import optimizers, sentences
from aftermath.rules.schedules import highest_rate, learning_rate
from aftermath.rules.state import CheckpointKind


def recipe_of(settings: LabSettings) -> Recipe:
    """Return the recipe. Raises UsageError, ConfigError, Unsuitable or CheckpointError."""
    config = load_config(settings.config_path) if settings.config_path is not None else None
    steps = settings.steps or (config.config.total_steps if config else STEPS)
    optimizer_settings = _optimizer(settings, config)
    optimizer = optimizer_settings.kind()
    tiers = _tiers(settings, optimizer_settings)
    levels = config.llm.matformer.tiers if config else max(tiers) + 1
    if max(tiers) >= levels:
        raise UsageError(
            f"--tiers {settings.tiers}: the config has only tiers 0 to {levels - 1}",
            "Name only these tiers, or raise tiers in [model.LLM.matformer]",
        )
    batch = _batch(settings, config)
    if settings.reject and not optimizer_settings.EXCHANGED:
        raise UsageError(
            f"--reject does not work with {optimizer}, whose members exchange no results",
            "Omit --reject",
        )
    if settings.overlap is not None and not optimizer_settings.EXCHANGED:
        raise UsageError(
            f"--overlap does not work with {optimizer}, whose members exchange no results",
            "Omit --overlap",
        )
    if settings.inner_state is not None and not optimizer_settings.inner_steps:
        raise UsageError(
            f"--inner-state does not work with {optimizer}, which makes no inner steps",
            "Omit --inner-state, or pass --optimizer sparseloco",
        )
    if settings.eval_every and settings.held_out_path is None:
        raise UsageError(
            "--eval-every needs held-out text",
            "Pass --held-out-path DIR; aftermath-solana data tokenize --held-out DIR creates it",
        )
    schedule = _schedule(settings, config, optimizer_settings.usual_rate, steps)
    decay = optimizer_settings.weight_decay
    if optimizer_settings.EXCHANGED and highest_rate(schedule) * decay > 1:
        raise UsageError(
            f"a learning rate of {highest_rate(schedule):g} with the config's weight decay of {decay:g} "
            "would flip the sign of every weight",
            f"Pass --lr {1 / decay:g} or less",
        )
    return Recipe(
        model=_model(settings, config),
        **_data(settings, config),
        seq_len=settings.seq_len or (config.llm.max_seq_len if config else SEQ_LEN),
        batch=batch,
        micro_batch=settings.micro_batch,
        steps=steps,
        schedule=schedule,
        cold_start_steps=config.llm.cold_start_warmup_steps if config else 0,
        optimizer=optimizer,
        settings=optimizer_settings,
        tiers=tiers,
        levels=levels,
        shares=_shares(settings, len(tiers), batch),
        overlap=_overlap(settings, config, optimizer_settings),
        reject=settings.reject,
        seed=settings.seed or 0,
        held_out=str(settings.held_out_path.expanduser().absolute())
        if settings.held_out_path
        else "",
        eval_every=settings.eval_every,
        eval_sequences=settings.eval_sequences,
        # None for `keep`, so that trainings that were saved before the option existed can resume
        inner_state="reset" if settings.inner_state == "reset" else None,
    )


def _overlap(settings: LabSettings, config: RunConfig | None, optimizer_settings: Optimizer) -> int:
    """Return --overlap, else that of a config with this optimizer, else the default."""
    if not optimizer_settings.EXCHANGED:
        return 0
    if settings.overlap is not None:
        return int(settings.overlap)
    same_optimizer = (
        config is not None and config.llm.optimizer.settings.TABLE == optimizer_settings.TABLE
    )
    return (
        config.config.overlap
        if config is not None and same_optimizer
        else optimizer_settings.OVERLAP
    )


def _model(settings: LabSettings, config: RunConfig | None) -> str:
    if settings.model is not None:
        name = str(settings.model)
        if is_repository(name) and not settings.model.expanduser().exists():
            return str(_from_hub(name))
        return str(settings.model.expanduser().absolute())
    if config is None:
        raise UsageError(
            "--model is missing", "Pass --model DIR or OWNER/NAME, or --config-path FILE of a run"
        )
    checkpoint = checkpoint_of(config.llm.checkpoint)
    if checkpoint.kind is CheckpointKind.HUB:
        return str(resolve(checkpoint))
    if checkpoint.kind is not CheckpointKind.LOCAL:
        raise Unsuitable(
            f"{settings.config_path} does not name a checkpoint on this machine",
            "Pass --model DIR; aftermath-solana model init creates one",
        )
    return str(local_directory(checkpoint))


def _from_hub(name: str) -> Path:
    """Return a directory with a repository's files. Raises CheckpointError."""
    try:
        return resolve(Checkpoint(CheckpointKind.HUB, name, ""))
    except CheckpointError as error:
        raise CheckpointError(
            f"there is no directory {name}, and the Hub has no usable one: {error.message}",
            error.fix,
        ) from error


def _data(settings: LabSettings, config: RunConfig | None) -> dict[str, Any]:
    """Return the recipe's data fields: location, token size and order."""
    chosen = config.llm.data_location if config else None
    if chosen is not None and settings.data_path is None:
        _check_local(chosen)
        if not isinstance(chosen.source, LocalData):
            return {
                "data": "",
                "token_bytes": int(settings.token_bytes or 2),
                "shuffle_seed": "",
                "source": chosen.model_dump_json(exclude_none=True),
            }
    location = location_of(chosen) if chosen else None
    if location is None and settings.data_path is None:
        raise UsageError(
            "--data-path is missing", "Pass --data-path DIR, or --config-path FILE of a run"
        )
    place = (
        Path(settings.data_path or (location.primary if location else "")).expanduser().absolute()
    )
    if settings.held_out_path is not None and _within(settings.held_out_path.expanduser(), place):
        raise UsageError(
            f"--held-out-path {settings.held_out_path} overlaps with the training data",
            "Name token files of other documents; aftermath-solana data tokenize --held-out DIR creates them",
        )
    if location is not None and settings.seed is None:
        seed = location.shuffle_seed.hex() if location.shuffle else ""
    else:
        seed = hashlib.sha256(f"order {settings.seed or 0}".encode()).hexdigest()
    token_bytes = int(settings.token_bytes or (location.token_bytes if location else 2))
    return {"data": str(place), "token_bytes": token_bytes, "shuffle_seed": seed}


def _check_local(location: DataLocationChoice) -> None:
    """Raise Unsuitable for data of other machines, and for labels."""
    if location.source.is_remote or location.source.has_labels:
        name = DataLocationChoice.name_of(location.source)
        raise Unsuitable(
            f"the run's data location is {name}, but train-local only reads token files of this machine",
            "Pass --data-path DIR, a directory of token files",
        )


def _within(one: Path, other: Path) -> bool:
    """Return whether the paths are equal, or one is directly in the other."""
    one, other = one.resolve(), other.resolve()
    return one == other or one.parent == other or other.parent == one


def _optimizer(settings: LabSettings, config: RunConfig | None) -> Optimizer:
    """Return the optimizer of --optimizer with its defaults, else that of the config."""
    config_settings = config.llm.optimizer.settings if config else None
    name = settings.optimizer or (config_settings.kind() if config_settings else "distro")
    optimizer = optimizers()[name]
    if config_settings is None or config is None:
        return _with_options(settings, optimizer, optimizer.defaults())
    if type(config_settings) is optimizer:
        values = config.llm.optimizer.chosen.model_dump()
        optimizer_settings = _with_options(settings, optimizer, values)
        if settings.lr is None:
            _check_rate(settings, config_settings)
        return optimizer_settings
    if settings.lr is None:
        raise UsageError(
            f"--optimizer {name}: the learning rate in {settings.config_path} is for {config_settings.kind()}",
            f"Pass --lr as well, for example --lr {optimizer().usual_rate:g}",
        )
    return _with_options(
        settings, optimizer, optimizer.defaults() | {CLIP.name: config_settings.clip or 0.0}
    )


def _with_options(
    settings: LabSettings, optimizer: type[Optimizer], values: Mapping[str, Any]
) -> Optimizer:
    """Return the optimizer with these key values, changed by the user's options.

    Raises UsageError for an option of another optimizer, and for a value that no run accepts.
    """
    known = options_of(optimizer)
    changed = dict(values)
    flags: dict[str, str] = {}
    for name, value in settings.options.items():
        flag = "--" + name.replace("_", "-")
        if name not in known:
            owners = [one.kind() for one in optimizers().values() if name in options_of(one)]
            raise UsageError(
                f"{flag} is an option of {' and '.join(owners)}, not of {optimizer.kind()}",
                f"Omit {flag}",
            )
        setting = known[name]
        changed[setting.key.name] = setting.kind(value) if setting.kind is int else value
        flags[setting.key.name] = flag
    for rule, key, value in optimizer.broken(changed):
        flag = flags.get(key, key)
        examples = {one.key.name: one.key.example or one.default for one in known.values()}
        raise UsageError(
            f"{flag} {value}: {sentences()[rule]}", f"For example {flag} {examples[key]}"
        )
    return optimizer.of(changed)


def _check_rate(settings: LabSettings, optimizer: Optimizer) -> None:
    """Raise UsageError for an option that makes the config's learning rate unsuitable."""
    for name, setting in options_of(type(optimizer)).items():
        if setting.choices and name in settings.options:
            changed = replace(optimizer, **{setting.name: settings.options[name]})
            if changed.usual_rate != optimizer.usual_rate:
                flag = f"--{name.replace('_', '-')} {settings.options[name]}"
                value = getattr(optimizer, setting.name)
                raise UsageError(
                    f"{flag}: the learning rate in {settings.config_path} is for {value}",
                    f"Pass --lr as well, for example --lr {changed.usual_rate:g}",
                )


def _schedule(
    settings: LabSettings, config: RunConfig | None, usual_rate: float, steps: int
) -> LrSchedule:
    if settings.lr is not None and not 0 < settings.lr <= MOST_RATE:
        raise UsageError(
            f"--lr {settings.lr} must be above 0 and at most {MOST_RATE:g}",
            "Pass for example --lr 1e-3",
        )
    config_schedule = schedule_of(config.llm.lr_schedule) if config else None
    rate = settings.lr or (config_schedule.base_lr if config_schedule else usual_rate)
    warmup = (
        settings.warmup_steps
        if settings.warmup_steps is not None
        else config_schedule.warmup_steps
        if config_schedule
        else steps // 20
    )
    if warmup >= steps:
        raise UsageError(
            f"the warm-up of {warmup} steps must be shorter than the training ({steps} steps)",
            "Lower --warmup-steps or raise --steps",
        )
    if config_schedule is not None and settings.lr_schedule is None:
        schedule = rates.scaled(replace(config_schedule, warmup_steps=warmup), rate)
        changed = settings.steps is not None or settings.warmup_steps is not None
        if changed and not any(learning_rate(schedule, step) for step in (steps - 1, steps)):
            raise UsageError(
                f"the learning rate of {settings.config_path} falls to 0 before the last step ({steps})",
                "Pass --lr-schedule as well: it spans all steps",
            )
        return schedule
    if settings.lr_schedule == "constant":
        return rates.constant(rate, warmup)
    if settings.lr_schedule == "cosine":
        return rates.cosine(rate, warmup, steps, rate / 10)
    return rates.stable(rate, warmup, steps)


def _batch(settings: LabSettings, config: RunConfig | None) -> Batch:
    if settings.total_batch is not None or config is None:
        size = settings.total_batch or TOTAL_BATCH
        return Batch(size, size)
    rules = rules_of(config)
    return Batch(
        rules.global_batch_size_start,
        rules.global_batch_size_end,
        rules.global_batch_size_warmup_tokens,
    )


def _tiers(settings: LabSettings, optimizer_settings: Optimizer) -> tuple[int, ...]:
    tiers = (
        _numbers("--tiers", settings.tiers, 0, MAX_LEVELS - 1)
        if settings.tiers is not None
        else (0,)
    )
    members = settings.members or len(tiers)
    if members < len(tiers):
        raise UsageError(
            f"--tiers {settings.tiers} names {len(tiers)} tiers for {counted(members, 'member')}",
            "Name at most one tier per member, or raise --members",
        )
    if members > 1 and not optimizer_settings.EXCHANGED:
        raise UsageError(
            f"--members {members} does not work with {optimizer_settings.kind()}, whose members exchange no results",
            "Omit --members, and pass the batch of all members as --total-batch",
        )
    return tuple(tiers[member % len(tiers)] for member in range(members))


def _shares(settings: LabSettings, members: int, batch: Batch) -> tuple[int, ...]:
    """Return each member's part of the batch. Raises UsageError if a member gets no sequence."""
    least = min(batch.start, batch.end)
    if settings.shares is None:
        if any(not share.len for share in cut(least, [1] * members)):
            raise UsageError(
                f"a batch of {counted(least, 'sequence')} is too small for {members} members",
                "Raise --total-batch, or lower --members",
            )
        return (1,) * members
    shares = _numbers("--shares", settings.shares, 1, 65535)
    if len(shares) != members:
        raise UsageError(
            f"--shares {settings.shares} names {counted(len(shares), 'share')} for {counted(members, 'member')}",
            "Name one share per member",
        )
    if batch.start != batch.end or sum(shares) != batch.end:
        sizes = f"{batch.end}" if batch.start == batch.end else f"{least} to {batch.end}"
        raise UsageError(
            f"--shares {settings.shares} adds up to {sum(shares)} sequences, but a step has {sizes}",
            f"Change the shares, or pass --total-batch {sum(shares)}",
        )
    return shares


def _numbers(option: str, text: str, least: int, most: int) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    numbers = tuple(
        int(word) if word.isascii() and word.isdecimal() and len(word) < 9 else -1 for word in words
    )
    if not all(least <= number <= most for number in numbers):
        raise UsageError(
            f"{option} {text!r} must be whole numbers from {least} to {most}, separated by commas",
            f"For example {option} {least},{least + 1}",
        )
    return numbers
