"""Every config key has a correct description: its example is valid, and its limits equal the
rules'.
"""

from __future__ import annotations

import copy
import itertools
import math
import tomllib
from typing import Any

import pytest

from aftermath.base.errors import ConfigError
from aftermath.config.document import RunConfig, parse_as
from aftermath.config.keys import (
    COLUMNS,
    ConfigKey,
    _plain,
    config_text,
    find,
    first_sentences,
    held_by,
    json_schema,
    keys,
    nearest,
    written,
)
from aftermath.config.tables import Choice, KeyLimits
from config.config_cases import SEED
from config.test_config_file import CONFIGS

VALUES = [key for key in keys() if key.table is None]
EVERYWHERE: dict[str, dict[str, Any]] = {
    "checkpoint": {"Hub": {"repo_id": "a/b"}},
    "data_location": {"Dummy": {}},
    "lr_schedule": {"Constant": {"base_lr": 1e-3}},
    "optimizer": {"SparseLoCo": {}},
}
COMPANIONS = {
    "config.min_round_time": {"max_round_train_time": 30 * 24 * 60 * 60},
    "config.min_clients": {"init_min_clients": 256},
    "config.init_min_clients": {"min_clients": 1},
    "config.witness_nodes": {"min_clients": 40, "init_min_clients": 40},
    "config.global_batch_size_start": {"global_batch_size_end": 65535},
    "config.global_batch_size_end": {"global_batch_size_start": 1},
    "model.LLM.optimizer.Distro.compression_topk": {"compression_chunk": 4096},
    "model.LLM.optimizer.SparseLoCo.compression_topk": {"compression_chunk": 4096},
    "model.LLM.optimizer.Distro.compression_topk_embeddings": {"compression_chunk": 4096},
    "model.LLM.optimizer.SparseLoCo.compression_topk_embeddings": {"compression_chunk": 4096},
    "model.LLM.optimizer.Distro.compression_chunk": {"compression_topk": 1},
    "model.LLM.optimizer.SparseLoCo.compression_chunk": {"compression_topk": 1},
    "model.LLM.cold_start_warmup_steps": {},
}
"""Other keys that must be set so that a key's limit applies."""


def param_of(key: ConfigKey) -> Any:
    return pytest.param(key, id=key.name)


def with_value(key: ConfigKey, value: Any) -> dict[str, Any]:
    """Return the tables of a whole config with this key at this value, and all other keys that it
    needs.
    """
    tables = tomllib.loads(SEED)
    tables["model"]["LLM"] |= copy.deepcopy(EVERYWHERE)
    table: Any = tables
    for depth, name in enumerate(key.path[:-1], 1):
        (above,) = find(".".join(key.path[: depth - 1])) if depth > 1 else (None,)
        if (
            above is not None
            and above.table is not None
            and issubclass(above.table, Choice)
            and name not in table
        ):
            table.clear()
        table = table.setdefault(name, {})
        for other in held_by(find(".".join(key.path[:depth]))[0]):
            if other.required and other.path[-1] not in table:
                filled = {
                    "shuffle": "DontShuffle",
                    "location": {"SingleUrl": {"url": "https://x/y"}},
                }
                values = tomllib.loads(other.example) if other.example else filled
                table[other.path[-1]] = values[other.path[-1]]
    table |= COMPANIONS.get(key.name, {})
    table[key.path[-1]] = value
    return tables


def mistakes(tables: dict[str, Any]) -> str:
    """Return the mistakes in these tables."""
    lines = (f"{name} = {written(table)}" for name, table in tables.items())
    try:
        parse_as("\n".join(lines), "c", RunConfig)
    except ConfigError as error:
        return error.message
    return ""


def bounds(key: ConfigKey) -> KeyLimits:
    """Return the program's limits of a key."""
    holder: Any = RunConfig
    for name in key.path[:-1]:
        holder = _plain(holder.model_fields[name].annotation)[0]
    field = holder.model_fields[key.path[-1]]
    marks = _plain(field.annotation, field.metadata)[1]
    return next((mark for mark in marks if isinstance(mark, KeyLimits)), KeyLimits())


