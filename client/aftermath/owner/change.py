"""Build the instructions that change a run's configuration, and list the changed keys.

The list has each key with its old and its new value. Both sides have the form of `json-dump-run`,
whose paths are the keys, so no key is forgotten.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from solders.instruction import Instruction

from aftermath.base.errors import AftermathError
from aftermath.base.text import counted
from aftermath.chain.dump import plain
from aftermath.chain.instructions import CoordinatorInstructions
from aftermath.config.chain_values import checkpoint_of, rules_of, trained_by
from aftermath.config.document import RunConfig
from aftermath.config.spec import spec_hash
from aftermath.events.progress import state_phrase
from aftermath.rules.assignment import batch_size
from aftermath.rules.model import Checkpoint, Metadata, Model
from aftermath.rules.run import Config, Run, steps_before
from aftermath.rules.state import ModelSource

if TYPE_CHECKING:
    from aftermath.owner.schema import Shape


Table = TypeVar("Table", bound=BaseModel)


class CannotChange(AftermathError):
    """The run cannot be changed like this, or not now."""


class NotHalted(CannotChange):
    """The run is not halted, so it cannot be changed."""

    code = "not-halted"


@dataclass(frozen=True)
class Change:
    """A change that the owner requested. Parts that are None, empty or false keep their values.

    `shape` belongs to `config`: both or neither are given.
    """

    metadata: Mapping[str, Any]
    config: RunConfig | None
    shape: Shape | None
    restart_from_step: int | None
    switch_to_hub: bool
    client_version: str | None

    def instructions(
        self, ix: CoordinatorInstructions, run: Run, model: Model
    ) -> list[Instruction]:
        """Return one instruction per part, in the order that the program's checks require.

        They can go into several transactions. Raises CannotChange if the run cannot be changed now,
        or would lose trained steps.
        """
        self._refuse_unless_halted(run)
        if self.config and self.shape and not self.switch_to_hub:
            _refuse_lost_steps(self.shape, run, model)
        updates: list[dict[str, Any]] = []
        spec_instructions: list[Instruction] = []
        if self.config and self.shape:
            on_chain = self.config.to_chain()
            if checkpoint := self.kept_checkpoint(model):
                on_chain["model"]["checkpoint"] = {
                    "kind": int(checkpoint.kind),
                    "repo": checkpoint.repo,
                    "revision": checkpoint.revision,
                }
            updates += [
                {"config": on_chain["config"]},
                {"model": on_chain["model"]},
                {"schema": self.shape.to_chain()},
            ]
            spec = self.config.llm.spec.encode()
            if spec_hash(spec) != model.spec_hash:
                spec_instructions = ix.write_spec(run.run_id, spec)
        if metadata := self.metadata_after(model):
            updates.append({"metadata": metadata})
        if self.restart_from_step:
            updates.append({"progress": self.progress(run)})
        if self.switch_to_hub:
            updates.append({"use_durable": True})
        steps = [*spec_instructions, *(ix.update(run.run_id, **update) for update in updates)]
        if self.client_version is not None:
            steps.append(ix.update_client_version(run.run_id, self.client_version))
        return steps

    def kept_checkpoint(self, model: Model) -> Checkpoint | None:
        """Return the recorded checkpoint that the run keeps instead of the file's, or None.

        The file names the checkpoint that a run starts from. Trained steps are in the checkpoints
        that members recorded later.
        """
        if self.config is None or self.switch_to_hub or not steps_before(model.checkpoint_step):
            return None
        return (
            model.checkpoint
            if checkpoint_of(self.config.llm.checkpoint) != model.checkpoint
            else None
        )

    def _refuse_unless_halted(self, run: Run) -> None:
        if not run.halted:
            raise NotHalted(
                f"run {run.run_id} is {state_phrase(run.state)}, and only a new, paused or finished run can be changed",
                "Pause it, and try again once it is paused: "
                f"aftermath-solana set-paused --run-id {shlex.quote(run.run_id)} pause",
            )

    def metadata_after(self, model: Model) -> dict[str, Any] | None:
        """Return the run's metadata after the change, or None if the change does not touch it.

        Given values come first, then the new model's, then those on chain.
        """
        if not self.metadata and self.shape is None:
            return None
        current = model.metadata
        figures = {"num_parameters": current.num_parameters, "vocab_size": current.vocab_size}
        if self.shape:
            figures = {
                "num_parameters": self.shape.num_parameters,
                "vocab_size": self.shape.vocab_size,
            }
        return (
            {"name": current.name, "description": current.description}
            | figures
            | dict(self.metadata)
        )

    def progress(self, run: Run) -> dict[str, int]:
        """Return the progress at the start of `restart_from_step`, after earlier steps' data."""
        assert self.restart_from_step is not None
        rules = Config(**self.config.to_chain()["config"]) if self.config else run.config
        if 0 < rules.total_steps < self.restart_from_step:
            raise CannotChange(
                f"--restart-from-step {self.restart_from_step} is beyond the run's last step, {rules.total_steps}",
                f"Pass a step from 1 to {rules.total_steps}, or a config with more total_steps",
            )
        data_index = 0
        for step in range(1, self.restart_from_step):
            if data_index * rules.max_seq_len >= rules.global_batch_size_warmup_tokens:
                data_index += (self.restart_from_step - step) * rules.global_batch_size_end
                break
            data_index += batch_size(rules, data_index)
        if self.restart_from_step <= run.step:
            # earlier batches may have been smaller than the current one, so do not skip sequences
            data_index = min(data_index, run.data_index)
        return {"epoch": run.epoch, "step": self.restart_from_step, "data_index": data_index}


