"""The unit and the program's limits of each key of a config file.

Decided: a limit stands here, and not in the type, where the program has a sentence of its own for
what lies beyond it; `config.rules` refuses that. Editors and pages get it from here; a test puts
each limit before `config.rules`.
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
    """A unit, empty where a number counts nothing in particular, and limits; None where the type's
    own are all.
    """

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
        """The limits as JSON Schema has them."""
        document = dict(handler(core))
        known = {
            "minimum": self.least,
            "maximum": self.most,
            "exclusiveMinimum": self.above,
            "exclusiveMaximum": self.below,
            "maxLength": self.bytes,  # no text has more characters than bytes
            "unit": self.unit or None,  # which `Table` takes into the description
        }
        return document | {name: value for name, value in known.items() if value is not None}


Seconds = Annotated[U64, Means("seconds", most=MAX_TIME)]
SomeSeconds = Annotated[U64, Means("seconds", least=1, most=MAX_TIME)]
Location = Annotated[str, Means(bytes=LOCATION_BYTES)]
"""A place of data: a path, an address or a bucket."""
Repository = Annotated[str, Means(bytes=REPO_BYTES)]
"""A repository's name, or a path: of a checkpoint."""
