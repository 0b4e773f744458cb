"""Where a run's model comes from: `[model.LLM.checkpoint]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from aftermath.config.tables import BareVariant, Choice, KeyLimits, Repository, Variant
from aftermath.rules.limits import REVISION_BYTES
from aftermath.rules.state import CheckpointKind

_OWN_STATE = (
    "the run itself decides when members load the model from peers. Write Hub, Local or Dummy: the "
    "checkpoint that the run starts from and falls back on"
)


class HubCheckpoint(Variant):
    """A Hugging Face repository. Without a revision, its default branch is used."""

    repo_id: Repository = Field(
        examples=["ada/my-model"], description="The repository, as OWNER/NAME."
    )
    revision: Annotated[str, KeyLimits(bytes=REVISION_BYTES)] = Field(
        default="", description="A commit, tag or branch of it. Pin a commit for important runs."
    )

    def to_chain(self) -> dict[str, Any]:
        return {"kind": int(CheckpointKind.HUB), "repo": self.repo_id, "revision": self.revision}


class LocalCheckpoint(BareVariant):
    """A directory that every member has under the same path."""

    path: Repository = Field(
        examples=["runs/mine/model"],
        description="The directory. A relative path starts at the member's working directory.",
    )

    def to_chain(self) -> dict[str, Any]:
        return {"kind": int(CheckpointKind.LOCAL), "repo": self.path, "revision": ""}


class DummyCheckpoint(Variant):
    """Seeded weights instead of stored ones; a directory or a Hub repository gives the model's
    shape.
    """

    repo_id: Repository = Field(
        default="",
        examples=["runs/mine/model"],
        description="A directory or a repository OWNER/NAME, whose config.json has the model's "
        "shape. Required.",
    )

    def to_chain(self) -> dict[str, Any]:
        return {"kind": int(CheckpointKind.DUMMY), "repo": self.repo_id, "revision": ""}


class CheckpointChoice(Choice):
    """The durable checkpoint that a run starts from."""

    NOT_HERE: ClassVar[Mapping[str, str]] = {
        "Gcs": "checkpoints in Google Cloud Storage are not supported; copy it to the Hub and "
        "write Hub with its repo_id, or to every member and write Local with its path",
        "P2P": _OWN_STATE,
        "P2PGcs": _OWN_STATE,
    }
    Hub: HubCheckpoint | None = Field(default=None, description="A Hugging Face repository.")
    Local: LocalCheckpoint | None = Field(
        default=None, description="A directory that every member has."
    )
    Dummy: DummyCheckpoint | None = Field(default=None, description="Weights made from a seed.")
