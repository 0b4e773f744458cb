"""Read the schema and open the data that a member needs before it joins.

If this client cannot train the run, these functions raise an error before the member joins,
downloads or trains anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aftermath.base.allowed_locations import RunAccess, advice_to_member
from aftermath.base.errors import AftermathError, Unsuitable
from aftermath.config.chain_values import source_of
from aftermath.data.fingerprint import records_hash
from aftermath.data.source import Source, WrongTokens
from aftermath.model.architectures import is_of
from aftermath.model.json_documents import CheckpointError
from aftermath.model.outline import Outline, read_outline
from aftermath.optim.run_schema import agreed_schema
from aftermath.optim.schema import Schema
from aftermath.p2p.transport import escaped
from aftermath.rules.model import Checkpoint, DataLocation, Model
from aftermath.rules.run import steps_before
from aftermath.rules.state import CheckpointKind, DataType
from aftermath.train.admission import check_model
from aftermath.train.locations import name_of, open_source

log = logging.getLogger(__name__)
_CONFIG_CHANGED = "The model's config.json changed after the run was configured. Restore it, or run update-config again"


def schema_of(model: Model, run_id: str, *fallbacks: Checkpoint, access: RunAccess) -> Schema:
    """Return the run's schema, from a recorded checkpoint's config.json or from `fallbacks`.

    Raises what `outline_of` raises.
    """
    return outline_of(model, run_id, log.warning, *fallbacks, access=access)[1]


def outline_of(
    model: Model,
    run_id: str,
    warn: Callable[[str], None],
    *fallbacks: Checkpoint,
    access: RunAccess,
) -> tuple[Outline, Schema]:
    """Return outline and schema of the first checkpoint that matches the hash on chain.

    Try the recorded checkpoints, then `fallbacks`. A member may have recorded a false one, so
    `warn` gets a message for each that is skipped. If none matches, raise the error of the first:
    Unsuitable, CheckpointError, ModelConfigError or SchemaError.
    """
    check_model(model, run_id)
    errors: list[AftermathError] = []
    recorded = [recorded_one.checkpoint for recorded_one in model.recorded if recorded_one.exists]
    for checkpoint in dict.fromkeys([model.checkpoint, *recorded, *fallbacks]):
        try:
            outline = read_outline(checkpoint, access)
            schema = schema_from(outline.config, model, run_id, f"the checkpoint {checkpoint.repo}")
        except AftermathError as error:
            errors.append(error)
            continue
        except MemoryError:
            raise
        except Exception as error:  # a bad checkpoint must not end this member
            why = f"{type(error).__name__}: {escaped(str(error))}"
            fix = (
                "Ask the run's owner to record another checkpoint with aftermath-solana checkpoint"
            )
            errors.append(
                CheckpointError(f"the checkpoint {checkpoint.repo} cannot be read: {why}", fix)
            )
            continue
        for skipped in errors:
            warn(
                f"skipped a checkpoint of the run and read {checkpoint.repo} instead: {skipped.message}"
            )
        return outline, schema
    first = errors[0]
    if (
        isinstance(first, CheckpointError)
        and model.checkpoint.kind is CheckpointKind.LOCAL
        and not access.trusting
    ):
        saved = steps_before(model.checkpoint_step) > 0
        raise CheckpointError(
            first.message,
            advice_to_member("model", model.checkpoint.repo, saved_by_member=saved),
        ) from first
    raise first


def schema_from(config: Mapping[str, Any], model: Model, run_id: str, source: str) -> Schema:
    """Return the run's schema from a config.json. `source` names the file in errors.

    Raises Unsuitable if its architecture or its schema's hash is not the one on chain, and what
    `agreed_schema` raises.
    """
    if not is_of(
        config, model.architecture
    ):  # check before building anything from a file that a stranger may have written
        raise Unsuitable(
            f"{source} does not fit run {run_id}: its model_type "
            f"{escaped(str(config.get('model_type'))[:60])} belongs to "
            "another architecture",
            _CONFIG_CHANGED,
        )
    schema = agreed_schema(config, model.tiers, model.optimizer)
    if schema.hash() != model.schema_hash:
        raise Unsuitable(
            f"{source} does not fit run {run_id}: its schema is {schema.hash().hex()[:12]}, the run's is "
            f"{model.schema_hash.hex()[:12]}",
            _CONFIG_CHANGED,
        )
    return schema


def data_of(model: Model, schema: Schema, access: RunAccess) -> Source:
    """Open the run's data on this machine.

    Raises DataError if it is missing or damaged, or Unsuitable if its hash is not the one on chain.
    """
    finetuning = model.data_type == DataType.FINETUNING
    location = model.data_location
    table = source_of(location)
    if table.is_mixture and not location.files_hash and not access.trusting:
        raise Unsuitable(
            f"the run has no hash of the mixture document {name_of(location, access)}, so members could get "
            "different data",
            "Ask the run's owner to run aftermath-solana update-config on a machine that can read the data",
        )
    vocab_size = schema.state.config.vocab_size
    with _advice_for_tokens(location):
        source = open_source(
            location, model.max_seq_len, vocab_size, labels=finetuning, access=access
        )
        # Hash remote data only if the chain has a hash, because hashing downloads it.
        is_hashed = location.files_hash or not table.is_remote
        digest = records_hash(source.record()).hex() if is_hashed else ""
    if location.files_hash and digest != location.files_hash:
        raise Unsuitable(
            f"the data in {name_of(location, access)} is not this run's (hash {digest[:12]}, expected "
            f"{location.files_hash[:12]})",
            "Compare the files with another member's (aftermath-solana data inspect) and copy them again. If they were "
            "changed on purpose, ask the run's owner to run update-config with the new files",
        )
    return source


@contextmanager
def _advice_for_tokens(location: DataLocation) -> Iterator[None]:
    """Replace the fix for unfit tokens: it is for the owner, and a member cannot change the run."""
    try:
        yield
    except WrongTokens as error:
        if location.files_hash:
            raise WrongTokens(error.message, advice_to_member("data", location.primary)) from None
        fix = "No member can train this run. Ask its owner to correct the data or the config, and to pass the config "
        raise WrongTokens(
            error.message, f"{fix}to aftermath-solana update-config ({error.fix})"
        ) from None
