"""Test the search for the model's outline: the first usable location wins, and bad ones cause
warnings.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aftermath.base.allowed_locations import TRUSTING, RunAccess
from aftermath.base.errors import AftermathError, Unsuitable
from aftermath.base.outputs import write_mark
from aftermath.config.document import RunConfig, parse_as
from aftermath.coordinator.ports import View
from aftermath.member.warmup import why_no_model
from aftermath.model.json_documents import CheckpointError
from aftermath.model.outline import Outline
from aftermath.model.saved_checkpoints import maker_name
from aftermath.optim.run_schema import agreed_schema
from aftermath.rules.model import Checkpoint, Model, Recorded
from aftermath.rules.state import CheckpointKind, ModelSource, RunState
from aftermath.sim.setup import CONFIG, RULES
from aftermath.train import requirements
from aftermath.train.assembly import own_newest
from aftermath.train.newcomer import may_ask
from rules import builders


def place(name: str) -> Checkpoint:
    return Checkpoint(CheckpointKind.LOCAL, name, "")


def recorded(*names: str) -> Model:
    """Return a model whose checkpoint is at the first of these locations. The others were recorded
    before.
    """
    optimizer = parse_as(RULES, "tiny", RunConfig).llm.optimizer.settings
    digest = agreed_schema(CONFIG.to_hf(), 3, optimizer).hash()
    earlier = tuple(Recorded(place(name), (bytes(32),) * 3, 0, 1) for name in names[1:])
    return builders.model(
        optimizer=optimizer, schema_hash=digest, checkpoint=place(names[0]), earlier=earlier
    )


@pytest.fixture
def troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Return the error that reading a location named `bad` raises."""
    read = requirements.read_outline
    raised = list[BaseException]()

    def fragile(of: Checkpoint, access: RunAccess) -> Outline:
        if of.repo == "bad":
            raise raised[-1]
        return read(of, access)

    (tmp_path / "config.json").write_bytes(Outline(CONFIG.to_hf()).config_json())
    monkeypatch.setattr(requirements, "read_outline", fragile)
    monkeypatch.chdir(tmp_path)
    return raised


def test_unexpected_outline_error_skips_only_that_place(troubled: list[BaseException]) -> None:
    troubled.append(RecursionError("nobody has \x1b[31mthought of it"))
    messages: list[str] = []
    outline, _ = requirements.outline_of(
        recorded("bad", "."), "run", messages.append, access=TRUSTING
    )
    assert outline.config == CONFIG.to_hf()
    assert len(messages) == 1
    assert "RecursionError" in messages[0]
    assert messages[0].isprintable()
    with pytest.raises(AftermathError, match="RecursionError"):
        requirements.outline_of(recorded("bad"), "run", messages.append, access=TRUSTING)


@pytest.mark.parametrize("ends", [MemoryError(), KeyboardInterrupt()], ids=["memory", "Ctrl-C"])
def test_outline_search_ends_on_unrelated_error(
    troubled: list[BaseException], ends: BaseException
) -> None:
    troubled.append(ends)
    with pytest.raises(type(ends)):
        requirements.outline_of(recorded("bad", "."), "run", lambda _: None, access=TRUSTING)


@pytest.mark.parametrize(
    "document", [{"model_type": "olmo2", "head_dim": 10**12}, {"model_type": "nanogpt"}]
)
def test_outline_of_foreign_architecture_is_refused(
    document: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes(Outline(document).config_json())
    with pytest.raises(Unsuitable, match="belongs to another architecture"):
        requirements.outline_of(recorded(str(tmp_path)), "run", lambda _: None, access=TRUSTING)


def test_member_without_model_gets_fix_for_members(tmp_path: Path) -> None:
    access = RunAccess(on_local_network=True)
    missing = str(tmp_path / "model")
    with pytest.raises(AftermathError) as raised:
        requirements.outline_of(recorded(missing), "run", lambda _: None, access=access)
    assert raised.value.fix is not None
    assert "from its owner and pass --model-path DIR" in raised.value.fix
    assert "model init" not in raised.value.fix
    with pytest.raises(AftermathError) as raised:
        requirements.outline_of(recorded(missing), "run", lambda _: None, access=TRUSTING)
    assert "model init" in str(raised.value.fix), "an owner can make one"


def test_own_checkpoint_gives_outline_after_false_names(tmp_path: Path) -> None:
    """The member opens no path that the run names, only what it wrote itself for this run."""
    run = builders.run(RunState.WAITING_FOR_MEMBERS)
    messages = list[str]()
    for step in (3, 12):
        (tmp_path / f"test-step{step}").mkdir()
        write_mark(tmp_path / f"test-step{step}", maker_name(run.identity))
    (tmp_path / "test-step12" / "config.json").write_bytes(Outline(CONFIG.to_hf()).config_json())
    false = replace(recorded("x"), checkpoint=Checkpoint(CheckpointKind.HUB, "/etc", ""))
    access = RunAccess(own_maker=maker_name(run.identity))
    outline, _ = requirements.outline_of(
        false, "test", messages.append, *own_newest(tmp_path, run), access=access
    )
    assert outline.config == CONFIG.to_hf()
    assert "'/etc' is not a Hub repository" in messages[0]
    assert own_newest(None, run) == own_newest(tmp_path / "none", run) == []


@pytest.mark.parametrize(
    ("state", "source", "asks"),
    [
        (RunState.WAITING_FOR_MEMBERS, ModelSource.CHECKPOINT, False),
        (RunState.ROUND_TRAIN, ModelSource.CHECKPOINT, True),
        (RunState.WAITING_FOR_MEMBERS, ModelSource.PEERS, True),
        (RunState.PAUSED, ModelSource.PEERS, False),
    ],
)
def test_newcomer_asks_only_members_that_will_have_model(
    state: RunState, source: ModelSource, asks: bool
) -> None:
    run = builders.run(state, model_source=source)
    members = builders.members({0: builders.seat(0, p2p=b"p" * 32)})
    assert may_ask(View(run, members, recorded(".")), b"me") is asks


@pytest.mark.parametrize("step", [0, 40])
def test_missing_checkpoint_that_was_moved_is_named(tmp_path: Path, step: int) -> None:
    """Step 0 is the owner's model, which no member saved."""
    model = recorded(str(tmp_path / "old" / "test-step40"))
    model = replace(model, checkpoint_step=step + 1)
    with pytest.raises(CheckpointError, match="there is no checkpoint at") as caught:
        requirements.outline_of(model, "test", pytest.fail, access=RunAccess(on_local_network=True))
    for fix in (caught.value.fix, why_no_model(caught.value, model)):
        assert ("you moved it" in fix) is (step > 0)
        assert ("--checkpoint-dir DIR" in fix) is (step > 0)
        assert "--model-path DIR" in fix