def test_config_keys_all_have_descriptions() -> None:
    assert len(VALUES) > 80
    assert [key.name for key in keys() if not key.text.endswith(".")] == []
    assert [key.name for key in VALUES if not key.example] == []
    assert [
        key.name for key in VALUES if key.kind in ("whole number", "number") and not key.limits
    ] == []


def test_config_key_descriptions_fit_one_line() -> None:
    for key in keys():
        assert len(first_sentences(key.text, 0)) + len(key.unit) <= COLUMNS - 5, key.name
        assert first_sentences(key.text, 10_000) == key.text


@pytest.mark.parametrize("key", [param_of(key) for key in VALUES])
def test_config_key_example_is_valid(key: ConfigKey) -> None:
    value = tomllib.loads(key.example)[key.path[-1]]
    assert mistakes(with_value(key, value)) == ""


@pytest.mark.parametrize(
    "key", [param_of(key) for key in VALUES if key.kind in ("whole number", "number")]
)
def test_config_key_limit_equals_program_rule(key: ConfigKey) -> None:
    means = bounds(key)
    whole = key.kind == "whole number"

    def beyond(limit: float, toward: float) -> float:
        return limit + int(math.copysign(1, toward)) if whole else math.nextafter(limit, toward)

    for limit, toward in ((means.least, -math.inf), (means.most, math.inf)):
        if limit is None:
            continue
        value = limit if whole else float(limit)
        assert mistakes(with_value(key, value)) == "", value
        if beyond(value, toward) >= 0 or not whole:
            assert key.path[-1] in mistakes(with_value(key, beyond(value, toward))), (
                key.name,
                beyond(value, toward),
            )
    for limit, inside in ((means.above, 1.0), (means.below, 0.0)):
        if limit is not None:
            assert mistakes(with_value(key, math.nextafter(float(limit), inside))) == ""
            assert key.path[-1] in mistakes(with_value(key, float(limit)))


