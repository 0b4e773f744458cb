"""Training data: where token files are, how they are read, and how text becomes tokens."""

# Defined here, because help texts show it and the package's modules load NumPy.
from __future__ import annotations

PORT = 5533
"""The default TCP port of a data server."""
