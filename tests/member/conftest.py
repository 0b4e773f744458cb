"""Let simulated runs decode each result once."""

from member.decoded_once import decoded_once  # noqa: F401
