"""One member's result of one round as a self-describing safetensors file.

The tensor `level.N` is the payload of level N. The metadata has the member, the round, the learning
rate and the schema. Equal results give equal files. A reader does not trust the file. It rebuilds
the schema from the schema's inputs and derives all sizes from that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from aftermath.base.bounded import U32_MAX
from aftermath.base.errors import AftermathError
from aftermath.base.safetensors_header import header
from aftermath.optim.codec import decode_level
from aftermath.optim.level_votes import Votes
from aftermath.optim.schema import MAX_JSON_BYTES, Schema
from aftermath.rules.limits import RUN_ID_BYTES

FORMAT_VERSION = "2"
# The header contains the schema as text, with escaped quotes.
MAX_HEADER_BYTES = 2 * MAX_JSON_BYTES + (1 << 20)
MAX_PAYLOAD_BYTES = 256 << 20  # over all levels; decoding needs about 64 times as much memory
_LARGEST_RATE = 1e6
_AGAIN = "Copy it again from the directory that a member wrote it to"


class BadGradientFile(AftermathError):
    """A file is not a result that `train --write-gradients-dir` wrote."""

    code = "gradient-file"


@dataclass(frozen=True)
class ResultOrigin:
    """The run, step, member and learning rate of a result."""

    run_id: str
    epoch: int
    round: int
    """Round of the epoch."""
    step: int
    seat: int
    """Seat of the member that trained it."""
    tier: int
    learning_rate: float
    """Learning rate at which it was applied."""


@dataclass(frozen=True)
class GradientFile:
    """A result with the facts needed to decode it."""

    schema: Schema
    origin: ResultOrigin
    payloads: Mapping[int, bytes]
    """Payload by level, for the levels that the file's writer holds."""

    @property
    def name(self) -> str:
        """Return the file's name."""
        return f"step-{self.origin.step:06}-member-{self.origin.seat}.safetensors"

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        document = self.schema.to_json()
        facts = asdict(self.origin) | {
            "learning_rate": repr(self.origin.learning_rate),
            "format": FORMAT_VERSION,
        }
        facts |= {"schema": document.decode(), "schema_hash": self.schema.hash().hex()}
        payloads = {_tensor(level): payload for level, payload in self.payloads.items()}
        shapes = {name: ("U8", (len(payload),)) for name, payload in payloads.items()}
        head = header(shapes, {name: str(value) for name, value in facts.items()})
        return b"".join([head, *(payload for _, payload in sorted(payloads.items()))])

    def votes(self) -> dict[int, Votes]:
        """Return the votes by level. Raises BadPayload if a payload does not fit the schema."""
        results = self.schema.results
        return {
            level: decode_level(payload, results, level)
            for level, payload in sorted(self.payloads.items())
        }


def read_gradient_file(path: Path) -> GradientFile:
    """Read a file. Its payloads have the right size. Raises BadGradientFile."""
    try:
        _check_size(path)
        with safe_open(path, framework="np") as file:
            return _parsed(file)
    except BadGradientFile:
        raise
    except OSError as error:
        raise BadGradientFile(
            f"cannot read {path}: {error.strerror or error}", "Pass a file that exists"
        ) from None
    except (SafetensorError, AftermathError) as error:
        why = error.message if isinstance(error, AftermathError) else error
        raise BadGradientFile(f"{path} is not a result of a member: {why}", _AGAIN) from None


def _check_size(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise BadGradientFile(f"{path} is not a file", "Pass each of its files instead")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise BadGradientFile(
            f"{path} is not a result of a member: its header is too large", _AGAIN
        )
    if path.stat().st_size > 8 + length + MAX_PAYLOAD_BYTES:
        raise BadGradientFile(f"{path} has more than {MAX_PAYLOAD_BYTES} bytes of payload", _AGAIN)


def _parsed(file: Any) -> GradientFile:
    facts: dict[str, str] = file.metadata() or {}
    if (version := facts.get("format")) != FORMAT_VERSION:
        raise AftermathError(
            f"its format is {_shown(version)}, but this client reads {FORMAT_VERSION}"
        )
    schema = Schema.from_json(facts.get("schema", "").encode())
    if facts.get("schema_hash") != schema.hash().hex():
        raise AftermathError("its schema does not match its schema_hash")
    origin = ResultOrigin(
        run_id=_run_id(facts),
        epoch=_number(facts, "epoch"),
        round=_number(facts, "round"),
        step=_number(facts, "step"),
        seat=_number(facts, "seat"),
        tier=_number(facts, "tier"),
        learning_rate=_rate(facts),
    )
    if origin.tier >= schema.state.tiers:
        raise AftermathError(
            f"its tier is {origin.tier}, but the run has {schema.state.tiers} tiers"
        )
    return GradientFile(schema, origin, _payloads(file, schema, origin.tier))


def _payloads(file: Any, schema: Schema, tier: int) -> dict[int, bytes]:
    levels = {_tensor(level): level for level in range(tier, schema.results.levels)}
    names = list(file.keys())
    if not names:
        raise AftermathError("it has no levels")
    if strange := [name for name in names if name not in levels]:
        raise AftermathError(
            f"it has {_shown(strange[0])}, which a member of tier {tier} does not send"
        )
    for name in names:
        part = file.get_slice(name)
        size = schema.results.payload_bytes(levels[name])
        if part.get_dtype() != "U8" or part.get_shape() != [size]:
            raise AftermathError(
                f"{name} must have {size} bytes, but is {part.get_dtype()} {part.get_shape()[:4]}"
            )
    return {levels[name]: file.get_tensor(name).tobytes() for name in names}


def _tensor(level: int) -> str:
    return f"level.{level}"


def _run_id(facts: Mapping[str, str]) -> str:
    run_id = facts.get("run_id", "")
    if not 1 <= len(run_id) <= RUN_ID_BYTES or not run_id.isprintable():
        raise AftermathError(f"its run_id {_shown(run_id)} is not a valid run id")
    return run_id


def _number(facts: Mapping[str, str], name: str) -> int:
    text = facts.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= U32_MAX):
        raise AftermathError(f"its {name} {_shown(text)} is not a valid number")
    return int(text)


def _rate(facts: Mapping[str, str]) -> float:
    text = facts.get("learning_rate", "")
    try:
        rate = float(text) if len(text) <= 32 else math.nan
    except ValueError:
        rate = math.nan
    if not 0 <= rate <= _LARGEST_RATE:
        raise AftermathError(f"its learning_rate {_shown(text)} is not a valid rate")
    return rate


def _shown(text: str | None) -> str:
    return repr(text)[:60]
