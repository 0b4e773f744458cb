"""The TCP port of a data server that is told no other; apart from `wire`, since a help page says it (no numpy)."""

from __future__ import annotations

PORT = 5533
