"""The training spec of a run: what is trained, on what data and how, as canonical JSON.

The coordinator program stores the bytes and checks their length and SHA-256 only. All other checks
are here: owners run them before they write a spec, and members when they read one.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ValidationError

from aftermath.base.bounded import Malformed, json_value
from aftermath.base.errors import AccountError, Unsuitable
from aftermath.base.extensions import extension_names
from aftermath.config import errors as config_errors
from aftermath.config import rules
from aftermath.config.data_sources import DataHash, DataLocationChoice
from aftermath.config.tables import Table
from aftermath.config.training import LearningRate, OptimizerChoice
from aftermath.rules.limits import SPEC_BYTES
from aftermath.rules.model import marked
from aftermath.rules.state import Architecture, DataType

DataTypeName = Literal["Pretraining", "Finetuning"]
ARCHITECTURES: tuple[str, ...] = (
    *(one.value for one in Architecture),
    *extension_names("aftermath.architectures"),
)
"""The names of the architectures. `model.architectures` has their classes."""
if TYPE_CHECKING:
    ArchitectureName = str
else:
    ArchitectureName = Literal[ARCHITECTURES]
_DATA_TYPES = {"Pretraining": DataType.PRETRAINING, "Finetuning": DataType.FINETUNING}
_SHOWN = 400
UNREADABLE_FIX = (
    "Use the client version that wrote it, or ask the run's owner to write another: "
    "aftermath-solana update-config"
)


class Spec(Table):
    """The keys of `[model.LLM]` that the program stores but does not use."""

    architecture: ArchitectureName
    data_type: DataTypeName
    data_location: DataLocationChoice
    data_hash: DataHash
    lr_schedule: LearningRate
    optimizer: OptimizerChoice

    def encode(self) -> bytes:
        """Return the canonical JSON: UTF-8, keys sorted, no spaces, defaults written out.

        Defaults are written out because a later version may have others and must train the run
        unchanged. A key whose default is None is left out, so later versions must keep that
        default.
        """
        return _canonical(self.model_dump(exclude_none=True))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the spec of these bytes. Raises Unsuitable, which names each bad kind or key."""
        try:
            document = json_value(data, SPEC_BYTES)
            if _canonical(document) != data:
                raise Unsuitable("the run's training spec is not canonical JSON", UNREADABLE_FIX)
            spec = cls.model_validate(document)
        except ValidationError as error:
            sentences = [mistake.sentence for mistake in config_errors.sentences(error, cls)]
            raise _refused(sentences) from None
        except (Malformed, ValueError) as error:
            message = f"the run's training spec is not JSON: {error}"
            raise Unsuitable(message[:_SHOWN], UNREADABLE_FIX) from None
        if broken := rules.broken_spec(spec.values()):
            raise _refused([mistake.sentence for mistake in broken])
        return spec

    def values(self) -> dict[str, Any]:
        """Return the spec as numbers and strings; reals are their bits, unused numbers are zero."""
        location = self.data_location.to_chain()
        return {
            "architecture": self.architecture,
            "data_type": int(_DATA_TYPES[self.data_type]),
            "data_location": location
            | {"secondary": marked(location["secondary"], self.data_hash)},
            "lr_schedule": self.lr_schedule.to_chain(),
            "optimizer": self.optimizer.to_chain(),
        }


def spec_hash(data: bytes) -> bytes:
    """Return the SHA-256 by which the program identifies a spec."""
    return hashlib.sha256(data).digest()


@lru_cache(maxsize=8)  # readers parse the same model again and again
def read_spec(data: bytes, expected_hash: bytes) -> Spec:
    """Return the spec that an account holds.

    Raises AccountError if the hash differs, and Unsuitable if this client does not know a kind or a
    key. An RPC node sends the hash too, so one node alone can cause either.
    """
    if spec_hash(data) != expected_hash:
        raise AccountError("the hash of the run's training spec differs from the one in the run")
    return Spec.decode(data)


def _canonical(document: Any) -> bytes:
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def _refused(sentences: list[str]) -> Unsuitable:
    listed = "; ".join(sentences)
    if len(listed) > _SHOWN:
        listed = listed[:_SHOWN] + "..."
    message = f"this client does not support the run's training spec: {listed}"
    return Unsuitable(message, UNREADABLE_FIX)