@pytest.mark.parametrize("key", [param_of(key) for key in VALUES if "bytes" in key.limits])
def test_config_text_length_equals_program_limit(key: ConfigKey) -> None:
    most = bounds(key).bytes
    assert most is not None
    assert mistakes(with_value(key, "é" * (most // 2))) == ""
    assert mistakes(with_value(key, "é" * (most // 2) + "x")) != ""


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_written_config_is_read_back_unchanged(path: Any) -> None:
    config = parse_as(path.read_text(), str(path), RunConfig)
    text = config_text(config, ["What it is.", ""])
    assert parse_as(text, "written", RunConfig).model_dump() == config.model_dump()
    lines = text.splitlines()
    assert max(map(len, [line for line in lines if line.startswith("#")])) <= COLUMNS
    bare = [
        line
        for before, line in itertools.pairwise(lines)
        if line[:1].isalpha() and before[:2] != "# "
    ]
    assert bare == []


@pytest.mark.parametrize("key", [param_of(key) for key in VALUES])
def test_written_variant_is_read_back(key: ConfigKey) -> None:
    tables = with_value(key, tomllib.loads(key.example)[key.path[-1]])
    config = RunConfig.model_validate(tables)
    assert (
        parse_as(config_text(config, []), "written", RunConfig).model_dump() == config.model_dump()
    )


@pytest.mark.parametrize("text", ['"', "\\", "\x7f", "\x1b[2J", "\n", "é", "'", "a # b"])
def test_written_text_of_any_characters_is_read_back(text: str) -> None:
    assert tomllib.loads(f"key = {written(text)}") == {"key": text}


def test_config_key_is_found_by_full_name_or_last_part() -> None:
    assert [key.name for key in find("config.total_steps")] == ["config.total_steps"]
    assert {key.name for key in find("total_steps")} >= {
        "config.total_steps",
        "model.LLM.lr_schedule.Cosine.total_steps",
    }
    assert find("total_step") == []
    assert find("") == find(".") == []
    assert "config.total_steps" in nearest("config.total_step")
    assert "model.LLM.optimizer.SparseLoCo.inner_steps" in nearest("iner_steps")


def fits(document: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """Return whether a value fits a JSON Schema. Only the keywords that our schema uses are
    supported.
    """
    if "$ref" in document and not fits(
        root["$defs"][document["$ref"].removeprefix("#/$defs/")], value, root
    ):
        return False
    kinds = {
        "integer": int,
        "number": (int, float),
        "string": str,
        "boolean": bool,
        "array": list,
        "object": dict,
    }
    if "type" in document and not isinstance(value, kinds[document["type"]]):
        return False
    if isinstance(value, bool) and document.get("type") in ("integer", "number"):
        return False
    if "anyOf" in document and not any(fits(one, value, root) for one in document["anyOf"]):
        return False
    if "enum" in document and value not in document["enum"]:
        return False
    if isinstance(value, dict):
        inner = document.get("properties", {})
        return (
            set(document.get("required", ())) <= value.keys()
            and (document.get("additionalProperties", True) or value.keys() <= inner.keys())
            and document.get("minProperties", 0)
            <= len(value)
            <= document.get("maxProperties", len(value))
            and all(fits(inner[name], one, root) for name, one in value.items() if name in inner)
        )
    if isinstance(value, list):
        sizes = document.get("minItems", 0) <= len(value) <= document.get("maxItems", len(value))
        return sizes and all(fits(document.get("items", {}), one, root) for one in value)
    if isinstance(value, int | float):
        return document.get("minimum", -math.inf) <= value <= document.get(
            "maximum", math.inf
        ) and document.get("exclusiveMinimum", -math.inf) < value < document.get(
            "exclusiveMaximum", math.inf
        )
    return True


SCHEMA = json_schema()
WORDS = {
    *(
        "$ref",
        "type",
        "anyOf",
        "enum",
        "properties",
        "required",
        "additionalProperties",
        "minProperties",
    ),
    *(
        "maxProperties",
        "items",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
    ),
    *("description", "title", "default", "examples", "maxLength", "pattern"),
}


def keywords(document: Any) -> set[str]:
    """Return the keywords of a JSON Schema, without the names of keys."""
    if not isinstance(document, dict) or not document:
        return set()
    inner = [one for name in ("properties", "$defs") for one in document.get(name, {}).values()]
    inner += [*document.get("anyOf", ()), document.get("items", {})]
    return (document.keys() - {"$defs", "$schema"}).union(*map(keywords, inner))


def test_json_schema_uses_only_tested_words() -> None:
    assert keywords(SCHEMA) <= WORDS
    assert "null" not in str(SCHEMA)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_json_schema_accepts_shipped_configs_only_unbroken(path: Any) -> None:
    tables = tomllib.loads(path.read_text())
    assert fits(SCHEMA, tables, SCHEMA)
    for wrong in ({"overlap": 2}, {"total_steps": "many"}, {"total_step": 1}, {"cooldown_time": 0}):
        assert not fits(SCHEMA, tables | {"config": tables["config"] | wrong}, SCHEMA)


@pytest.mark.parametrize("key", [param_of(key) for key in VALUES])
def test_json_schema_accepts_every_key(key: ConfigKey) -> None:
    tables = with_value(key, tomllib.loads(key.example)[key.path[-1]])
    assert fits(SCHEMA, tables, SCHEMA)
    assert not fits(SCHEMA, with_value(key, {"no": "value"}), SCHEMA)


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("checkpoint", {"Local": "a"}, True),
        ("checkpoint", {"Local": 1}, False),
        ("checkpoint", "Dummy", True),
        ("checkpoint", "Local", False),
        ("checkpoint", {"Local": "a", "Dummy": {}}, False),
        ("checkpoint", {}, False),
        ("checkpoint", {"Gcs": {}}, False),
        ("optimizer", "SparseLoCo", True),
        ("optimizer", "Distro", False),
        ("data_location", {"Local": {"path": "x", "shuffle": {"Seeded": [7] * 32}}}, True),
        ("data_location", {"Local": {"path": "x", "shuffle": {"Seeded": [7] * 31}}}, False),
    ],
)
def test_json_schema_accepts_forms_of_file(name: str, value: Any, taken: bool) -> None:
    tables = tomllib.loads(SEED)
    tables["model"]["LLM"][name] = value
    assert fits(SCHEMA, tables, SCHEMA) is taken
    assert (mistakes(tables) == "") is taken
