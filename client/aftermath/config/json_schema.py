"""The JSON Schema of a run's config file, by which editors complete and check one.

Decided: draft 7, which the editors' checkers of TOML know. What the program refuses beyond the
limits of single keys is not in it: `config validate` says that.
"""

from __future__ import annotations

from typing import Any

from aftermath.config.document import RunConfig


def json_schema() -> dict[str, Any]:
    """The document, which names no address: a file refers to it by where it was put."""
    held = RunConfig.model_json_schema()
    return (
        {"$schema": "http://json-schema.org/draft-07/schema#"}
        | held
        | {"title": "Config of an aftermath run"}
    )
