"""A run's config file: its tables, what is wrong in one as sentences, and how members read it back
from the chain.

Knows no network, no torch and no clock.
"""
