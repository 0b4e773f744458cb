"""Training data: where token files are, how they are read, and how text becomes tokens."""

# It stands here because help texts show it, and importing any module of the package loads NumPy.
from __future__ import annotations

PORT = 5533
"""The default TCP port of a data server."""
