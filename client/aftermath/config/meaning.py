"""The unit and the limits of each key of a config file, for editors and docs pages.

These limits are not part of the type: `config.rules` enforces them with the program's own
sentences. A test compares both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from aftermath.config.tables import U64
from aftermath.rules.limits import LOCATION_BYTES, MAX_TIME, REPO_BYTES


@dataclass(frozen=True)
class Means:
    """A key's unit (may be empty) and its limits beyond those of the type (None: no such limit)."""

    unit: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    bytes: int | None = None
    """Maximum length of a text in bytes."""
    form: str = ""
    """The form of a text with a pattern, in words. Errors and pages show it."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Add the limits to the JSON Schema."""
        document = dict(handler(core))
        known = {
            "minimum": self.least,
            "maximum": self.most,
            "exclusiveMinimum": self.above,
            "exclusiveMaximum": self.below,
            "maxLength": self.bytes,  # no text has more characters than bytes
            "unit": self.unit or None,  # `Table` moves it into the description
        }
        return document | {name: value for name, value in known.items() if value is not None}


Seconds = Annotated[U64, Means("seconds", most=MAX_TIME)]
SomeSeconds = Annotated[U64, Means("seconds", least=1, most=MAX_TIME)]
Location = Annotated[str, Means(bytes=LOCATION_BYTES)]
"""A data location: a path, an address or a bucket."""
Repository = Annotated[str, Means(bytes=REPO_BYTES)]
"""The repository name or the path of a checkpoint."""
