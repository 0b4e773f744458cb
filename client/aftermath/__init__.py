"""People with unequal computers training one language model together, on Solana."""

from importlib.metadata import version

__version__ = version("aftermath")