def _refuse_lost_steps(shape: Shape, run: Run, model: Model) -> None:
    """Raise CannotChange if the file changes the model's schema and no checkpoint has all steps."""
    saved_steps = steps_before(model.checkpoint_step)
    trained_steps = run.trained_steps
    would_use_peers = (
        run.model_source is ModelSource.PEERS and shape.schema.hash() != model.schema_hash
    )
    if would_use_peers and saved_steps < trained_steps:
        lost = counted(trained_steps - saved_steps, "step")
        raise CannotChange(
            "the new model, tiers or optimizer do not fit the members' state: the next epoch would "
            f"start from the checkpoint of step {saved_steps} and lose {lost}",
            "Resume without this change until a tier-0 member with --checkpoint-dir or --hub-repo "
            f"finishes an epoch, record a checkpoint of step {trained_steps} (aftermath-solana "
            f"checkpoint), or add --switch-to-hub to start from step {saved_steps}",
        )


@dataclass(frozen=True)
class Difference:
    """A key, with its values as JSON types; None where it does not exist."""

    key: str
    old: Any
    new: Any


def differences(change: Change, run: Run, model: Model) -> list[Difference]:
    """Return the keys that the change modifies.

    Consequences, such as the missing hashes of a new checkpoint, are not listed.
    """
    old = dict(_flat({"run": plain(run), "model": plain(model)}))
    new = dict(
        _flat({"run": plain(_run(change, run, model)), "model": plain(_model(change, model))})
    )
    return [
        Difference(key, old.get(key), new.get(key))
        for key in old | new
        if old.get(key) != new.get(key)
    ]


def default_keys(change: Change, run: Run, model: Model) -> frozenset[str] | None:
    """Return the keys that a run's first config leaves at their defaults.

    None if the change does not set a first config.
    """
    if change.config is None or model.configured:
        return None
    names: set[str] = set()
    config = _with_defaults(change.config, names)
    all_default = replace(change, config=config)
    values, defaults = (
        dict(_flat({"run": plain(_run(one, run, model)), "model": plain(_model(one, model))}))
        for one in (change, all_default)
    )
    defaults["model.tiers"] = config.llm.matformer.tiers  # `_model` takes tiers from the shape
    return frozenset(
        key
        for key, value in values.items()
        if key.split(".")[-1] in names and defaults.get(key) == value
    )


def _with_defaults(table: Table, names: set[str]) -> Table:
    """Return a table with its optional keys left out, and add their names to `names`."""
    defaults: dict[str, Any] = {}
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if isinstance(value, BaseModel):
            defaults[name] = _with_defaults(value, names)
        elif not field.is_required():
            names.add(name)
            defaults[name] = field.get_default(call_default_factory=True)
    return table.model_copy(update=defaults)


def _run(change: Change, run: Run, model: Model) -> Run:
    """Return the run after the change."""
    if change.config is not None:
        run = replace(run, config=rules_of(change.config))
    if change.restart_from_step is not None:
        progress = change.progress(run)
        run = replace(
            run,
            epoch=progress["epoch"],
            step=progress["step"],
            data_index=progress["data_index"],
            backlog=0,
        )
    reshaped = change.shape is not None and change.shape.schema.hash() != model.schema_hash
    return (
        replace(run, model_source=ModelSource.CHECKPOINT)
        if change.switch_to_hub or reshaped
        else run
    )


def _model(change: Change, model: Model) -> Model:
    """Return the model after the change."""

    if change.config is not None:
        llm = change.config.llm
        model = replace(
            model,
            **trained_by(llm.spec),
            spec_error="",
            max_seq_len=llm.max_seq_len,
            cold_start_warmup_steps=llm.cold_start_warmup_steps,
            checkpoint=change.kept_checkpoint(model) or checkpoint_of(llm.checkpoint),
            tiers=llm.matformer.tiers,
        )
    if change.config is not None and change.shape is not None:
        widths = tuple(change.shape.schema.state.widths)
        model = replace(
            model, schema_hash=change.shape.schema.hash(), tier_widths=widths, tiers=len(widths)
        )
    if metadata := change.metadata_after(model):
        model = replace(model, metadata=Metadata(**metadata))
    return (
        model
        if change.client_version is None
        else replace(model, client_version=change.client_version)
    )


def _flat(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested tables."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
