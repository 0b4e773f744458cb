"""The outline of a model: its `config.json` and the files of its tokenizer.

Before it has weights, a member needs nothing else of a model. Any member can serve it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aftermath.base.allowed_locations import TRUSTING, RunAccess
from aftermath.model.json_documents import hf_config
from aftermath.model.run_checkpoint import outline_directory
from aftermath.model.save_checkpoint import read_companions
from aftermath.model.text import tokenizer_of
from aftermath.model.tokenizer import Tokenizer
from aftermath.model.tokenizer_files import TOKENIZER_FILE
from aftermath.rules.model import Checkpoint


@dataclass(frozen=True)
class Outline:
    """The config and tokenizer of a checkpoint, without its weights."""

    config: Mapping[str, Any]
    """The document of its `config.json`."""
    companions: Mapping[str, bytes] = field(default_factory=dict)
    """Bytes of the tokenizer's and generation's files, by name."""
    place: str = "members"
    """The source as shown in messages: a directory, or `members`."""

    def config_json(self) -> bytes:
        """Return the config as the bytes of a file."""
        return json.dumps(self.config, indent=2).encode()

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer. Raises CheckpointError if it is missing or unreadable."""
        where = f"{self.place}/{TOKENIZER_FILE}"
        return tokenizer_of(self.companions.get(TOKENIZER_FILE), where, self.companions)


def read_outline(checkpoint: Checkpoint, access: RunAccess = TRUSTING) -> Outline:
    """Return the outline of a checkpoint, without fetching weights.

    Raises CheckpointError, Unsuitable.
    """
    directory = outline_directory(checkpoint, access)
    return Outline(hf_config(directory / "config.json"), read_companions(directory), str(directory))
