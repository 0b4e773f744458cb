"""A run's config file: its tables, its error messages, and how members read it from the chain.

Uses no network, no torch and no clock.
"""
