"""Base classes of the tables in a config file, and the unit and limits of a key.

Types are strict and unknown keys are errors. Variants have upstream's enum syntax:
`[model.LLM.checkpoint.Hub]`, `checkpoint = { Hub = { … } }`, or only the name of a variant without
settings.
"""

from __future__ import annotations

import inspect
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema

from aftermath.base.extensions import BadExtension, extensions
from aftermath.rules.limits import LOCATION_BYTES, MAX_TIME, REPO_BYTES

U8 = Annotated[int, Field(ge=0, le=2**8 - 1)]
U16 = Annotated[int, Field(ge=0, le=2**16 - 1)]
U32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
# TOML integers are signed 64-bit numbers, so this is all of the program's u64 that a file can hold.
U64 = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Table(BaseModel):
    """A TOML table. It refuses unknown keys and values of other types, and does not change after
    loading.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON Schema without null, because TOML has no null."""
        document = handler(core)
        schema = handler.resolve_ref_schema(document)
        properties = {name: _as_written(one) for name, one in schema.get("properties", {}).items()}
        shape = cls._shape(schema | {"properties": properties})
        schema.clear()
        schema.update(shape)
        return document

    @classmethod
    def _shape(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON Schema for this table in a file. `table` is the schema of the class."""
        return table


class Variant(Table, ABC):
    """One alternative of a `Choice`."""

    @classmethod
    def is_bare(cls) -> bool:
        """Return whether the variant has no required keys, so that its name alone is enough."""
        return not any(field.is_required() for field in cls.model_fields.values())

    @classmethod
    def summary(cls) -> str:
        """Return a description of the variant in one sentence."""
        return inspect.getdoc(cls) or ""

    @abstractmethod
    def to_chain(self) -> dict[str, Any]:
        """Return this variant's arguments of the program's `update` instruction."""


class Choice(Table):
    """A table that holds exactly one of its variants. Every field is a variant, or None if it was
    not chosen.
    """

    NOT_HERE: ClassVar[Mapping[str, str]] = {}
    """Upstream variants that are not supported, and what to use instead."""

    @model_validator(mode="before")
    @classmethod
    def _exactly_one(cls, value: Any) -> Any:
        """Turn a bare name into a table, and check that one variant is chosen."""
        if isinstance(value, str):
            value = {value: {}}
        for name, advice in cls.NOT_HERE.items():
            if isinstance(value, dict) and name in value:
                raise ValueError(f"cannot be {name}: {advice}")
        if isinstance(value, dict) and (
            len(value) != 1 or None in value.values()
        ):  # JSON has null, but TOML does not
            choices = (
                " and ".join(name for name, settings in value.items() if settings is not None)
                or "none"
            )
            raise ValueError(f"needs exactly one of {', '.join(cls.model_fields)}, not {choices}")
        return value

    @classmethod
    def _shape(cls, table: dict[str, Any]) -> dict[str, Any]:
        bare = [name for name, variant in cls.variants().items() if variant.is_bare()]
        one = table | {"minProperties": 1, "maxProperties": 1}
        return {
            "description": one.pop("description"),
            "anyOf": [one, *([{"enum": bare}] if bare else [])],
        }

    @classmethod
    def variants(cls) -> dict[str, type[Variant]]:
        """Return the variants by name."""
        kinds = {name: get_args(field.annotation) for name, field in cls.model_fields.items()}
        return {
            name: one
            for name, these in kinds.items()
            for one in these
            if isinstance(one, type) and issubclass(one, Variant)
        }

    @classmethod
    def name_of(cls, variant: Variant) -> str:
        """Return the name under which a variant may be chosen."""
        return next(name for name, one in cls.variants().items() if type(variant) is one)

    @property
    def chosen(self) -> Variant:
        """The settings of the variant that was chosen."""
        variants = (getattr(self, name) for name in type(self).model_fields)
        return next(variant for variant in variants if isinstance(variant, Variant))

    def to_chain(self) -> dict[str, Any]:
        """Return the arguments of the chosen variant."""
        return self.chosen.to_chain()


C = TypeVar("C", bound=Choice)


def extensible(group: str, base: type[Variant]) -> Callable[[type[C]], type[C]]:
    """Let installed packages add variants, which are subclasses of `base`, to a choice.

    Raises BadExtension for an entry point of the group that is not one.
    """
    return lambda choice: extended(choice, extensions(group, base))


def extended(choice: type[C], variants: Mapping[str, type[Variant]]) -> type[C]:
    """Return a choice that has these variants too. Raises BadExtension for a name that is already
    taken.
    """
    if taken := variants.keys() & choice.model_fields.keys():
        raise BadExtension(
            f"an installed package registers the name {min(taken)}, which a built-in variant has",
            "Update the package that adds it, or uninstall it",
        )
    fields: dict[str, Any] = {
        name: (variant | None, Field(default=None, description=variant.summary()))
        for name, variant in variants.items()
    }
    return create_model(
        choice.__name__,
        __base__=choice,
        __module__=choice.__module__,
        __doc__=choice.__doc__,
        **fields,
    )


class BareVariant(Variant, ABC):
    """A variant whose first key may be written without its name: `Local = "path"` for `Local = {
    path = "path" }`.
    """

    @classmethod
    def _shape(cls, table: dict[str, Any]) -> dict[str, Any]:
        first = table["properties"][next(iter(cls.model_fields))]
        return {"description": table.pop("description"), "anyOf": [table, first]}

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {next(iter(cls.model_fields)): value}


def _as_written(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a key's JSON Schema without null, and with its unit in the description."""
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    rest = {
        name: value
        for name, value in schema.items()
        if name != "anyOf" and (name, value) != ("default", None)
    }
    if isinstance(default := rest.get("default"), dict):
        rest["default"] = {name: value for name, value in default.items() if value is not None}
    document = kinds[0] | rest if len(kinds) == 1 else rest | ({"anyOf": kinds} if kinds else {})
    if unit := document.pop("unit", ""):
        document["description"] = f"{document['description']} ({unit})"
    return document


def bits(value: float) -> int:
    """Return the bits of an IEEE double as a u64."""
    return int.from_bytes(struct.pack("<d", value), "little")


@dataclass(frozen=True)
class KeyLimits:
    """A key's unit (may be empty) and its limits beyond those of the type (None: no such limit).

    `config.rules` enforces the limits with the program's own sentences. A test compares both.
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


Seconds = Annotated[U64, KeyLimits("seconds", most=MAX_TIME)]
SomeSeconds = Annotated[U64, KeyLimits("seconds", least=1, most=MAX_TIME)]
Location = Annotated[str, KeyLimits(bytes=LOCATION_BYTES)]
"""A data location: a path, an address or a bucket."""
Repository = Annotated[str, KeyLimits(bytes=REPO_BYTES)]
"""The repository name or the path of a checkpoint."""
