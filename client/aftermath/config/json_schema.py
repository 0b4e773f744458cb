"""The JSON Schema of a run's config file, with which editors complete and check it.

It is draft 7, which TOML editors support. It has only the limits of single keys; `config validate`
also checks the rules between keys.
"""

from __future__ import annotations

from typing import Any

from aftermath.config.document import RunConfig


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema. It has no $id, because config files refer to it by path."""
    held = RunConfig.model_json_schema()
    return (
        {"$schema": "http://json-schema.org/draft-07/schema#"}
        | held
        | {"title": "Config of an aftermath run"}
    )
