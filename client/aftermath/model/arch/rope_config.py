"""The positions of a `config.json`: plain rotary positions, or scaled for longer texts.

A table has the meaning of transformers 5. Unknown kinds, missing numbers and numbers out of bounds
are refused; keys that the table's type does not use are ignored. Values are kept as written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.base.errors import short_repr
from aftermath.model.config import ModelConfigError

_LENGTH = "original_max_position_embeddings"
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _LENGTH),
    "yarn": ("factor", _LENGTH),
}
_MAY: Mapping[str, tuple[str, ...]] = {
    "dynamic": (_LENGTH,),
    "yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
}
# In a field, 0 means that an optional number is absent. So a 0 in a file is refused if it would
# have another meaning.
ROPE_FIELDS: Mapping[str, str] = {
    "factor": "rope_factor",
    _LENGTH: "rope_original_length",
    "low_freq_factor": "rope_low_freq_factor",
    "high_freq_factor": "rope_high_freq_factor",
    "beta_fast": "rope_beta_fast",
    "beta_slow": "rope_beta_slow",
    "attention_factor": "rope_attention_factor",
    "mscale": "rope_mscale",
    "mscale_all_dim": "rope_mscale_all_dim",
    "truncate": "rope_truncate",
}
"""The keys of a table, and the fields of a config that hold them."""
_BOUNDS: Mapping[str, tuple[float, bool, float]] = {
    "rope_theta": (1, True, 1e12),
    "factor": (1, True, 1e6),
    _LENGTH: (1, True, 1 << 24),
    "low_freq_factor": (0, False, 1e6),
    "high_freq_factor": (0, False, 1e6),
    "beta_fast": (0, False, 1e6),
    "beta_slow": (0, False, 1e6),
    "attention_factor": (0, False, 1e3),
    "mscale": (0, True, 1e3),
    "mscale_all_dim": (0, True, 1e3),
}
"""Lower bound, whether it is inclusive, and upper bound of each number."""


def rope_table(hf_config: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Return a file's position table: `rope_type`, `rope_theta` if present, and its type's numbers.

    `longest` is the model's `max_position_embeddings`, the default of the original length. Raises
    ModelConfigError for contradicting tables and unsupported types.
    """
    tables = [
        _plain(hf_config, key, longest)
        for key in ("rope_scaling", "rope_parameters")
        if hf_config.get(key)
    ]
    if len(tables) == 2 and tables[0] != tables[1]:
        raise ModelConfigError(
            "config.json: rope_parameters and rope_scaling contradict each other",
            "Remove one of the two tables",
        )
    if tables:
        return tables[0]
    theta = hf_config.get("rope_theta")
    return {"rope_type": "default"} | ({"rope_theta": theta} if theta is not None else {})


def rope_fields(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table as fields of a config."""
    return {ROPE_FIELDS.get(key, key): _number(key, value) for key, value in table.items()}


def rope_parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a config's fields, as transformers reads it."""
    kind = str(fields["rope_type"])
    keys = (*_NEEDS[kind], *_MAY.get(kind, ()))
    parameters = {
        key: fields[ROPE_FIELDS[key]]
        for key in keys
        if key in _NEEDS[kind] or fields[ROPE_FIELDS[key]]
    }
    if kind == "yarn":
        parameters["truncate"] = fields["rope_truncate"]
    return {"rope_type": kind, "rope_theta": fields["rope_theta"]} | parameters


def _plain(hf_config: Mapping[str, Any], key: str, longest: int) -> dict[str, Any]:
    """Return a table without keys that have no effect."""
    table = hf_config[key]
    if not isinstance(table, Mapping) or any(
        isinstance(value, Mapping) for value in table.values()
    ):
        raise ModelConfigError(
            f"config.json: {key} is not a flat table of numbers",
            f"Keep only rope_theta in {key}",
        )
    present = {name: value for name, value in table.items() if value is not None and name != "type"}
    kind = present.setdefault("rope_type", table.get("type", "default"))
    if not isinstance(kind, str) or kind not in _NEEDS:
        raise ModelConfigError(
            f"config.json: {key} of type {short_repr(kind)} is not supported",
            f"This client supports positions of the types {', '.join(_NEEDS)}",
        )
    if present.pop("partial_rotary_factor", 1) != 1:
        raise ModelConfigError(
            f"config.json: {key}.partial_rotary_factor {short_repr(table['partial_rotary_factor'])} is not supported",
            "Use a model that rotates whole heads",
        )
    present.setdefault("rope_theta", hf_config.get("rope_theta", 10000.0))
    if kind in ("llama3", "yarn"):
        if _LENGTH in hf_config:  # it takes precedence over the table's, even if it is null
            present[_LENGTH] = hf_config[_LENGTH]
        elif _LENGTH not in table:  # null in the table is refused, as in transformers
            present[_LENGTH] = longest
    if "truncate" in table and table["truncate"] is None:
        present["truncate"] = False
    needed = _NEEDS[kind]
    for name in needed:
        if present.get(name) is None:
            raise ModelConfigError(
                f"config.json: {key} of type {kind} has no {name}", "Use the published file"
            )
    allowed_keys = {"rope_type", "rope_theta", *needed, *_MAY.get(kind, ())}
    plain_table = {name: value for name, value in present.items() if name in allowed_keys}
    for name, value in plain_table.items():
        _require_number(key, name, value)
    return plain_table


def _require_number(key: str, name: str, value: object) -> None:
    """Raise ModelConfigError, with the expected range, for an invalid number."""
    if name == "truncate" and not isinstance(value, bool):
        raise ModelConfigError(
            f"config.json: {key}.{name} {short_repr(value)} is not supported",
            "Set it to true or false",
        )
    if name not in _BOUNDS:
        return
    (low, touched, high) = _BOUNDS[name]
    whole = name == _LENGTH
    real = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not real or not (low < value <= high or (touched and value == low)):  # type: ignore[operator]
        raise ModelConfigError(
            f"config.json: {key}.{name} {short_repr(value)} is not supported",
            f"Use a {'whole ' * whole}number {'from' if touched else 'above'} {low:g} up to {high:,.0f}, or "
            "use the published file",
        )


def _number(key: str, value: object) -> object:
    """Return an integer as a float if the field is a float, and any other value unchanged."""
    real = key not in (_LENGTH, "truncate", "rope_type", "rope_theta")
    return (
        float(value) if real and isinstance(value, int) and not isinstance(value, bool) else value
    )
