"""Test config changes of a trained run: trained steps are lost only if the owner asks for it."""

from __future__ import annotations

import re

import pytest
from solders.pubkey import Pubkey

from aftermath.chain.instructions import CoordinatorInstructions
from aftermath.chain.programs import coordinator_program
from aftermath.config.document import RunConfig, parse_as
from aftermath.optim.run_schema import agreed_schema
from aftermath.owner.change import CannotChange, Change, differences
from aftermath.owner.schema import Shape
from aftermath.rules.state import ModelSource
from aftermath.sim.setup import CONFIG, RULES
from programs.harness import World
from programs.scenario import Scenario

STEP = 3
HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}
FILE = RULES.replace("DATA", "data")


def _shape(config: RunConfig) -> Shape:
    return Shape(
        agreed_schema(CONFIG.to_hf(), config.llm.matformer.tiers, config.llm.optimizer.settings)
    )


def _paused(checkpoint: str) -> Scenario:
    """Return a run of this file, paused after three steps.

    If `checkpoint` is not empty, its members recorded it.
    """
    run = Scenario(World()).start(rounds_per_epoch=STEP)
    config = parse_as(FILE.replace("MODEL", "start"), "run.toml", RunConfig)
    run.owner("set_paused", True).ok()
    spec = config.llm.spec.encode()
    run.write_spec(spec).ok()
    run.update(model=config.to_chain()["model"], schema=_shape(config).to_chain()).ok()
    run.owner("set_paused", False).ok()
    for index in range(3):
        run.join(index, schema_hash=_shape(config).schema.hash()).ok()
    for seconds in (6, 31):
        run.world.advance(seconds)
        run.tick().ok()
    run.finish_rounds()
    run.owner("set_paused", True).ok()
    for index in range(3):
        run.attest(index, HASHES)
    if checkpoint:
        place = {"kind": 2, "repo": checkpoint, "revision": "", "hashes": list(HASHES.values())}
        run.by(0, "checkpoint", place).ok()
    else:
        run.world.advance(31)
        run.tick().ok()
    assert (run.run.halted, run.run.model_source, run.run.trained_steps) == (
        True,
        ModelSource.PEERS,
        STEP,
    )
    return run


def _change(run: Scenario, text: str, *, switch_to_hub: bool = False) -> int:
    """Return the number of instructions that a change to this file takes."""
    config = parse_as(text, "run.toml", RunConfig)
    change = Change({}, config, _shape(config), None, switch_to_hub, None)
    ix = CoordinatorInstructions(coordinator_program(), Pubkey.default())
    return len(change.instructions(ix, run.run, run.model))


def test_recorded_checkpoint_is_kept_unless_switching_to_hub() -> None:
    """With the flag, the run starts from the file's checkpoint.

    If the file names the recorded one, both are the same.
    """
    first = FILE.replace("MODEL", "start")
    config_text = FILE.replace("MODEL", "RUN-step3")
    for text, switch, after in (
        (first, False, "RUN-step3"),
        (config_text, False, "RUN-step3"),
        (first, True, "start"),
    ):
        run = _paused("RUN-step3")
        config = parse_as(
            text.replace("warmup_time = 30", "warmup_time = 40"), "run.toml", RunConfig
        )
        change = Change({}, config, _shape(config), None, switch, None)
        checkpoint = change.kept_checkpoint(run.model)
        assert (checkpoint.repo if checkpoint else "") == (
            "RUN-step3" if text == first and not switch else ""
        )
        ix = CoordinatorInstructions(coordinator_program(), run.authority.pubkey())
        run.world.send(*change.instructions(ix, run.run, run.model), signers=[run.authority]).ok()
        assert (run.run.config.warmup_time, run.model.checkpoint.repo) == (40, after)
        assert run.model.checkpoint_step == (0 if switch else STEP + 1)


def test_schema_change_forgetting_steps_is_refused() -> None:
    run = _paused("")
    other = FILE.replace("MODEL", "start").replace("compression_topk = 4", "compression_topk = 5")
    with pytest.raises(
        CannotChange, match="would start from the checkpoint of step 0 and lose 3 steps"
    ) as refused:
        _change(run, other)
    assert refused.value.fix.endswith("to start from step 0")
    same = _change(
        run, FILE.replace("MODEL", "start").replace("warmup_time = 30", "warmup_time = 40")
    )
    assert _change(run, other, switch_to_hub=True) == same + 2  # the flag, and another spec


def test_schema_change_after_checkpoint_is_accepted() -> None:
    run = _paused("RUN-step3")
    assert _change(
        run,
        FILE.replace("MODEL", "RUN-step3").replace("compression_topk = 4", "compression_topk = 5"),
    )


def test_schema_change_begins_from_checkpoint() -> None:
    """After a schema change the run starts from the checkpoint, as in the program.

    After other changes it does not.
    """
    for old, new, source in (
        ("compression_topk = 4", "compression_topk = 5", "checkpoint"),
        ("= 30", "= 40", "peers"),
    ):
        run = _paused("RUN-step3")
        config = parse_as(
            FILE.replace("MODEL", "RUN-step3").replace(old, new), "run.toml", RunConfig
        )
        change = Change({}, config, _shape(config), None, False, None)
        changes = {one.key: (one.old, one.new) for one in differences(change, run.run, run.model)}
        assert changes.get("run.model_source", ("", "peers"))[1] == source
        ix = CoordinatorInstructions(coordinator_program(), run.authority.pubkey())
        run.world.send(*change.instructions(ix, run.run, run.model), signers=[run.authority]).ok()
        assert run.run.model_source.name.lower() == source


def test_run_does_not_continue_after_its_last_step() -> None:
    """The next command would finish it, and nobody could change it again."""
    run = _paused("RUN-step3")
    ix = CoordinatorInstructions(coordinator_program(), run.authority.pubkey())
    last = run.run.config.total_steps
    longer = parse_as(
        re.sub(r"total_steps = \d+", "total_steps = 400", FILE.replace("MODEL", "RUN-step3")),
        "",
        RunConfig,
    )
    assert Change({}, None, None, last, False, None).instructions(ix, run.run, run.model)
    assert Change({}, longer, _shape(longer), 400, False, None).instructions(ix, run.run, run.model)
    for config, step, end in ((None, last + 1, last), (longer, 401, 400)):
        with pytest.raises(
            CannotChange, match=f"--restart-from-step {step} is beyond the run's last step, {end}"
        ):
            Change({}, config, config and _shape(config), step, False, None).instructions(
                ix, run.run, run.model
            )
